//# about: exceptions and virtual calls in the large code model
//# kinds: gcc-pie gcc-nopie gcc-so clang-pie clang-nopie
//# not aarch64: -mcmodel=large is another thing there
//# flags: -mcmodel=large
//# stdout: 59459 222

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>
struct Base {
  virtual ~Base() {}
  virtual int f(int) = 0;
};
struct First : Base {
  int f(int x) override {
    if (x % 5 == 0) throw std::runtime_error("five");
    return x;
  }
};
struct Second : Base {
  int f(int x) override {
    if (x % 7 == 0) throw x;
    return x * 2;
  }
};
struct Guard {
  ~Guard() { n++; }
  static int n;
};
int Guard::n;
__attribute__((noinline)) int go(Base *b, int i) {
  Guard g;
  try {
    return b->f(i);
  } catch (const std::exception &e) {
    return (int)std::string(e.what()).size();
  }
}
__attribute__((noinline)) int choose(int k) {
  switch (k) {
  case 0: return 5;
  case 1: throw 3;
  case 2: return 9;
  case 3: {
    First first;
    return go(&first, 4);
  }
  case 4: return 11;
  case 5: return -5;
  default: return k;
  }
}
int main(int argc, char **argv) {
  std::vector<Base *> v{new First, new Second};
  long s = 0;
  for (int i = 0; i < 200; i++) {
    try {
      s += go(v[i & 1], i) + choose(i % 8);
    } catch (int k) {
      s += 1000 + k;
    }
  }
  std::printf("%ld %d\n", s, Guard::n);
  return 0;
}

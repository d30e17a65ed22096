//# about: what is said of code that moved: inlined functions, variables in registers, exceptions, a jump table, in all versions of DWARF
//# flags: -g
//# build dwarf4: -gdwarf-4
//# build dwarf3: -gdwarf-3
//# build macros: -g3
//# build types: -fdebug-types-section
//# build o0: -O0
//# build o3: -O3
//# build sections: -ffunction-sections
//# build lto: -flto
//# build lines: -g1
//# debug: updated
//# moved: leaf middle
//# stdout: never before 1034
//# stdout: 19286736 286
#include <cstdio>
#include <stdexcept>
#include <string>

static inline int scaled(int value, int by) {
  int product = value * by;
  if (product > 1000000)
    product -= 999999;
  return product ^ by;
}

extern "C" __attribute__((noinline)) int leaf(int x) {
  asm volatile("");
  if (x % 7 == 3)
    throw std::runtime_error("seven " + std::to_string(x % 5));
  switch (x & 7) {
    case 0: return x + 1;
    case 1: return scaled(x, 3);
    case 2: return x ^ 77;
    case 3: return x - 9;
    case 4: return x << 1;
    case 5: return ~x;
    case 6: return scaled(x, 11);
    default: return 5;
  }
}

extern "C" __attribute__((noinline)) void rarely(int result) {
  asm volatile("");
  std::printf("never before %d\n", result);
}

extern "C" __attribute__((noinline)) int middle(int x, int last) {
  asm volatile("");
  std::string filler(3 + x % 4, 'x');
  int result = leaf(x) + (int)filler.size();
  if (x == last) {
    rarely(scaled(result, x) % 5000);
    result += 2;
  }
  return scaled(result, 5);
}

int main(int argc, char **) {
  long sum = 0;
  int thrown = 0;
  for (int i = 0; i < 2000; i++) {
    try {
      sum += middle(i, 1999);
    } catch (const std::runtime_error &e) {
      thrown++;
      sum += e.what()[6];
    }
  }
  std::printf("%ld %d\n", sum, thrown);
  return argc > 5;
}

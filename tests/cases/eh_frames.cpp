//# about: exceptions through many frames with cleanups, by type, rethrown, nested, out of constructors
//# build O0: -O0
//# build O3: -O3
//# build Os: -Os
//# count deep: 7000
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

static int live, built, order;
struct Guard {
  int &counter;
  explicit Guard(int &c) : counter(c) { ++counter; }
  ~Guard() { --counter; order = order * 31 + counter; }
};
struct Member {
  int id;
  explicit Member(int i) : id(i) { if (i % 13 == 12) throw i; ++built; }
  ~Member() { --built; order = order * 17 + id; }
};
struct Whole {
  Member a, b;
  Member array[3];
  explicit Whole(int i) try : a(i), b(i + 1), array{Member(i + 2), Member(i + 3), Member(i + 4)} {
    if (i % 5 == 0) throw std::runtime_error("whole");
  } catch (int &n) {
    n += 1000;
    throw;
  }
};

extern "C" __attribute__((noinline, noipa)) int deep(int depth, int x) {
  Guard guard(live);
  std::string text(depth, 'x');
  if (depth == 0) {
    if (x % 3 == 0) throw std::logic_error("logic");
    if (x % 3 == 1) throw std::string("text");
    return x;
  }
  try {
    return deep(depth - 1, x) + (int)text.size();
  } catch (const std::logic_error &e) {
    if (depth % 2) throw;
    throw std::out_of_range(text);
  }
}

__attribute__((noinline, noipa)) static int nested(int x) {
  try {
    try {
      throw x;
    } catch (int n) {
      try {
        throw std::runtime_error("inner");
      } catch (std::exception &) {
        Guard guard(live);
        if (n & 1) throw std::make_exception_ptr(n);
      }
      std::throw_with_nested(std::runtime_error("outer"));
    }
  } catch (const std::exception_ptr &p) {
    try { std::rethrow_exception(p); } catch (int n) { return n * 2; }
  } catch (const std::exception &e) {
    try { std::rethrow_if_nested(e); } catch (int n) { return n * 3; }
  }
  return -1;
}

int main(int argc, char **argv) {
  int caught[5] = {0};
  long sum = 0;
  for (int i = 0; i < 1000; i++) {
    try {
      sum += deep(6, i);
    } catch (const std::out_of_range &e) {
      caught[0]++; sum += e.what()[0];
    } catch (const std::logic_error &) {
      caught[1]++;
    } catch (const std::string &s) {
      caught[2]++; sum += s.size();
    }
    try {
      Whole whole(i);
      caught[3]++;
    } catch (int n) {
      sum += n;
    } catch (const std::runtime_error &) {
      caught[4]++;
    }
    sum += nested(i);
  }
  printf("%d %d %d %d %d live=%d built=%d order=%d sum=%ld\n", caught[0], caught[1], caught[2], caught[3], caught[4], live, built, order, sum);
  return live + built;
}

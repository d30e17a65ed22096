// Inlined functions, exceptions, a jump table, variables in registers, a part that never runs.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

static inline int scaled(int value, int by) {
  int product = value * by;
  if (product > 1000000)
    product -= 999999;
  return product ^ by;
}

extern "C" __attribute__((noinline, noipa)) int leaf(int x) {
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

extern "C" __attribute__((noinline, noipa)) void cold_path(int result) {
  std::printf("never before %d\n", result);
}

extern "C" __attribute__((noinline, noipa)) int middle(int x, int last) {
  std::string filler(3 + x % 4, 'x');
  int result = leaf(x) + (int)filler.size();
  if (x == last) {
    cold_path(scaled(result, x));
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

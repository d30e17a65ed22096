//# about: throws and handlers that the compiler itself has put into .cold parts, entered rarely but entered
//# build O3: -O3
//# build Os: -Os
//# count parse: 5000
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

__attribute__((cold, noinline)) static void fail(int x) { throw std::invalid_argument(std::to_string(x)); }

struct Frame {
  std::vector<int> values;
  std::unique_ptr<int> owned;
  int *counter;
  Frame(int n, int *c) : values(n, n), owned(new int(n)), counter(c) { ++*c; }
  ~Frame() { --*counter; }
};

extern "C" __attribute__((noinline, noipa)) long parse(int x, int *counter) {
  Frame outer(x % 7, counter);
  long total = 0;
  for (int i = 0; i < 4; i++) {
    try {
      Frame inner(i, counter);
      if (__builtin_expect((x + i) % 97 == 0, 0)) fail(x);
      if (__builtin_expect((x ^ i) % 89 == 88, 0)) throw i;
      total += inner.values.size() + *outer.owned;
    } catch (int n) {
      if (n == 3) throw;
      total += 1000;
    }
  }
  return total;
}

int main(int argc, char **argv) {
  int counter = 0, failed = 0, ints = 0;
  long total = 0;
  for (int i = 0; i < 5000; i++) {
    try {
      total += parse(i, &counter);
    } catch (const std::invalid_argument &e) {
      failed++; total += e.what()[0];
    } catch (int) {
      ints++;
    }
  }
  printf("%ld failed=%d ints=%d counter=%d\n", total, failed, ints, counter);
  return counter;
}

//# about: without kept relocations: two functions are identical only if those that they call are, which are entered by pointer so often that they stay
//# optimize: --icf=all
//# stdout: 1198600
#include <stdio.h>

long value = 1;
#define SAME(name) \
  __attribute__((noinline, noipa)) long name(long x) { \
    if (x > 100) return value + 1; \
    return value; \
  }
SAME(first) SAME(second)
#define CALLS(name, callee) \
  __attribute__((noinline, noipa)) long name(int n) { \
    long sum = 0; \
    for (int i = 0; i < n; i++) \
      if (__builtin_expect(i & 3, 0)) sum += callee(i); \
      else sum -= n; \
    return sum; \
  }
CALLS(calls_first, first) CALLS(calls_second, second)
long (*volatile pointers[])(long) = {first, second};

__attribute__((noinline, noipa)) long by_pointer(int n) {
  long sum = 0;
  for (int i = 0; i < n; i++) sum += pointers[i & 1](i & 1);
  return sum;
}

int main(int argc, char **argv) {
  (void)argv;
  long sum = 0;
  for (int i = 0; i < 100; i++) sum += calls_first(50 * argc) + calls_second(99 * argc) + by_pointer(15000 * argc);
  printf("%ld\n", sum);
  return 0;
}

//# about: tail calls: direct, conditional, indirect, through the PLT, mutual for a million levels
//# build O1: -O1 -foptimize-sibling-calls
//# build O3: -O3
//# not static-pie: same as static
//# count even: 250001
//# count odd: 250000
#include <stdio.h>
#include <stdlib.h>

static long steps;
__attribute__((noinline, noipa)) int odd(int n);
__attribute__((noinline, noipa)) int even(int n) { steps++; if (n == 0) return 1; return odd(n - 1); }
__attribute__((noinline, noipa)) int odd(int n) { steps += 2; if (n == 0) return 0; return even(n - 1); }

typedef long (*operation)(long, int);
static long add(long x, int k);
static long mul(long x, int k);
static long stop(long x, int k);
static operation operations[] = { add, mul, stop };
__attribute__((noinline, noipa)) static long add(long x, int k) { if (k <= 0) return x; return operations[(k ^ x) & 1](x + k, k - 1); }
__attribute__((noinline, noipa)) static long mul(long x, int k) { if (k <= 0) return stop(x, 1); return operations[k & 1](x * 3 & 0xffffff, k - 1); }
__attribute__((noinline, noipa)) static long stop(long x, int k) { return x * 2 + k; }
__attribute__((noinline, noipa)) static long choose(int x, long y) {
  if (x == 3) return labs(y);
  if (x > 5) return add(y, x);
  if (x < 0) return mul(y, -x);
  return y;
}

int main(int argc, char **argv) {
  long h = even(500000);
  for (int i = -50; i < 50; i++) h = h * 7 + choose(i, i * 3 - 40);
  printf("%ld %ld\n", h, steps);
  return 0;
}

//# about: huge, variable and aligned stack frames, with stack protection and probing, and deep recursion
//# flags: -fno-optimize-sibling-calls
//# build probes: -fstack-clash-protection -fstack-protector-all
//# build O0: -O0
//# build frame: -fno-omit-frame-pointer
//# count ackermann: 2785999
#include <alloca.h>
#include <stdio.h>
#include <string.h>

__attribute__((noinline, noipa)) static int ackermann(int m, int n) {
  if (m == 0) return n + 1;
  if (n == 0) return ackermann(m - 1, 1);
  return ackermann(m - 1, ackermann(m, n - 1));
}
__attribute__((noinline, noipa)) static unsigned huge(int n) {
  volatile char frame[300000];
  frame[0] = n;
  frame[299999] = n * 2;
  unsigned sum = 0;
  for (int i = 0; i < 300000; i += 4096) { frame[i] = i >> 12; sum += frame[i]; }
  return sum + frame[299999];
}
__attribute__((noinline, noipa)) static unsigned variable(int n) {
  char *a = alloca(n * 16 + 1);
  __attribute__((aligned(64))) char b[100];
  memset(a, n, n * 16 + 1);
  memset(b, n, 100);
  if ((unsigned long)b & 63) return 1 << 30;
  return a[n * 16] + b[99] + (n ? variable(n - 1) : 0);
}

int main(int argc, char **argv) {
  printf("%d %u %u\n", ackermann(3, 8), huge(3), variable(200));
  return 0;
}

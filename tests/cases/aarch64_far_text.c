//# about: more text than direct branches reach, on both sides of it functions that call each other, through tables and pointers too
//# kinds: aarch64-gcc-pie aarch64-clang-pie aarch64-gcc-so aarch64-clang-so
//# flags: -O2
//# stdout: -82 14 32 58 30696558
//# moved: both near_leaf near_switch far_leaf far_cold
#include <stdio.h>
#include <stdlib.h>

// Text that nothing runs: 130 MiB of zeros between the first and the last functions.
asm(".pushsection .text.sorted.1, \"ax\", %progbits\n .zero 136314880\n .popsection");
#define NEAR __attribute__((noinline, noipa, section(".text.hot.near")))
#define FAR __attribute__((noinline, noipa, section(".text")))

NEAR int near_leaf(int n) { return n % 7 + 1; }
NEAR int near_switch(int n) {
  switch (n % 9) {
  case 0: return 4;
  case 1: return n + 1;
  case 2: return near_leaf(n);
  case 3: return 9 * n;
  case 4: return n ^ 5;
  case 5: return n - 77;
  case 6: return 31;
  case 7: return near_leaf(n + 3);
  default: return -n;
  }
}
FAR int far_leaf(int n) { return near_leaf(n) * 3; }
FAR int far_cold(int n) { if (n == 12345) abort(); return near_switch(n) + far_leaf(n); }
NEAR int both(int n, int (*f)(int)) { return far_cold(n) + f(n) + (n & 1 ? far_leaf(n) : near_switch(n)); }

static int by_size(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(int argc, char **argv) {
  (void)argv;
  int (*f[])(int) = {near_leaf, far_leaf, near_switch, far_cold};
  int list[64], sum = 0;
  for (int i = 0; i < 5000; i++) sum += both(i, f[(i + argc) % 4]);
  for (int i = 0; i < 64; i++) list[i] = both(i, far_leaf) % 100;
  qsort(list, 64, sizeof *list, by_size);
  for (int i = 0; i < 64; i += 16) printf("%d ", list[i]);
  printf("%d\n", sum);
  return 0;
}

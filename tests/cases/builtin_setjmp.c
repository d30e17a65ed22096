//# about: gcc's __builtin_setjmp: the address of a place inside the function is stored in a buffer and jumped to from elsewhere
//# kinds: gcc-pie gcc-nopie clang-pie aarch64-gcc-pie
#include <stdio.h>
static void *buffer[5];
static int depth;
__attribute__((noinline, noipa)) static void deep(int n) {
  volatile char pad[32]; pad[n & 31] = n;
  if (n == 0) __builtin_longjmp(buffer, 1);
  deep(n - 1);
  depth += pad[n & 31];
}
__attribute__((noinline, noipa)) static int protected_(int n) {
  if (__builtin_setjmp(buffer) == 0) { deep(n & 15); return -1; }
  return n * 3 + depth;
}
int main(int argc, char **argv) {
  unsigned sum = 0;
  for (int i = 0; i < 3000; i++) sum = sum * 31 + protected_(i);
  printf("%u\n", sum);
  return 0;
}

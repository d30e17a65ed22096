//# about: returns as jumps: addresses of labels are pushed and returned to, or written over a return address on the stack
//# kinds: gcc-pie gcc-nopie clang-pie clang-so
//# stdout: 1312628420
#include <stdio.h>

// Jumps to one of two labels by a return.
__attribute__((noinline, noipa)) static int by_return(int x) {
  int r;
  __asm__("sub $128, %%rsp\n lea 1f(%%rip), %%rax\n lea 2f(%%rip), %%rdx\n test $1, %[x]\n cmovne %%rdx, %%rax\n push %%rax\n ret\n"
          "1: mov $11, %[r]\n jmp 3f\n 2: mov $7, %[r]\n 3: add $128, %%rsp\n"
          : [r] "=&r"(r) : [x] "r"(x) : "rax", "rdx", "cc", "memory");
  return r + x;
}
// As retpolines do: the return address is written over.
__attribute__((noinline, noipa)) static int over_return(int x) {
  int r;
  __asm__("sub $128, %%rsp\n mov $3, %[r]\n lea 1f(%%rip), %%rax\n call 2f\n mov $100, %[r]\n 1: jmp 3f\n 2: mov %%rax, (%%rsp)\n ret\n 3: add $128, %%rsp\n"
          : [r] "=&r"(r) : : "rax", "cc", "memory");
  return r * x;
}
// The program counter by a call, and data by the distance from there.
__attribute__((noinline, noipa)) static int by_distance(int x) {
  static const int numbers[4] = {5, 6, 7, 8};
  const int *p;
  __asm__("sub $128, %%rsp\n call 1f\n 1: pop %[p]\n add $%c[numbers]-1b, %[p]\n add $128, %%rsp\n" : [p] "=&r"(p) : [numbers] "i"(numbers) : "cc", "memory");
  return p[x & 3];
}
int main(int argc, char **argv) {
  unsigned sum = 0;
  for (int i = 0; i < 5000; i++) sum = sum * 31 + by_return(i) + over_return(i) + by_distance(i);
  printf("%u\n", sum);
  return 0;
}

//# about: a hand-written function whose result is a flag: nothing may be put between its comparison and its return
//# not aarch64: it is written for x86-64
//# stdout: 11 equal of 100
//# pinned: returns_a_flag
//# moved: asks
#include <stdio.h>

int returns_a_flag_is_ten(int);
__asm__(
    ".text\n"
    ".type returns_a_flag,@function\n"
    "returns_a_flag:\n"
    "  .cfi_startproc\n"
    "  cmp $10, %edi\n"
    "  jb 1f\n"
    "  cmp $99, %edi\n"
    "  ja 2f\n"
    "  cmp $10, %edi\n"
    "2: ret\n"
    "1: cmp %edi, %edi\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size returns_a_flag,.-returns_a_flag\n"
    ".type returns_a_flag_is_ten,@function\n"
    "returns_a_flag_is_ten:\n"
    "  .cfi_startproc\n"
    "  call returns_a_flag\n"
    "  je 1f\n"
    "  xor %eax, %eax\n"
    "  ret\n"
    "1: mov $1, %eax\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size returns_a_flag_is_ten,.-returns_a_flag_is_ten\n");

__attribute__((noinline)) int asks(int x) { return returns_a_flag_is_ten(x); }

int main(int argc, char **argv) {
  int n = 0;
  for (int i = 0; i < 100; i++)
    n += asks(i);
  printf("%d equal of 100\n", n);
  return 0;
}

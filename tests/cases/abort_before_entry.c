//# about: a part split off by the compiler ends with a call that does not return, and the entry of its own function is the next byte
//# not aarch64: written for x86-64
//# count total: 40
//# moved: total
#include <stdio.h>
#include <stdlib.h>

__asm__(".text\n"
        ".type total.cold,@function\n"
        "total.cold:\n"
        "  .cfi_startproc\n"
        "  .cfi_def_cfa_offset 16\n"
        "  call abort@PLT\n"
        "  .cfi_endproc\n"
        "  .size total.cold,.-total.cold\n"
        ".globl total\n"
        ".type total,@function\n"
        "total:\n"
        "  .cfi_startproc\n"
        "  sub $8,%rsp\n"
        "  .cfi_def_cfa_offset 16\n"
        "  xor %eax,%eax\n"
        "  test %edi,%edi\n"
        "  js total.cold\n"
        "  je 2f\n"
        "1: lea (%rax,%rdi,2),%eax\n"
        "  dec %edi\n"
        "  jne 1b\n"
        "2: add $8,%rsp\n"
        "  .cfi_def_cfa_offset 8\n"
        "  ret\n"
        "  .cfi_endproc\n"
        "  .size total,.-total\n");
int total(int n);

int main(int argc, char **argv) {
  unsigned h = 0;
  for (int i = 0; i < 40; i++) h = h * 31 + (unsigned)total(i * argc);
  printf("%x\n", h);
  if (argc > 1) total(-1);
  return 0;
}

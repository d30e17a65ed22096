//# about: text between functions that would jump into the beginning of one if it were code
//# not aarch64: written for x86-64
//# moved: behind
//# count behind: 1000
//# stdout: 5500500 13
#include <stdio.h>

__asm__(
    ".text\n"
    ".type before, @function\n"
    "before: .cfi_startproc\n  mov .Ltext(%rip), %al\n  movzbl %al, %eax\n  and $15, %eax\n  ret\n  .cfi_endproc\n"
    ".size before, .-before\n"
    "  .byte 0x75, behind + 2 - . - 1\n" /* jne, if it were one; nobody comes here */
    ".Ltext: .ascii \"Multiplication for x86_64, by those who need it\"\n"
    "  .byte 0xc3\n"
    "  .balign 16\n"
    ".type behind, @function\n"
    "behind: .cfi_startproc\n  mov $5000, %eax\n  test %edi, %edi\n  jz 1f\n  add %edi, %eax\n1: ret\n  .cfi_endproc\n"
    ".size behind, .-behind\n");
extern int before(void), behind(int);

int main(int argc, char **argv) {
  long sum = 0;
  for (int i = 0; i < 1000; i++) sum += behind(i + 1);
  printf("%ld %d\n", sum, before());
  return 0;
}

//# about: calls to the next instruction, return addresses read, pushed and popped, returns as jumps, a frame pointer chain by hand
//# not aarch64: written for x86-64
//# stdout: 1 12 30 8
#include <stdio.h>

__asm__(
    ".text\n"
    ".type own_address, @function\n" /* the old way to get one's own address: call to the next instruction */
    "own_address: call 1f\n1: pop %rax\n  lea 1b(%rip), %rdx\n  cmp %rdx, %rax\n  sete %al\n  movzbl %al, %eax\n  ret\n"
    ".size own_address, .-own_address\n"
    ".type skips, @function\n" /* looks at the byte after its call, and returns behind it */
    "skips: pop %rdx\n  movzbl (%rdx), %eax\n  inc %rdx\n  push %rdx\n  ret\n"
    ".size skips, .-skips\n"
    ".type inline_data, @function\n"
    "inline_data: sub $8, %rsp\n  call skips\n  .byte 12\n  add $8, %rsp\n  ret\n"
    ".size inline_data, .-inline_data\n"
    ".type push_return, @function\n" /* jump by push and ret */
    "push_return: lea 2f(%rip), %rax\n  push %rax\n  mov $20, %eax\n  ret\n2: add $10, %eax\n  ret\n"
    ".size push_return, .-push_return\n"
    ".type helper_called, @function\n" /* a call with its own convention: argument in r11, carry as result */
    "odd_helper: bt $0, %r11\n  ret\n"
    "helper_called: xor %eax, %eax\n  mov $15, %ecx\n1: mov %rcx, %r11\n  call odd_helper\n  adc $0, %eax\n  dec %ecx\n  jnz 1b\n  ret\n"
    ".size helper_called, .-helper_called\n");
extern int own_address(void), inline_data(void), push_return(void), helper_called(void);

int main(int argc, char **argv) {
  printf("%d %d %d %d\n", own_address(), inline_data(), push_return(), helper_called());
  return 0;
}

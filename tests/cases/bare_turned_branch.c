//# about: without kept relocations: code that only a jump table leads to is run in the old body, and its copy has a conditional branch turned round; debug information is updated all the same
//# flags: -g
//# in old code: step
//# debug: updated
//# not aarch64: without kept relocations only files for x86-64 are rewritten, and the code is x86-64's
//# stdout: 2861092577 1777
#include <stdio.h>

int step(int op, int x);
/* The branch of case 0 has four bytes of displacement in both places, and falls into what runs most. */
__asm__(
    ".text\n.skip 512,0xcc\n"
    ".globl step\n.type step,@function\n"
    "step:\n.cfi_startproc\n"
    "cmp $2,%edi\nje 4f\ncmp $1,%edi\nja 2f\n"
    "mov %edi,%edi\nlea 9f(%rip),%rdx\nmov %rdx,-8(%rsp)\nmov -8(%rsp),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n"
    "0: test $1,%esi\njne 3f\n"
    "2: lea 1(%rsi),%eax\nret\n"
    "4: mov %esi,%eax\n.rept 60\nimul $77,%eax,%eax\n.endr\nret\n"
    "3: mov $7,%eax\nret\n"
    "1: mov $9,%eax\nret\n"
    ".cfi_endproc\n.size step,.-step\n"
    ".section .rodata\n.p2align 2\n9: .long 0b-9b\n.long 1b-9b\n.text\n");

int main(int argc, char **argv) {
  (void)argv;
  unsigned sum = 0, rare = 0;
  for (int i = 0; i < 300; i++) sum += (unsigned)step(2 + i * argc % 5, i % 7);
  for (int i = 0; i < 75; i++) rare += (unsigned)step(i & 1, i);
  printf("%u %u\n", sum, rare);
  return 0;
}

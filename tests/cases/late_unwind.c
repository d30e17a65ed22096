//# about: a function whose unwind entry begins behind its first instruction, as where a macro puts endbr64 in front of .cfi_startproc
//# not aarch64: instructions of x86-64
//# pinned: late
//# stdout: 5050
#include <stdio.h>

__asm__(
    ".text\n.p2align 4\n.globl late\n.type late,@function\nlate:\n endbr64\n"
    ".cfi_startproc\n xorl %eax,%eax\n"
    "1: addl %edi,%eax\n decl %edi\n jg 1b\n ret\n.cfi_endproc\n.size late,.-late\n.p2align 4\n");
int late(int n);

int main(int argc, char **argv) {
  (void)argc, (void)argv;
  printf("%d\n", late(100));
  return 0;
}

//# about: without kept relocations: code without an unwind entry or a symbol's size jumps behind the first byte of a function's entry
//# not aarch64: instructions of x86-64
//# led: landed
//# stdout: 12 11
#include <stdio.h>

__asm__(
    ".text\n.p2align 4\n"
    /* No size, no unwind entry: hand-written code as there is in old libraries. */
    ".globl lander\n.hidden lander\nlander: movl %edi,%eax\n jmp .Llanding\n"
    ".p2align 4\n"
    ".globl landed\n.hidden landed\n.type landed,@function\nlanded:\n.cfi_startproc\n"
    "leal 1(%rdi),%eax\n"
    ".Llanding: addl $3,%eax\n addl $4,%eax\n ret\n.cfi_endproc\n.size landed,.-landed\n");
extern int landed(int), lander(int);

int main(int argc, char **argv) {
    printf("%d %d\n", landed(4), lander(4));
    return 0;
}

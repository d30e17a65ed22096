//# about: without kept relocations: code with neither a symbol nor an unwind entry jumps behind the first byte of a function's entry
//# not aarch64: instructions of x86-64
//# led: landed
//# stdout: 12 11
#include <stdio.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

__asm__(
    ".text\n.p2align 4\n"
    /* No symbol, no unwind entry: hand-written code as there is in old libraries. */
    ".Llander: movl %edi,%eax\n jmp .Llanding\n"
    ".p2align 4\n"
    ".globl landed\n.hidden landed\n.type landed,@function\nlanded:\n.cfi_startproc\n"
    "leal 1(%rdi),%eax\n"
    ".Llanding: addl $3,%eax\n addl $4,%eax\n ret\n.cfi_endproc\n.size landed,.-landed\n"
    ".pushsection .data.rel.ro,\"aw\"\n.p2align 3\n.globl lander\n.hidden lander\nlander: .quad .Llander\n.popsection\n");
extern int landed(int);
extern int (*const lander)(int);

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    printf("%d %d\n", landed(4), lander(4));
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

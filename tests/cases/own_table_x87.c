//# about: without kept relocations: an instruction of the x87 without operands between the mask of an index and the load of the entry
//# own tables: rounded
//# not aarch64: the code is x86-64's
//# stdout: 1 2 3 4 1 2 3 4
#include <stdio.h>

int rounded(unsigned mode, double x);

__asm__(
    ".text\n.skip 512,0xcc\n.globl rounded\n.type rounded,@function\nrounded:\n.cfi_startproc\n"
    "movsd %xmm0,-8(%rsp)\nfldl -8(%rsp)\nmovzwl %di,%eax\nshr $10,%eax\nand $3,%eax\nfld %st(0)\nfabs\nfildl -8(%rsp)\n"
    "lea .Lrounded(%rip),%r10\nmovslq (%r10,%rax,4),%rax\nadd %r10,%rax\njmp *%rax\n"
    "0: mov $1,%eax\njmp 9f\n1: mov $2,%eax\njmp 9f\n2: mov $3,%eax\njmp 9f\n3: mov $4,%eax\n"
    "9: fstp %st(0)\nfstp %st(0)\nfstp %st(0)\nret\n"
    ".cfi_endproc\n.size rounded,.-rounded\n"
    ".section .rodata\n.p2align 3\n.Lrounded: .long 0b-.Lrounded,1b-.Lrounded,2b-.Lrounded,3b-.Lrounded\n.text\n");

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    for (int i = 0; i < 8; i++)
        printf("%d%s", rounded((unsigned)(i * argc) << 10, i - 4.5), i < 7 ? " " : "\n");
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

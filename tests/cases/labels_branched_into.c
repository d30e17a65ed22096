//# about: labels that a program has stored, where bytes of no function look like a branch behind the first byte of one: no jump to new code fits there
//# in old code: threaded
//# not aarch64: the code is x86-64's
//# stdout: 148
#include <stdio.h>

/* Runs words of code: addresses of labels. */
int threaded(const void *const *code);
extern const void *const threaded_labels[4];

__asm__(
    ".text\n.skip 512,0xcc\n.p2align 4\n.globl threaded\n.type threaded,@function\nthreaded:\n.cfi_startproc\n"
    "xor %eax,%eax\njmp 8f\n"
    "1: add $5,%eax\njmp 8f\n"
    "2: lea 3(%rax,%rax),%eax\n"
    "8: add $8,%rdi\njmp *-8(%rdi)\n"
    "3: shl $2,%eax\nadd $8,%rdi\njmp *-8(%rdi)\n"
    "4: add $1,%eax\nsub $1,%eax\nret\n"
    ".cfi_endproc\n.size threaded,.-threaded\n"
    /* A short branch to the second instruction's inside of label 1, and to that of 3. */
    ".byte 0xeb\n.byte 1b+3-.-1\n.byte 0xeb\n.byte 3b+3-.-1\n"
    ".section .data.rel.ro,\"aw\"\n.p2align 3\n.globl threaded_labels\n.hidden threaded_labels\nthreaded_labels: .quad 1b,2b,3b,4b\n.text\n.skip 512,0xcc\n");

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int one) {
    static const void *code[8];
    static const char program[] = {0, 1, 0, 0, 1, 2, 0, 3};
    for (int i = 0; i < 8; i++)
        code[i] = threaded_labels[program[i * one]];
    return threaded(code);
}

int main(int argc, char **argv) {
    printf("%d\n", drive(argc) - 53);
    return 0;
}

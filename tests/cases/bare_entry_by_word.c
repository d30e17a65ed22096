//# about: without kept relocations: a pointer in data leads behind the first byte of a function's entry, and code jumps there
//# not aarch64: instructions of x86-64
//# stdout: 8 18 108
#include <stdio.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

/* The second entry is three bytes behind the first: a jump over the first would overwrite it. */
__asm__(
    ".text\n.p2align 4\n.globl doubly\n.hidden doubly\n.type doubly,@function\ndoubly:\n.cfi_startproc\n"
    "leal 5(%rdi),%edi\n"
    ".Lsecond: leal 3(%rdi),%eax\n"
    "testl %eax,%eax\n jns 1f\n negl %eax\n"
    "1: ret\n.cfi_endproc\n.size doubly,.-doubly\n"
    ".pushsection .data.rel.ro,\"aw\"\n.p2align 3\n.globl second\n.hidden second\nsecond: .quad .Lsecond\n.popsection\n");
extern int doubly(int);
extern int (*const second)(int);

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    int (*volatile by)(int) = second;
    printf("%d %d %d\n", doubly(0), doubly(10), by(105));
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

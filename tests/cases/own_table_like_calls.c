//# about: without kept relocations: a mask lets more through than a table has, and what follows the table looks like entries that lead to a call, or to a jump, through a table of functions by the register with the target
//# own tables: emulated
//# in old code: handed
//# not aarch64: the code is x86-64's
//# stdout: 12 23 34 45 12 23 34 45
#include <stdio.h>

int emulated(unsigned op, int x), handed(unsigned op, int x);

int at_a(int x) { return x + 1; }
int at_b(int x) { return x + 2; }
int at_c(int x) { return x + 3; }
int at_d(int x) { return x + 4; }
__attribute__((visibility("hidden"))) int (*const emulated_calls[4])(int) = {at_a, at_b, at_c, at_d};

#define JUMP(table) "lea " table "(%rip),%rcx\nmov %edi,%eax\nmov %esi,%edi\nmovslq (%rcx,%rax,4),%rax\nadd %rcx,%rax\nlea emulated_calls(%rip),%rdx\njmp *%rax\n" \
    "0: mov $0,%eax\njmp 8f\n1: mov $1,%eax\njmp 8f\n2: mov $2,%eax\njmp 8f\n3: mov $3,%eax\n8: lea emulated_calls(%rip),%rdx\n"
#define TABLE(table) ".section .rodata\n.p2align 3\n" table ": .long 0b-" table ",1b-" table ",2b-" table ",3b-" table ",4b-" table ",4b-" table ",4b-" table ",4b-" table "\n.text\n"
__asm__(
    ".text\n.skip 512,0xcc\n.globl emulated\n.type emulated,@function\nemulated:\n.cfi_startproc\n"
    "sub $8,%rsp\n.cfi_adjust_cfa_offset 8\nand $7,%edi\n" JUMP(".Lemulated")
    "4: call *(%rdx,%rax,8)\nadd $8,%rsp\n.cfi_adjust_cfa_offset -8\nret\n"
    ".cfi_endproc\n.size emulated,.-emulated\n" TABLE(".Lemulated")
    ".p2align 4\n.globl handed\n.type handed,@function\nhanded:\n.cfi_startproc\nand $7,%edi\n" JUMP(".Lhanded")
    "4: jmp *(%rdx,%rax,8)\n"
    ".cfi_endproc\n.size handed,.-handed\n" TABLE(".Lhanded"));

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    for (int i = 0; i < 8; i++)
        printf("%d%s", (i < 4 ? emulated : handed)(i * argc % 4, i % 4 * 10 + 11), i < 7 ? " " : "\n");
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

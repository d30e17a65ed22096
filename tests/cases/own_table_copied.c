//# about: without kept relocations: the register with an entry of a jump table gets a result of 8 bits, and is copied whole, as clang does it
//# own tables: alike
//# not aarch64: the code is x86-64's
//# stdout: 1 0 0 1 1 0 0 1 1 0 0 1
#include <stdio.h>

unsigned char alike(unsigned op, int x);

__asm__(
    ".text\n.skip 512,0xcc\n.globl alike\n.type alike,@function\nalike:\n.cfi_startproc\n"
    "cmp $3,%edi\nja 9f\nmov %edi,%edi\nlea .Lalike(%rip),%r10\nmovslq (%r10,%rdi,4),%r9\nadd %r10,%r9\nmov $1,%r8d\njmp *%r9\n"
    "0: cmp $6,%esi\nsete %r9b\nmov %r9d,%edx\nand %r8b,%dl\nmov %rdx,%rcx\nmovzbl %cl,%eax\nret\n"
    "1: cmp $7,%esi\nsetg %r9b\nmov %r9d,%eax\nxor $1,%al\nret\n"
    "2: xor %eax,%eax\ntest %esi,%esi\nsetne %al\nret\n"
    "3: mov %r8d,%eax\nret\n"
    "9: xor %eax,%eax\nret\n"
    ".cfi_endproc\n.size alike,.-alike\n"
    ".section .rodata\n.p2align 3\n.Lalike: .long 0b-.Lalike,1b-.Lalike,2b-.Lalike,3b-.Lalike\n.text\n");

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    static const int of[4] = {6, 8, 0, 3};
    for (int i = 0; i < 12; i++)
        printf("%d%s", alike(i % 4, of[i % 4] * argc), i < 11 ? " " : "\n");
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

//# about: without kept relocations: entries of a jump table lead to code that gives the low byte of a register a value and reads no more of it, as `cmpxchg` and `mul` of bytes do; and to a breakpoint, as crashes of Firefox are
//# own tables: bytes
//# not aarch64: the code is x86-64's
//# stdout: 21 107 42 108 30 109
#include <stdio.h>

/* In %rax is what was loaded, and above %al that stays. */
int bytes(unsigned op, unsigned char *at);

__asm__(
    ".text\n.skip 512,0xcc\n.p2align 4\n.globl bytes\n.type bytes,@function\nbytes:\n.cfi_startproc\n"
    "cmp $4,%edi\nja 8f\nmov %edi,%eax\nlea .Lbytes(%rip),%rcx\nmovslq (%rcx,%rax,4),%rax\nadd %rcx,%rax\njmp *%rax\n"
    /* 7 becomes 107, and stays 107. */
    "0: mov $107,%ecx\nmov $7,%al\nlock cmpxchg %cl,(%rsi)\nsete %al\nmovzbl %al,%eax\nadd $20,%eax\nret\n"
    /* The product of 2 and 21. */
    "1: incb (%rsi)\nmov $2,%al\nmov $21,%dl\nmul %dl\nmovzbl %al,%eax\nret\n"
    "2: incb (%rsi)\nmov $30,%al\nmov %rsi,%rdi\nxor %edx,%edx\ncmp %dl,%al\nsetne %dl\nmovzbl %al,%eax\nret\n"
    "3: int3\njmp 8f\n"
    "4: mov %rsi,%rdi\nmov $9,%al\nscasb\nstosb\nsete %al\nmovzbl %al,%eax\nret\n"
    "8: xor %eax,%eax\nret\n"
    ".cfi_endproc\n.size bytes,.-bytes\n.section .rodata\n.p2align 2\n"
    ".Lbytes: .long 0b-.Lbytes,1b-.Lbytes,2b-.Lbytes,3b-.Lbytes,4b-.Lbytes\n.text\n");

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int one) {
    unsigned char at = 7;
    for (int i = 0; i < 3; i++) {
        int result = bytes((unsigned)(i * one), &at);
        printf("%d %d%s", result, at, i < 2 ? " " : "\n");
    }
    unsigned char two[2] = {9, 1};
    return bytes((unsigned)(4 * one), two) == 1 && two[1] == 9 ? 0 : 1;
}

int main(int argc, char **argv) {
    return drive(argc);
}

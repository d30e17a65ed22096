//# about: without kept relocations: what a jump through a table leaves in registers, the target's address and the distance that was loaded, is read where entries lead, or spilled; flags that the addition sets are read at one
//# own tables: spilled both carried again
//# not aarch64: the code is x86-64's
//# stdout: 11 1 12 1 21 1 1 23 31 1 33
#include <stdio.h>

/* 1 adds 10 to the argument and keeps the stack aligned by a push; 3 reads the target's address. */
int spilled(unsigned op, int x);
/* The sum is in another register than the distance, and both are read at 1 and 2. */
int both(unsigned op, int x);
/* The carry of the addition is read at 1; what it is depends on where the table is. */
int carried(unsigned op, int x);
/* It is compared in memory, so 256 values are possible, and what follows the table is another one. */
int again(const unsigned char *op, int x);

__attribute__((noinline, noipa)) int deeper(int x) { return x + 10; }

#define BEGIN(name) ".text\n.p2align 4\n.globl " name "\n.type " name ",@function\n" name ":\n.cfi_startproc\n"
#define END(name) ".cfi_endproc\n.size " name ",.-" name "\n.section .rodata\n.p2align 2\n"
__asm__(
    ".text\n.skip 512,0xcc\n"
    BEGIN("spilled")
    "cmp $3,%edi\nja 8f\nmov %edi,%eax\nlea .Lspilled(%rip),%rcx\nmovslq (%rcx,%rax,4),%rax\nadd %rcx,%rax\njmp *%rax\n"
    "0: lea 11(%rsi),%eax\nret\n"
    "1: push %rax\n.cfi_adjust_cfa_offset 8\nmov %esi,%edi\ncall deeper\npop %rdx\n.cfi_adjust_cfa_offset -8\n"
    "lea .Lspilled(%rip),%rcx\nsub %rcx,%rdx\nmovslq 4(%rcx),%rcx\ncmp %rcx,%rdx\nsete %al\nmovzbl %al,%eax\nret\n"
    "2: lea 12(%rsi),%eax\nret\n"
    "3: sub %rcx,%rax\nmovslq 12(%rcx),%rcx\ncmp %rcx,%rax\nsete %al\nmovzbl %al,%eax\nret\n"
    "8: xor %eax,%eax\nret\n"
    END("spilled") ".Lspilled: .long 0b-.Lspilled,1b-.Lspilled,2b-.Lspilled,3b-.Lspilled\n"
    BEGIN("both")
    "cmp $3,%edi\nja 8f\nmov %edi,%eax\nlea .Lboth(%rip),%r10\nmovslq (%r10,%rax,4),%rax\nadd %rax,%r10\njmp *%r10\n"
    "0: lea 21(%rsi),%eax\nret\n"
    "1: sub %rax,%r10\nlea .Lboth(%rip),%rcx\ncmp %rcx,%r10\nsete %al\nmovzbl %al,%eax\nret\n"
    "2: lea .Lboth(%rip),%rcx\nmovslq 8(%rcx),%rdx\ncmp %rdx,%rax\nsete %al\nsub %rdx,%r10\ncmp %rcx,%r10\nsete %cl\n"
    "and %ecx,%eax\nmovzbl %al,%eax\nret\n"
    "3: lea 23(%rsi),%eax\nret\n"
    "8: xor %eax,%eax\nret\n"
    END("both") ".Lboth: .long 0b-.Lboth,1b-.Lboth,2b-.Lboth,3b-.Lboth\n"
    BEGIN("carried")
    "cmp $2,%edi\nja 8f\nmov %edi,%eax\nlea .Lcarried(%rip),%rcx\nmovslq (%rcx,%rax,4),%rax\nadd %rcx,%rax\njmp *%rax\n"
    "0: lea 31(%rsi),%eax\nret\n"
    "1: setc %al\nmovzbl %al,%eax\nor $1,%eax\nret\n"
    "2: lea 33(%rsi),%eax\nret\n"
    "8: xor %eax,%eax\nret\n"
    END("carried") ".Lcarried: .long 0b-.Lcarried,1b-.Lcarried,2b-.Lcarried\n"
    BEGIN("again")
    "cmpb $2,(%rdi)\nja 8f\nmovzbl (%rdi),%eax\nlea .Lagain(%rip),%rcx\nmovslq (%rcx,%rax,4),%rax\nadd %rcx,%rax\njmp *%rax\n"
    "0: lea 1(%rsi),%eax\nret\n"
    "1: movzbl %sil,%edx\nand $1,%edx\nlea .Lother(%rip),%rcx\nmovslq (%rcx,%rdx,4),%rax\nadd %rcx,%rax\njmp *%rax\n"
    "2: push %rax\n.cfi_adjust_cfa_offset 8\nmov %esi,%edi\ncall deeper\nadd $8,%rsp\n.cfi_adjust_cfa_offset -8\nret\n"
    "3: lea 2(%rsi),%eax\nret\n"
    "4: lea 3(%rsi),%eax\nret\n"
    "8: xor %eax,%eax\nret\n"
    END("again") ".Lagain: .long 0b-.Lagain,1b-.Lagain,2b-.Lagain\n.Lother: .long 3b-.Lother,4b-.Lother\n.zero 1012\n.text\n");

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int one) {
    for (int i = 0; i < 4; i++)
        printf("%d ", spilled(i * one, 0));
    for (int i = 0; i < 4; i++)
        printf("%d ", both(i * one, 0));
    for (int i = 0; i < 3; i++)
        printf("%d%s", carried(i * one, 0), i < 2 ? " " : "\n");
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char op = (unsigned char)(i * one);
        sum += again(&op, i);
    }
    return sum == 1 + 4 + 12 + 0 ? 0 : sum;
}

int main(int argc, char **argv) {
    return drive(argc);
}

//# about: without kept relocations: tables of labels of position-independent programs: a mask lets more through than the table has; the label is loaded over its index, and beside it; one table for several loads; a base that was on the stack; a base that the label is loaded over
//# kinds: gcc-pie clang-pie gcc-static-pie gcc-so
//# own tables: masked beside
//# in old code: spilled over_base
//# stdout: 14 14 14 14
#include <stdio.h>

int masked(const unsigned char *code), beside(const unsigned char *code), spilled(const unsigned char *code), over_base(const unsigned char *code);

#define FUNCTION(name, code) ".globl " #name "\n.type " #name ",@function\n" #name ":\n.cfi_startproc\n" code ".cfi_endproc\n.size " #name ",.-" #name "\n.p2align 4\n"
#define TABLE(label) ".section .data.rel.ro,\"aw\",@progbits\n.p2align 3\n" label ": .quad 0b,1b,2b,3b,4b,5b\n.text\n"
#define LABELS(next) "0: add $1,%eax\n" next "1: add $2,%eax\n" next "2: add $3,%eax\n" next "3: add %eax,%eax\n" next "4: sub $4,%eax\n" next "5: ret\n"

#define FETCH "movzbl (%rdi),%edx\ninc %rdi\nand $7,%edx\n"
#define MASKED FETCH "mov (%r8,%rdx,8),%rdx\njmp *%rdx\n"
#define BESIDE FETCH "mov (%r13,%rdx,8),%r10\ncmp $100,%eax\njmp *%r10\n"
#define SPILLED FETCH "mov -8(%rsp),%r8\nmov (%r8,%rdx,8),%rdx\njmp *%rdx\n"
#define OVER_BASE FETCH "lea .Ll4(%rip),%rcx\nmov (%rcx,%rdx,8),%rcx\njmp *%rcx\n"

__asm__(
    ".text\n.skip 512,0xcc\n"
    FUNCTION(masked, "xor %eax,%eax\nlea .Ll1(%rip),%r8\n" MASKED LABELS(MASKED))
    TABLE(".Ll1")
    FUNCTION(beside, "push %r13\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %r13,0\nxor %eax,%eax\nlea .Ll2(%rip),%r13\n" BESIDE
        "0: add $1,%eax\n" BESIDE "1: add $2,%eax\n" BESIDE "2: add $3,%eax\n" BESIDE "3: add %eax,%eax\n" BESIDE "4: sub $4,%eax\n" BESIDE
        "5: pop %r13\n.cfi_adjust_cfa_offset -8\n.cfi_restore %r13\nret\n")
    TABLE(".Ll2")
    FUNCTION(spilled, "xor %eax,%eax\nlea .Ll3(%rip),%r8\nmov %r8,-8(%rsp)\n" SPILLED LABELS(SPILLED))
    TABLE(".Ll3")
    FUNCTION(over_base, "xor %eax,%eax\n" OVER_BASE LABELS(OVER_BASE))
    TABLE(".Ll4"));

/* ((1 + 2 + 3) * 2 - 4 + 1) * 2 - 4 = 14 */
__attribute__((noinline)) int drive(int (*run)(const unsigned char *)) {
    static const unsigned char code[] = {0, 1, 2, 3, 4, 0, 3, 4, 5};
    int result = 0;
    for (int i = 0; i < 100; i++) result = run(code);
    return result;
}

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    printf("%d %d %d %d\n", drive(masked), drive(beside), drive(spilled), drive(over_base));
    return 0;
}

//# about: without kept relocations: entries count from a label that is not the table; a mask lets more through than the table has, and numbers follow it that are printed; two jumps through one table; a base that was on the stack; an index that is scaled before; one whose bytes were swapped
//# own tables: two_bases masked shared swapped
//# in old code: spilled scaled
//# not aarch64: the code is x86-64's
//# stdout: 510 530 510 510 510 510 0.500000 2.250000
#include <stdio.h>

int two_bases(int op, int x), masked(int op, int x), shared(int op, int x), spilled(int op, int x), scaled(int op, int x), swapped(int op, int x);
extern const double numbers[2];

#define CASES "0: lea 1(%rsi),%eax\nret\n1: lea 2(%rsi),%eax\nret\n2: lea 3(%rsi),%eax\nret\n3: lea 4(%rsi),%eax\nret\n4: lea 5(%rsi),%eax\nret\n5: mov %esi,%eax\nret\n"
#define FUNCTION(name, code) ".globl " #name "\n.type " #name ",@function\n" #name ":\n.cfi_startproc\n" code CASES ".cfi_endproc\n.size " #name ",.-" #name "\n.p2align 4\n"
#define TABLE(label, base) ".p2align 3\n" label ": .long 0b-" base ",1b-" base ",2b-" base ",3b-" base ",4b-" base "\n"

__asm__(
    ".text\n.skip 512,0xcc\n"
    FUNCTION(two_bases, "cmp $4,%edi\nja 5f\nmov %edi,%edi\nlea .Lt1(%rip),%rdx\nlea .Lb1(%rip),%rcx\nmovslq (%rdx,%rdi,4),%rax\nadd %rcx,%rax\njmp *%rax\n.Lb1: ud2\n")
    ".section .rodata\n" TABLE(".Lt1", ".Lb1") ".text\n"
    FUNCTION(masked, "and $7,%edi\nlea .Lt2(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n")
    ".section .rodata\n" TABLE(".Lt2", ".Lt2") ".globl numbers\nnumbers: .double 0.5, 2.25\n.text\n"
    FUNCTION(shared, "cmp $4,%edi\nja 5f\nlea .Lt3(%rip),%rdx\nmov %edi,%edi\ntest $1,%esi\nje 7f\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n7: movslq (%rdx,%rdi,4),%rcx\nadd %rdx,%rcx\njmp *%rcx\n")
    ".section .rodata\n" TABLE(".Lt3", ".Lt3") ".text\n"
    FUNCTION(spilled, "cmp $4,%edi\nja 5f\nmov %edi,%edi\nlea .Lt4(%rip),%rdx\nmov %rdx,-8(%rsp)\nmov -8(%rsp),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n")
    ".section .rodata\n" TABLE(".Lt4", ".Lt4") ".text\n"
    FUNCTION(scaled, "cmp $4,%edi\nja 5f\nmov %edi,%edi\nlea 0(,%rdi,4),%rdx\nlea .Lt5(%rip),%rax\nmov (%rdx,%rax),%eax\ncltq\nlea .Lt5(%rip),%rdx\nadd %rdx,%rax\njmp *%rax\n")
    ".section .rodata\n" TABLE(".Lt5", ".Lt5") ".text\n"
    FUNCTION(swapped, "bswap %edi\ncmp $4,%edi\nja 5f\nlea .Lt6(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n")
    ".section .rodata\n" TABLE(".Lt6", ".Lt6") ".text\n");

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    int sum[6] = {0};
    for (int i = 0; i < 30; i++) {
        sum[0] += two_bases(i % 6, i);
        sum[1] += masked(i * argc % 5, i) + (i % 6 == 5);
        sum[2] += shared(i % 6, i);
        sum[3] += spilled(i % 6, i);
        sum[4] += scaled(i % 6, i);
        sum[5] += swapped(__builtin_bswap32(i % 6), i);
    }
    printf("%d %d %d %d %d %d %f %f\n", sum[0], sum[1], sum[2], sum[3], sum[4], sum[5], numbers[0], numbers[1]);
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

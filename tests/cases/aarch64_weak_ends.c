//# about: AArch64: a jump to a weak function that is not defined, which lld lets run into what lies behind: the program would end there
//# kinds: aarch64-clang-static aarch64-gcc-static
//# count hot: 500
//# stdout: 124750
#include <stdio.h>

static int sum;

__attribute__((noinline, noipa)) void hot(int x) { sum += x; }
int ends(int x);
__asm__(".section .text.ends,\"ax\",@progbits\n"
        ".p2align 6\n"
        ".weak absent\n"
        ".globl ends\n"
        ".type ends,%function\n"
        "ends:\n"
        ".cfi_startproc\n"
        "stp x29, x30, [sp, #-16]!\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset 29, -16\n"
        ".cfi_offset 30, -8\n"
        "mov x29, sp\n"
        "cbz w0, 1f\n"
        "bl hot\n"
        "1:\n"
        "mov x2, x0\n"
        "ldp x29, x30, [sp], #16\n"
        ".cfi_restore 29\n"
        ".cfi_restore 30\n"
        ".cfi_def_cfa_offset 0\n"
        "b absent\n"
        ".cfi_endproc\n"
        ".size ends, .-ends\n"
        ".zero 16\n"
        ".text\n");
__attribute__((noinline, noipa, aligned(64))) int behind(int x) { return x + 1; }

int main(int argc, char **argv) {
    (void)argv;
    for (int i = 0; i < 500; i++) hot(i);
    if (argc > 100) return ends(argc) + behind(argc);
    printf("%d\n", sum);
    return 0;
}

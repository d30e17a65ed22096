//# about: AArch64: what linkers relax (loads from the global offset table into sums, pairs into one adr), and erratum 843419, whose loads go by a veneer
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie aarch64-clang-pie aarch64-clang-static aarch64-clang-so
//# flags: -fPIC
//# link: -Wl,--fix-cortex-a53-843419
//# stdout: 4950 9900 100 7
//# moved: steps
//# count steps: 100
#include <stdio.h>

// Named by the outside, so compilers load the addresses from the global offset table, and linkers know better.
__attribute__((visibility("hidden"))) extern long first_word, second_word;
__attribute__((visibility("hidden"))) extern long (*chosen)(long);
long first_word, second_word;
__attribute__((visibility("hidden"), noinline, noipa)) long twice(long n) { return 2 * n; }
long (*chosen)(long) = twice;

__attribute__((noinline, noipa)) void steps(long n) {
    long *a, *b;
    __asm__("adrp %0, :got:first_word\n ldr %0, [%0, :got_lo12:first_word]" : "=r"(a));
    __asm__("adrp %0, second_word\n add %0, %0, :lo12:second_word" : "=r"(b));
    *a += n;
    *b += chosen(n);
}

// adrp in the last words of a page, a store, and a load or store by the page: Cortex-A53 may get it wrong, linkers move the last one into a veneer.
__asm__(".pushsection .text.erratum, \"ax\", %progbits\n .p2align 12\n .globl user\n .hidden user\n .type user, %function\n"
        " .zero 4096 - 8 - 8\n"
        "user:\n .cfi_startproc\n hint #34\n nop\n"
        " adrp x1, erratum_word\n str xzr, [sp, #-16]!\n .cfi_def_cfa_offset 16\n ldr x2, [x1, :lo12:erratum_word]\n add x2, x2, x0\n"
        " str x2, [x1, :lo12:erratum_word]\n add sp, sp, #16\n .cfi_def_cfa_offset 0\n mov x0, x2\n ret\n .cfi_endproc\n .size user, . - user\n .popsection\n"
        ".pushsection .bss.erratum, \"aw\", %nobits\n .p2align 3\n .globl erratum_word\n .hidden erratum_word\n erratum_word: .zero 8\n .popsection");
long user(long n);

int main(int argc, char **argv) {
    long last = 0;
    for (long i = 0; i < 100; i++) { steps(i); last = user(1); }
    printf("%ld %ld %ld %d\n", first_word, second_word, last, 6 + argc);
    return 0;
}

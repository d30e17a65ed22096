//# about: AArch64: tbz and cbz whose targets are out of reach once the cold parts lie behind more than 32 KiB of hot code
//# kinds: aarch64-gcc-pie aarch64-gcc-static aarch64-clang-nopie aarch64-clang-so
//# stdout: 2023
//# moved: tested filler
//# count tested: 4000
#include <stdio.h>

// 64 KiB that run.
__attribute__((noinline, noipa)) long filler(long x) {
    __asm__ volatile(".rept 16384\n mov x9, x9\n .endr\n add %0, %0, #1" : "+r"(x) : : "x9");
    return x;
}

__attribute__((noinline, noipa)) long tested(unsigned long x) {
    long s = 0;
    __asm__ volatile(
        "tbz %1, #0, 1f\n add %0, %0, #1\n"
        "1: tbnz %1, #40, 3f\n"
        "2: tbnz %w1, #31, 4f\n cbz %1, 5f\n cbnz %w1, 6f\n sub %0, %0, #9\n b 6f\n"
        "3: add %0, %0, #100\n b 2b\n"
        "4: add %0, %0, #1000\n b 6f\n"
        "5: add %0, %0, #3\n"
        "6:\n"
        : "+r"(s) : "r"(x) : "cc");
    return s;
}

int main(int argc, char **argv) {
    long s = 0;
    for (int i = 0; i < 4000; i++) s += tested(i);
    for (int i = 0; i < 20; i++) s = filler(s);
    // Ways that were cold in the profile are taken where arguments say so; none are here.
    if (argc > 5) s += tested(1ul << 40) + tested(1ul << 31);
    printf("%ld\n", s);
    return 0;
}

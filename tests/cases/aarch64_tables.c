//# about: AArch64: jumps through tables of bytes, half-words and words, added to an adr; one with its address formed before the loop
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie aarch64-gcc-static aarch64-gcc-so
//# flags: -fno-tree-switch-conversion
//# build Os: -Os
//# build O1: -O1
//# build bti: -mbranch-protection=standard
//# count bytes: 2000
//# count halves: 2000
//# count words: 2000
//# count around: 10
#include <stdio.h>

typedef unsigned long u64;

// Bytes, signed, in words from a label, as gcc has them.
__attribute__((noinline, noipa)) u64 bytes(u64 k, u64 x) {
    __asm__ volatile(
        "cmp %w1, #5\n b.hi 9f\n"
        "adrp x9, 1f\n add x9, x9, :lo12:1f\n ldrb w10, [x9, %w1, uxtw]\n adr x11, 2f\n add x10, x11, w10, sxtb #2\n br x10\n"
        "2: hint #36\n add %0, %0, #1\n b 9f\n"
        "3: hint #36\n eor %0, %0, #0xff\n b 9f\n"
        "4: hint #36\n lsl %0, %0, #1\n"
        "5: hint #36\n sub %0, %0, #3\n b 9f\n"
        ".pushsection .rodata,\"a\",%%progbits\n1: .byte (2b-2b)/4, (3b-2b)/4, (4b-2b)/4, (5b-2b)/4, (2b-2b)/4, (4b-2b)/4\n .p2align 2\n .popsection\n"
        "9: hint #36\n"
        : "+r"(x) : "r"(k) : "x9", "x10", "x11", "cc");
    return x;
}

// Half-words without a sign, as clang has them.
__attribute__((noinline, noipa)) u64 halves(u64 k, u64 x) {
    __asm__ volatile(
        "cmp %1, #4\n b.hs 9f\n"
        "adrp x9, 1f\n add x9, x9, :lo12:1f\n adr x10, 2f\n ldrh w11, [x9, %1, lsl #1]\n add x10, x10, x11, lsl #2\n br x10\n"
        "2: hint #36\n add %0, %0, #7\n b 9f\n"
        "3: hint #36\n eor %0, %0, #0xf0\n b 9f\n"
        "4: hint #36\n ror %0, %0, #1\n"
        "9: hint #36\n"
        ".pushsection .rodata,\"a\",%%progbits\n .p2align 1\n1: .hword (2b-2b)/4, (3b-2b)/4, (4b-2b)/4, (9b-2b)/4\n .p2align 2\n .popsection\n"
        : "+r"(x) : "r"(k) : "x9", "x10", "x11", "cc");
    return x;
}

// Words, with labels before and behind the base.
__attribute__((noinline, noipa)) u64 words(u64 k, u64 x) {
    __asm__ volatile(
        "b 1f\n"
        "2: hint #36\n add %0, %0, #9\n b 9f\n"
        "1: cmp %w1, #3\n b.hi 9f\n"
        "adrp x9, 8f\n add x9, x9, :lo12:8f\n ldr w10, [x9, %w1, uxtw #2]\n adr x11, 3f\n add x10, x11, w10, sxtw #2\n br x10\n"
        "3: hint #36\n eor %0, %0, #0x3c\n b 9f\n"
        "4: hint #36\n add %0, %0, %0, lsr #3\n"
        "9: hint #36\n"
        ".pushsection .rodata,\"a\",%%progbits\n .p2align 2\n8: .word (2b-3b)/4, (3b-3b)/4, (4b-3b)/4, (2b-3b)/4\n .popsection\n"
        : "+r"(x) : "r"(k) : "x9", "x10", "x11", "cc");
    return x;
}

#define STEP(n) case n: x = x * 31 + n; if (x & 1) x ^= 0x1234567ul * n; else x += (x << 7) ^ n; break;
// The compiler's own table; the address of it is wanted in every round.
__attribute__((noinline)) u64 around(u64 x, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        switch ((x >> 3) % 37) {
            STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10) STEP(11) STEP(12) STEP(13)
            STEP(14) STEP(15) STEP(16) STEP(17) STEP(18) STEP(19) STEP(20) STEP(21) STEP(22) STEP(23) STEP(24) STEP(25) STEP(26)
            default: x += 5;
        }
    return x;
}

int main(int argc, char **argv) {
    u64 x = argc;
    for (int i = 0; i < 2000; i++) x = words(i % 4, halves(i % 5, bytes(i % 7, x)));
    for (int i = 0; i < 10; i++) x = around(x, 100);
    printf("%lx\n", x);
    return 0;
}

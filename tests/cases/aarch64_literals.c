//# about: AArch64: literal pools and other data between instructions, loaded into every kind of register, and read by address
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie aarch64-gcc-static-pie aarch64-clang-pie aarch64-clang-static
//# stdout: 123456789abcdef0 ffffffff9abcdef0 deadbeef 1.5 2.5 77
//# stdout: 60
#include <stdio.h>

__attribute__((noinline, noipa)) void pool(void) {
    unsigned long x, s;
    unsigned w;
    double d;
    float f;
    long t;
    __asm__ volatile(
        "ldr %0, 1f\n ldrsw %1, 1f\n ldr %w2, 2f\n ldr %d3, 3f\n ldr %s4, 4f\n adr x9, 5f\n ldrb %w5, [x9, #1]\n prfm pldl1keep, 1f\n b 6f\n"
        ".p2align 3\n1: .quad 0x123456789abcdef0\n2: .word 0xdeadbeef\n4: .float 2.5\n3: .double 1.5\n5: .byte 1, 77, 3, 4\n"
        "6:\n"
        : "=r"(x), "=r"(s), "=r"(w), "=w"(d), "=w"(f), "=r"(t) : : "x9");
    printf("%lx %lx %x %.1f %.1f %ld\n", x, s, w, d, f, t);
}

// Data that looks like branches, right before a label that is jumped to.
__attribute__((noinline, noipa)) long around(long n) {
    long s = 0;
    __asm__ volatile("1: cbz %1, 3f\n b 2f\n .word 0x14000000, 0x54000000, 0xd65f03c0, 0x34000000\n2: add %0, %0, #6\n sub %1, %1, #1\n b 1b\n3:\n"
                     : "+r"(s), "+r"(n));
    return s;
}

int main(int argc, char **argv) {
    pool();
    printf("%ld\n", around(10));
    return 0;
}

//# about: AArch64: code that stays forms the address of a function that moves, by adr, and with an instruction between adrp and add
//# kinds: aarch64-gcc-pie aarch64-gcc-static aarch64-clang-nopie
//# count target: 500
//# not aarch64-clang-nopie: a function whose address the code that stays forms is put back there by the checker
//# moved: target taken
//# refused: target
//# stdout: 124750 1
#include <stdio.h>

typedef long (*op)(long);

__attribute__((noinline, noipa)) long target(long x) {
    if (x < 0) return -x;
    return x;
}

// Runs, so it moves.
__attribute__((noinline, noipa)) op taken(void) { return target; }

// Never run, so it stays; but what it would give must be the same address.
__attribute__((noinline, noipa)) op stays(int by_adr) {
    op r;
    if (by_adr)
        __asm__ volatile("adr %0, target" : "=r"(r));
    else
        __asm__ volatile("adrp %0, target\n mov x9, #1\n add %0, %0, :lo12:target" : "=r"(r) : : "x9");
    return r;
}

int main(int argc, char **argv) {
    long s = 0;
    for (int i = 0; i < 500; i++) s += taken()(i);
    printf("%ld %d\n", s, argc < 5 || stays(argc & 1) == taken());
    return 0;
}

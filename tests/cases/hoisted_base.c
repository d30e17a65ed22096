//# about: without kept relocations: the address of a jump table is formed before a loop with calls, and kept in a register that calls leave alone
//# own tables: run
//# not aarch64: without kept relocations only files for x86-64 are rewritten
//# stdout: -3
#include <stdio.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

__attribute__((noinline, noipa)) int step(int x) { return x * 7 % 11; }

__attribute__((noinline)) int run(const unsigned char *code, int n) {
    int s = 0;
    for (int i = 0; i < n; i++) {
        s += step(s);
        /* Compared in a register: what is compared in memory and loaded again has no bound. */
        unsigned op = code[i];
        __asm__("" : "+r"(op));
        switch (op) {
        case 0: s += 3; break;
        case 1: s = step(s) * 2; break;
        case 2: s -= 5; break;
        case 3: s ^= 0x11; break;
        case 4: s += step(i); break;
        case 5: s = s * 3 % 4096; break;
        default: s++;
        }
    }
    return s;
}

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    unsigned char code[300];
    for (int i = 0; i < 300; i++) code[i] = i * argc % 8;
    printf("%d\n", run(code, 300));
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

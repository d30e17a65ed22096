//# about: without kept relocations: jump tables of every kind stay what they are, also one of which no comparison tells the length; new code has tables of its own
//# own tables: compared
//# not aarch64: without kept relocations only files for x86-64 are rewritten
//# stdout: 1175 1393 -365
#include <stdio.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

__attribute__((noinline)) int compared(int op, int x) {
    switch (op) {
    case 0: return x + 1;
    case 1: return x * 3;
    case 2: return x - 7;
    case 3: return x << 2;
    case 4: return x ^ 0x2a;
    case 5: return x / 3;
    case 6: return -x;
    default: return x;
    }
}

__attribute__((noinline)) int unbounded(unsigned op, int x) {
    switch (op) {
    case 0: return x + 2;
    case 1: return x * 5;
    case 2: return x - 1;
    case 3: return x << 1;
    case 4: return x | 8;
    case 5: return x % 7;
    default: __builtin_unreachable();
    }
}

__attribute__((noinline)) int masked(unsigned op, int x) {
    switch (op & 7) {
    case 0: return x + 3;
    case 1: return x * 2;
    case 2: return x - 2;
    case 3: return x << 3;
    case 4: return x & 12;
    case 5: return x % 5;
    case 6: return ~x;
    case 7: return x >> 1;
    }
    return 0;
}

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    int a = 0, b = 0, c = 0;
    for (int i = 0; i < 40; i++) {
        a += compared(i % 9, i);
        b += unbounded(i % 6, i);
        c ^= masked(i, i);
    }
    printf("%d %d %d\n", a, b, c);
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

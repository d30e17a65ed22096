//# about: AArch64 without kept relocations: interpreters with tables of labels; one loads labels over their indexes and hands the table's address on, the mask of another is wider than its table, and the third has the table's address in memory at one label
//# kinds: aarch64-gcc-pie aarch64-gcc-static aarch64-clang-pie
//# stdout: 2708853984
#include <stdio.h>

__attribute__((noinline, noipa)) int work(int x) { return x * 7 + 1; }
__attribute__((noinline, noipa)) int other(int x, const void *const *t) { return x * 5 + (t != 0); }

#define FIRST {&&a0, &&a1, &&a2, &&a3, &&a4, &&a5, &&a6, &&a7}

/* No instruction has anything to do with x16 and x17. */
__attribute__((noinline, noipa)) int over(const unsigned char *p, int n) {
    static const void *const t[8] = FIRST;
    int x = 1;
#define GO if (n-- == 0) return other(x, t); x = other(x, t); goto *t[*p++ & 7]
    GO;
a0: x = x * 3; GO;
a1: x = x + 7; GO;
a2: x = work(x); GO;
a3: x ^= 85; GO;
a4: x = x * x; GO;
a5: x = -x; GO;
a6: x = other(x, 0); GO;
a7: x = ~x; GO;
#undef GO
}

struct tail {
    const void *t[10];
    long number;
    const char *text;
    int (*f)(int);
    long more[5];
};

__attribute__((noinline, noipa)) int longer(const unsigned char *p, int n) {
    static const struct tail s = {{&&a0, &&a1, &&a2, &&a3, &&a4, &&a5, &&a6, &&a7, &&a8, &&a9}, 17, "text", work, {0, 1, 2, 3, 4}};
    int x = 1;
#define GO if (n-- == 0) return x; goto *s.t[*p++ & 15]
    GO;
a0: x = x * 3; GO;
a1: x = x + 7; GO;
a2: x = work(x); GO;
a3: x ^= 85; GO;
a4: x = x * x; GO;
a5: x = -x; GO;
a6: x = other(x, 0); GO;
a7: x = ~x; GO;
a8: x = work(x) - 9; GO;
a9: x += 11; GO;
#undef GO
}

/* At one label the table's address is in memory, and for some rounds it is another table's. */
__attribute__((noinline, noipa)) int kept(const unsigned char *p, int n, int turned) {
    static const void *const t[8] = FIRST;
    static const void *const u[8] = {&&a7, &&a6, &&a5, &&a4, &&a3, &&a2, &&a1, &&a0};
    const void *const *q = turned ? u : t;
    __asm__ volatile("" : "+m"(q));
    int x = 1;
    long op;
#define GO(t) if (n-- == 0) return x; op = *p++ & 7; goto *t[op]
    GO(t);
a0: x = x * 3 + op; GO(t);
a1: x = x + 7 * op; GO(t);
a2: x = work(x) + op; GO(q);
a3: x ^= 85 + op; GO(t);
a4: x = x * x + op; GO(t);
a5: x = op - x; GO(t);
a6: x = work(x) - op; GO(t);
a7: x = ~x + op; GO(t);
}

int main(void) {
    unsigned s = 0;
    static unsigned char p[64], q[64];
    for (int i = 0; i < 64; i++) p[i] = i * 37, q[i] = i % 10;
    for (int i = 0; i < 700; i++)
        s = s * 3 + over(p, i % 64) + longer(q, i % 60) + kept(p, i % 55, 0) + kept(p, i % 50, i % 100 == 99);
    printf("%u\n", s);
    return 0;
}

// Inlined functions, variables in registers that calls overwrite, tail calls, a switch, arguments known at call sites.
#include <stdio.h>
#include <stdlib.h>

struct point { int x, y; };

static inline int clamp(int v, int low, int high) {
    if (v < low) return low;
    if (v > high) return high;
    return v;
}

static inline int weigh(struct point p) {
    int sum = clamp(p.x, -10, 10) * 3;
    sum += clamp(p.y, 0, 100);
    return sum;
}

__attribute__((noinline)) int apply(int (*f)(int), int n) {
    int total = 0;
    for (int i = 0; i < n; i++) {
        int v = f(i);
        if (v & 1) {
            int odd = v * v;
            total += odd;
        } else {
            total -= v;
        }
    }
    return total;
}

static int twice(int v) { return v * 2 + 1; }
static int thrice(int v) { return v * 3; }

__attribute__((noinline)) int choose(int kind, struct point p) {
    switch (kind) {
    case 0: return weigh(p);
    case 1: return apply(twice, p.x);
    case 2: return apply(thrice, p.y);
    case 3: printf("three\n"); return 3;
    case 4: abort();
    case 5: return p.x / (p.y ? p.y : 1);
    default: break;
    }
    {
        long big = (long)p.x * p.y;
        printf("%ld\n", big);
        return (int)big;
    }
}

__attribute__((noinline, cold)) static void complain(const char *what) {
    fprintf(stderr, "bad: %s\n", what);
}

int main(int argc, char **argv) {
    struct point p = {argc, 7};
    int sum = 0;
    for (int i = 0; i < 8; i++) {
        if (i == 4) continue;
        p.x += i;
        sum += choose(i, p);
        if (sum == 123456) complain(argv[0]);
    }
    printf("%d\n", sum);
    return 0;
}

//# about: AArch64: values of general registers spread over vector registers of the same number, which holds nothing of those that share it
//# kinds: aarch64-gcc-pie aarch64-clang-pie
//# count spread: 900
//# stdout: 403200
#include <stdio.h>

__attribute__((noinline, noipa)) long spread(long x, long n) {
    long s = 0;
    do {
        n--;
    } while (n > 3);
    if (x & 1) x++;
    long a, b;
    __asm__("dup v16.2d, %2\n dup v17.2d, %2\n dup v9.2d, %2\n dup v10.2d, %2\n dup v11.2d, %2\n dup v12.2d, %2\n"
            "ins v13.d[0], %2\n ins v14.d[1], %2\n ins v15.d[0], v16.d[1]\n dup v8.2d, v17.d[0]\n"
            "umov %0, v16.d[1]\n umov %1, v8.d[0]"
            : "=r"(a), "=r"(b)
            : "r"(x)
            : "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17");
    s += a == b ? a : 0;
    return s + n - 3;
}

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    long s = 0;
    for (long i = 0; i < 900; i++) s += spread(i, i % 5);
    printf("%ld\n", s);
    return 0;
}

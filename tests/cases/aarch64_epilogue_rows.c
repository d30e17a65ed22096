//# about: AArch64: unwind rows that change by no instruction, where an epilogue begins: counters on the way there have the epilogue's
//# kinds: aarch64-clang-pie aarch64-clang-static
//# count concat: 3000
//# stdout: 0 14203
#include <stdio.h>

__attribute__((noinline, noipa)) int follow(int x) { return x / 2; }
__attribute__((noinline, noipa)) void fail(int x) { printf("%d is bad\n", x); }

__attribute__((noinline, noipa)) void concat(int *list, int x) {
    if (x % 7 == 6) return;
    if (*list == -1) {
        *list = x;
        return;
    }
    int n = x, next;
    while ((next = follow(n)) > 5) n = next;
    if (n > 100) fail(n);
    if (next & 1) list[1] += n;
}

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    int list[2] = {-1, 0};
    for (int i = 0; i < 3000; i++) concat(list, i);
    printf("%d %d\n", list[0], list[1]);
    return 0;
}

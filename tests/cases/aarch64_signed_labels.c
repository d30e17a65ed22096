//# about: AArch64: labels of a jump table that sign the return address at once: two landing pads, one behind the other
//# kinds: aarch64-gcc-pie aarch64-gcc-static
//# flags: -mbranch-protection=standard --param case-values-threshold=4
//# count pick: 1000
//# stdout: 460457
#include <stdio.h>

__attribute__((noinline, noipa)) int more(int x) { return x % 1000 + 1; }

__attribute__((noinline, noipa)) int pick(int k, int x) {
    switch (k) {
    case 0: return x + 5;
    case 1: return x * 7 % 999;
    case 2: return more(x) + 3;
    case 3: return x ^ 0x55;
    case 4: return more(x + 1) * 2;
    case 5: return x | 3;
    case 6: return x / 3;
    default: return x % 11;
    }
}

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    int s = 0;
    for (int i = 0; i < 1000; i++) s += pick(i % 8, i);
    printf("%d\n", s);
    return 0;
}

//# about: a library with no initialiser of any kind
//# kinds: so
//# all states: aarch64-gcc-so
//# flags: -nostartfiles
//# stdout: 4950
#include <stdio.h>

__attribute__((noinline, noipa)) static int sum(int n) { int s = 0; while (n--) s += n; return s; }

int main(int argc, char **argv) {
  printf("%d\n", sum(100));
  return 0;
}

//# about: a program that takes pointers between the start of the file and etext for pointers to its code, as conservative run-times do
//# kinds: gcc-pie gcc-nopie gcc-static clang-pie aarch64-gcc-pie
//# stdout: 998000 1000
#include <stdio.h>

extern char etext, __executable_start;
__attribute__((noinline, noipa)) int triple(int x) { return x * 3; }
__attribute__((noinline, noipa)) int flip(int x) { return x ^ 3; }
int (*volatile table[])(int) = {triple, flip};
__attribute__((noinline, noipa)) static int is_code(void *p) { return (char *)p >= &__executable_start && (char *)p < &etext; }

int main(int argc, char **argv) {
  int sum = 0, inside = 0;
  for (int i = 0; i < 1000; i++) {
    sum += table[i & 1](i);
    inside += is_code((void *)table[i & 1]);
  }
  printf("%d %d\n", sum, inside);
  return 0;
}

//# about: weak symbols: undefined ones are null, defined ones give way to another file's and to a library's
//# lib: weak_lib.c
//# with: weak_part.c
//# flags: -Wl,--no-as-needed
//# not static: needs a shared library
//# not static-pie: needs a shared library
//# stdout: 0 2 3 5
#include <stdio.h>

__attribute__((weak)) int nowhere(void);
__attribute__((weak)) int overridden(void) { return 1; }
__attribute__((weak)) int in_library(void);
int asks_overridden(void);
__attribute__((weak, noinline)) int mine(void) { return 5; }

int main(int argc, char **argv) {
  int n = nowhere ? nowhere() : 0;
  printf("%d %d %d %d\n", n, overridden() * asks_overridden() / 2, in_library ? in_library() : -1, mine());
  return 0;
}

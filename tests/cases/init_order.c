//# about: constructors and destructors with priorities, atexit, in order; some of them static, some weak
//# stdout: ctor 101
//# stdout: ctor 102
//# stdout: ctor
//# stdout: main
//# stdout: atexit
//# stdout: dtor
//# stdout: dtor 102
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int count;
__attribute__((constructor(101))) static void first(void) { setbuf(stdout, 0); printf("ctor 101\n"); count++; }
__attribute__((constructor(102))) void second(void) { printf("ctor 102\n"); count++; }
__attribute__((constructor)) __attribute__((weak)) void third(void) { printf("ctor\n"); count++; }
__attribute__((destructor(102))) static void last(void) { printf("dtor 102\n"); if (count != 4) _exit(9); }
__attribute__((destructor)) static void early(void) { printf("dtor\n"); count++; }
static void at(void) { printf("atexit\n"); }

int main(int argc, char **argv) {
  atexit(at);
  printf("main\n");
  return 0;
}

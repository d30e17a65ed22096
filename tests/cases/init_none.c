//# about: a library without DT_INIT, DT_FINI and start files, with an init array
//# kinds: so
//# flags: -nostartfiles
//# driver: dlopen
//# refused: array
//# count case_main: 2
#include <stdio.h>

static int ready = 1;
__attribute__((constructor)) static void array(void) { ready++; }

int main(int argc, char **argv) {
  printf("%d\n", ready);
  return 0;
}

//# about: a table of code positions that inline assembly makes (like static keys): differences to labels inside of functions
//# needs relocations: the program reads its own code by distances in a table (assumption A4)
//# not aarch64: written for x86-64
//# stdout: 3 sites, 3 inside, 42
#include <stdio.h>

struct site { int from, to; };
extern const struct site __start_sites[], __stop_sites[];

__attribute__((noinline, noipa)) static int keyed(int x) {
  __asm__ goto("1: .byte 0x0f, 0x1f, 0x44, 0, 0\n .pushsection sites, \"a\"\n .balign 4\n .long 1b - .\n .long %l0 - .\n .popsection" : : : : unlikely);
  __asm__ goto("1: .byte 0x0f, 0x1f, 0x44, 0, 0\n .pushsection sites, \"a\"\n .balign 4\n .long 1b - .\n .long %l0 - .\n .popsection" : : : : other);
  return x * 2;
unlikely:
  return x + 100;
other:
  return x - 100;
}
__attribute__((noinline, noipa)) static int keyed_too(int x) {
  __asm__ goto("1: .byte 0x0f, 0x1f, 0x44, 0, 0\n .pushsection sites, \"a\"\n .balign 4\n .long 1b - .\n .long %l0 - .\n .popsection" : : : : unlikely);
  return x;
unlikely:
  return -x;
}

int main(int argc, char **argv) {
  int n = __stop_sites - __start_sites, inside = 0;
  for (const struct site *s = __start_sites; s < __stop_sites; s++) {
    const unsigned char *from = (const unsigned char *)&s->from + s->from, *to = (const unsigned char *)&s->to + s->to;
    inside += from[0] == 0x0f && from[1] == 0x1f && to != from;
  }
  printf("%d sites, %d inside, %d\n", n, inside, keyed(14) + keyed_too(14));
  return 0;
}

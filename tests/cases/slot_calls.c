//# about: calls through memory: words of the global offset table that never change, imports, resolved ones, and one that the program changes
//# build O2: -O2 -fno-plt -fPIC -Wa,-mrelax-relocations=no
//# build now: -O1 -fno-plt -fPIC -falign-functions=16 -Wa,-mrelax-relocations=no -Wl,-z,now
//# not aarch64: an option of the x86-64 assembler
//# count twice: 3001
//# count thrice: 1501
//# count gone: 1
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALONE __attribute__((noinline, noipa))
ALONE int twice(int x) { return 2 * x; }
ALONE int thrice(int x) { return 3 * x; }
/* Never returns, although only the caller's end says so. */
ALONE _Noreturn void gone(int x) {
  printf("gone with %d\n", x);
  exit(0);
}

static int one(int x) { return x + 1; }
static int two(int x) { return x + 2; }
static int (*resolve(void))(int) { return two; }
int chosen(int x) __attribute__((ifunc("resolve")));

/* In memory that becomes read-only, and in memory that does not. */
int (*const volatile fixed[])(int) = {twice, thrice};
int (*volatile hook)(int) = twice;

ALONE static int step(int i, int sum) {
  sum += twice(i);
  if (i & 1) sum += thrice(i);
  if (sum < 0) gone(sum);
  hook = i % 3 ? one : two;
  return (sum + hook(i) + chosen(i)) & 0xffffff;
}

/* A tail call through a slot. */
ALONE static int last(int x) { return abs(x); }

int main(int argc, char **argv) {
  int sum = 0;
  char text[16];
  for (int i = 0; i < 3000; i++) sum = step(i, sum);
  sum += last(-5);
  memset(text, 'x', sizeof text);
  printf("%d %.*s %d\n", sum, (int)sizeof text, text, fixed[1](7) - fixed[0](7) - 7 + (hook == one));
  gone(sum);
}

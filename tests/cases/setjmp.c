//# about: longjmp over frames, out of loops and back into one: flow that leaves calls without returning
//# build O0: -O0
//# build O3: -O3
//# count thrower: 600
//# count catcher: 200
#include <setjmp.h>
#include <stdio.h>

static jmp_buf env, inner;
static int after;

__attribute__((noinline, noipa)) static int thrower(int depth, int x) {
  if (depth) {
    int r = thrower(depth - 1, x);
    after++;
    return r + 1;
  }
  if (x % 3 == 0) longjmp(env, x + 1);
  if (x % 3 == 1) longjmp(inner, 7);
  return x;
}

__attribute__((noinline, noipa)) static int catcher(int x) {
  volatile int tries = 0, sum = 0;
  int code = setjmp(env);
  if (code) return code * 2;
  if (setjmp(inner)) {
    tries++;
    sum += 10;
    if (tries > 0) return sum + tries;
  }
  sum += thrower(2, x);
  return sum;
}

int main(int argc, char **argv) {
  long total = 0;
  for (int i = 0; i < 200; i++) total = total * 3 % 1000003 + catcher(i);
  printf("%ld after=%d\n", total, after);
  return 0;
}

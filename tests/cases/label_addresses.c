//# about: block addresses that leave the function and come back: stored in a global, compared, jumped to later
//# build O1: -O1
//# stdout: 3 7 1 100
#include <stdio.h>

static void *resume[4];

__attribute__((noinline, noipa)) static int generator(int state, int start) {
  static int i, total;
  if (start) {
    resume[0] = &&first;
    resume[1] = &&second;
    resume[2] = &&third;
    i = total = 0;
    return 0;
  }
  goto *resume[state];
first:
  total += 1;
  return total;
second:
  for (i = 0; i < 3; i++) total += i;
  return total;
third:
  total = 100;
  return total;
}

__attribute__((noinline, noipa)) static int all_differ(void) {
  return resume[0] != resume[1] && resume[1] != resume[2] && resume[0] != resume[2];
}

int main(int argc, char **argv) {
  generator(0, 1);
  int a = generator(1, 0), b = (generator(0, 0), generator(1, 0)), c = all_differ(), d = generator(2, 0);
  printf("%d %d %d %d\n", a, b, c, d);
  return 0;
}

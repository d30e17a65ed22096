/* Functions that are called in another order than they stand in, and some that are not called. */
#include <stdio.h>
#define OUTSIDE __attribute__((noinline, noclone))
static volatile int seen;
OUTSIDE int last(int x) { seen++; return x + 4; }
OUTSIDE int never(int x) { seen--; return x * 3; }
OUTSIDE int third(int x) { seen++; return x + 3; }
OUTSIDE static int second(int x) { seen++; return x + 2; }
OUTSIDE int not_even(int x) { seen--; return x * 5; }
OUTSIDE int first(int x) { seen++; return x + 1; }
int main(int count, char **arguments) {
  int x = count > 5 ? never(count) + not_even(count) : 0;
  (void)arguments;
  x = last(third(second(first(x))));
  printf("%d %d\n", x, seen);
  return 0;
}

//# about: a function without code shares its start, and the start of its unwind entry, with the function behind it; lld's search table has only the empty entry
//# flags: -O2 -fasynchronous-unwind-tables
//# stdout: 4950
//# moved: behind
//# count behind: 100
#include <stdio.h>

int sum;
__attribute__((noinline, used)) void before(int x) { sum -= x; }
__attribute__((used)) void nothing(void) { __builtin_unreachable(); }
__attribute__((noinline)) void behind(int x) {
  if (x & 1)
    sum += x;
  else
    sum -= -x;
}

int main(int argc, char **argv) {
  for (int i = 0; i < 100; i++) behind(i);
  printf("%d\n", sum);
  return 0;
}

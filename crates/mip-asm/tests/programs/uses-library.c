#include <stdio.h>
int from_library(int);
static int same(int x) { return x * 5; }
int main(void) {
  int i, sum = 0;
  for (i = 0; i < 10; i++) sum += from_library(i) + same(i);
  printf("%d\n", sum);
  return 0;
}

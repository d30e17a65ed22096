//# about: gcc's nested functions: trampolines on an executable stack, and jumps out of them into the parent
//# not clang: it has no nested functions
//# refused: parent
//# build O0: -O0
//# stdout: 4950 7 50
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline, noipa)) static int apply(int (*f)(int), int n) { int s = 0; for (int i = 0; i < n; i++) s += f(i); return s; }
__attribute__((noinline, noipa)) static int parent(int n, int limit) {
  __label__ out;
  int sum = 0, result = 7;
  int inner(int x) { sum += x; if (sum > limit) goto out; return x; }
  result = apply(inner, n);
out:
  return limit > sum ? result : 7;
}

int main(int argc, char **argv) {
  int calls = 0;
  int count(int x) { calls++; return x; }
  apply(count, 50);
  printf("%d %d %d\n", parent(100, 1 << 20), parent(100, 600), calls);
  return 0;
}

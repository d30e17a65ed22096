//# about: clang's checks of indirect calls by jump tables of functions: pointers lead to entries of a table, which are calculated with
//# kinds: clang-pie clang-nopie
//# flags: -flto -fvisibility=hidden -fsanitize=cfi-icall
#include <stdio.h>

typedef int function(int);
#define F(n) __attribute__((noinline)) static int f##n(int x) { for (int i = 0; i < (x & n); i++) x = x * n + i; return x ^ n; }
F(1) F(2) F(3) F(4) F(5) F(6) F(7)
__attribute__((noinline)) static long g(long x, long y) { return x * y; }
static function *volatile table[] = {f1, f2, f3, f4, f5, f6, f7};
static long (*volatile other)(long, long) = g;
int main(int argc, char **argv) {
  unsigned sum = 0;
  int same = 0;
  for (int i = 0; i < 7000; i++) {
    function *f = table[i % 7];
    sum = sum * 31 + f(i) + other(i, 3);
    same += f == f3;
  }
  printf("%u %d\n", sum, same);
  return 0;
}

//# about: code of the large model makes a function's old address of a distance or of parts, and compares it with pointers in data
//# kinds: gcc-pie gcc-nopie gcc-static gcc-static-pie gcc-so clang-pie clang-nopie clang-so aarch64-gcc-nopie aarch64-gcc-static aarch64-clang-static
//# flags: -mcmodel=large
//# stdout: 1 1 0 1 18000

#include <stdio.h>
#define N __attribute__((noinline)) static
N long one(long x) { return x + 1; }
N long two(long x) { return x * 3; }
struct named {
  const char *name;
  long (*f)(long);
};
static const struct named table[] = {{"one", one}, {"two", two}};
long (*volatile chosen)(long) = two;
N int is_two(long (*f)(long)) { return f == two; }
N long (*give(int n))(long) { return n & 1 ? two : one; }

int main(int argc, char **argv) {
  long sum = 0, same = 0;
  for (long i = 0; i < 6000; i++) {
    sum = (sum + table[i & 1].f(i) + one(sum) + two(i)) & 0xffffff;
    same += is_two(chosen) + (give(i) == table[i & 1].f) + (is_two(table[i & 1].f) == (i & 1));
  }
  chosen = sum == 1 ? one : two;
  printf("%d %d %d %d %ld\n", is_two(chosen), chosen == table[1].f, is_two(table[0].f), give(1) == chosen, same);
  return 0;
}

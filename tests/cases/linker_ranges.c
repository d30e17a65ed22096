//# about: ranges of functions by symbols of a linker script, as kernels and bare-metal programs have them: pointers and return addresses are looked up in them
//# kinds: gcc-pie gcc-nopie gcc-static
//# pinned: one two three
//# moved: other is_probed
//# stdout: 3000 1169607564 1
//# link: -Wl,-T,{cases}/support/ranges.ld
#include <stdio.h>

extern const char probed_start[], probed_end[];
#define PROBED __attribute__((noinline, noipa, section("probed.text")))
PROBED static int one(int x) { return x * 3 + 1; }
PROBED static int two(int x) { for (int i = 0; i < (x & 7); i++) x += i * x; return x; }
PROBED static int three(int x) { return x & 1 ? two(x) : one(x); }
__attribute__((noinline, noipa)) static int other(int x) { return x ^ 85; }

static int (*const table[])(int) = {one, two, three, other};
__attribute__((noinline, noipa)) static int is_probed(int (*f)(int)) {
  return (const char *)f >= probed_start && (const char *)f < probed_end;
}
int main(int argc, char **argv) {
  int inside = 0, sum = 0;
  for (int i = 0; i < 4000; i++) {
    int (*f)(int) = table[i & 3];
    inside += is_probed(f);
    sum = sum * 5 + f(i);
  }
  printf("%d %d %d\n", inside, sum, probed_start < probed_end);
  return 0;
}

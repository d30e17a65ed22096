//# about: clang's preserve_most and preserve_all: callees that keep nearly all registers, of which callers make use
//# kinds: clang-pie clang-nopie clang-static
//# flags: -O2
#include <stdio.h>
typedef unsigned long u;
static u slow_calls;
static volatile u sink;
__attribute__((noinline, cold)) static u elsewhere(u x) { sink = x; return x * 3 + 1; }
__attribute__((noinline, preserve_most)) static void slow(u x) { slow_calls += elsewhere(x) & 3; }
static void (*__attribute__((preserve_most)) volatile hook)(u);
typedef __attribute__((preserve_most)) void slow_type(u);
static slow_type *volatile pointer = slow;
__attribute__((noinline)) static u many(const u *p) {
  u a = p[0], b = p[1], c = p[2], d = p[3], e = p[4], f = p[5], g = p[6], h = p[7], i = p[8], j = p[9], k = p[10];
  if ((a ^ b) & 8) slow(c);
  else pointer(d);
  return a + b * 3 + c * 5 + d * 7 + e * 11 + f * 13 + g * 17 + h * 19 + i * 23 + j * 29 + k * 31;
}
int main(int argc, char **argv) {
  u table[32], sum = 0;
  for (u n = 0; n < 4000; n++) {
    for (u i = 0; i < 32; i++) table[i] = i * n + (n >> 2);
    sum = sum * 33 + many(table + n % 20);
  }
  printf("%lu %lu\n", sum, slow_calls);
  return 0;
}

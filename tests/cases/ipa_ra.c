//# about: gcc's -fipa-ra: values of a caller stay in scratch registers, those of linkers' stubs among them, while local functions run
//# kinds: gcc-pie gcc-nopie gcc-so aarch64-gcc-pie
//# count mix: 3000
//# flags: -O2 -fipa-ra
#include <stdio.h>
#include <stdlib.h>

static unsigned table[64];
// Not noipa: which registers it uses must be known to its callers.
__attribute__((noinline)) static unsigned mix(unsigned x) { return x * 2654435761u ^ 0x9e37u; }
__attribute__((noinline)) static unsigned leaf(unsigned x) { return (x >> 3) + 7; }
__attribute__((noinline)) static unsigned middle(unsigned x) { return leaf(x ^ 5) + 1; }

__attribute__((noinline)) static unsigned many(const unsigned *p) {
  unsigned a = p[0], b = p[1], c = p[2], d = p[3], e = p[4], f = p[5], g = p[6], h = p[7];
  unsigned i = p[8], j = p[9], k = p[10], l = p[11], m = p[12], n = p[13], o = p[14];
  unsigned r = mix(p[15]);
  r += a ^ b * 3 ^ c * 5 ^ d * 7 ^ e * 11 ^ f * 13 ^ g * 17 ^ h * 19;
  r += i * 23 ^ j * 29 ^ k * 31 ^ l * 37 ^ m * 41 ^ n * 43 ^ o * 47;
  return r;
}
__attribute__((noinline)) static unsigned twice(const unsigned *p) {
  unsigned a = p[0], b = p[1], c = p[2], d = p[3], e = p[4], f = p[5], g = p[6], h = p[7];
  unsigned i = p[8], j = p[9], k = p[10], l = p[11], m = p[12];
  unsigned r = middle(p[13]);
  if (r & 1) r += leaf(a + b);
  r += a ^ b * 3 ^ c * 5 ^ d * 7 ^ e * 11 ^ f * 13 ^ g * 17 ^ h * 19;
  r += i * 23 ^ j * 29 ^ k * 31 ^ l * 37 ^ m * 41;
  return r;
}
int main(int argc, char **argv) {
  unsigned sum = 0;
  for (int round = 0; round < 3000; round++) {
    for (int i = 0; i < 64; i++) table[i] = table[i] * 69069 + i + round;
    sum = sum * 31 + many(table + (round & 15)) + twice(table + (round & 31));
  }
  printf("%u\n", sum);
  return 0;
}

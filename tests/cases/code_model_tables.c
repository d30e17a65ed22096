//# about: jump tables of gcc's large code model have entries of 8 bytes, each with a relocation as if it were a pointer relative to itself
//# kinds: gcc-pie gcc-nopie gcc-static gcc-static-pie gcc-so
//# not aarch64: -mcmodel=large is another thing there
//# flags: -mcmodel=large -fno-toplevel-reorder
//# link: -fPIC
//# build small: -Os
//# moved: even machine f0 f7

#include <stdio.h>
#define N __attribute__((noinline, noipa)) static
/* Taken for pointers, entries would lead to the functions behind this one. */
N long even(unsigned kind, long x) {
  switch (kind) {
  case 0: return x + 1;
  case 1: return x * 3;
  case 2: return x ^ 5;
  case 3: return x - 7;
  case 4: return x << 1;
  case 5: return -x;
  case 6: return x >> 2;
  case 7: return x & 15;
  case 8: return ~x;
  case 9: return x | 5;
  case 10: return x + 11;
  case 11: return x + 12;
  case 12: return x - 13;
  case 13: return x + 14;
  default: return x;
  }
}
N long f0(long x) { return x + 1; }
N long f1(long x) { return x + 2; }
N long f2(long x) { return x + 3; }
N long f3(long x) { return x ^ 3; }
N long f4(long x) { return x ^ 4; }
N long f5(long x) { return x ^ 5; }
N long f6(long x) { return x ^ 6; }
N long f7(long x) { return x ^ 7; }
static long (*const all[8])(long) = {f0, f1, f2, f3, f4, f5, f6, f7};
/* The table's address is formed before the loop. */
N long machine(const unsigned char *code, long n) {
  long a = 1, b = 2;
  for (long i = 0; i < n; i++) {
    switch (code[i]) {
    case 0: a += b; break;
    case 1: b -= a; break;
    case 2: a ^= b << 1; break;
    case 3: b = a & 0xffff; break;
    case 4: if (a & 1) i += 2; break;
    case 5: a >>= 1; break;
    case 6: b += 13; break;
    case 7: a = a * 5 + b; break;
    }
  }
  return a ^ b;
}

int main(int argc, char **argv) {
  unsigned char code[256];
  long sum = 0;
  for (int i = 0; i < 256; i++) code[i] = (i * 7 + i / 5) % 8;
  for (long i = 0; i < 6000; i++) {
    sum = (sum + even(i % 15, sum + i) + all[i & 7](i)) & 0xffffff;
    if (i % 50 == 0) sum ^= machine(code, 256) & 0xffff;
  }
  printf("%lx\n", sum);
  return 0;
}

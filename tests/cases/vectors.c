//# about: vector, x87 and AVX code beside counters: no vector or floating state may change
//# not aarch64: written for x86-64
//# flags: -ffp-contract=off
//# link: -lm
//# build O3: -O3 -ftree-vectorize
//# count dot: 40
#include <immintrin.h>
#include <math.h>
#include <stdio.h>

__attribute__((noinline, noipa)) static double dot(const double *a, const double *b, int n) {
  double s = 0;
  for (int i = 0; i < n; i++) s += a[i] > 0.5 ? a[i] * b[i] : -b[i];
  return s;
}
__attribute__((noinline, noipa)) static long double series(int n) {
  long double s = 0, t = 1;
  for (int i = 1; i < n; i++) { t = t * 3 / i; if (i & 1) s += t; else s -= t / 2; }
  return s;
}
__attribute__((noinline, noipa, target("avx2"))) static int avx(const int *p, int n) {
  __m256i sum = _mm256_setzero_si256();
  int out[8], total = 0;
  for (int i = 0; i + 8 <= n; i += 8) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(p + i));
    if (p[i] & 1) sum = _mm256_add_epi32(sum, v); else sum = _mm256_sub_epi32(sum, _mm256_slli_epi32(v, 1));
  }
  _mm256_storeu_si256((__m256i *)out, sum);
  for (int i = 0; i < 8; i++) total += out[i];
  return total;
}
__attribute__((noinline, noipa)) static int scalar(const int *p, int n) {
  int total = 0;
  for (int i = 0; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; k++) if (p[i] & 1) total += p[i + k]; else total -= p[i + k] << 1;
  return total;
}

int main(int argc, char **argv) {
  static double a[1000], b[1000];
  static int p[1000];
  for (int i = 0; i < 1000; i++) { a[i] = sin(i); b[i] = cos(i * 3); p[i] = (i * 2654435761u) >> 12; }
  double s = 0;
  for (int i = 0; i < 40; i++) s += dot(a, b, 1000 - i);
  int same = __builtin_cpu_supports("avx2") ? avx(p, 1000) == scalar(p, 1000) : 1;
  printf("%.12g %.15Lg %d %d\n", s, series(100), scalar(p, 1000), same);
  return 0;
}

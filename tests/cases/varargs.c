//# about: variable arguments with doubles (al counts vector registers), structures by value, many arguments
//# build O0: -O0
//# stdout: 180.00 a=1 b=2.50 c=xyz 3 4 5 6 7 8 9 10.00 30
//# count mix: 50
#include <stdarg.h>
#include <stdio.h>

struct big { long a[6]; double d; };
__attribute__((noinline, noipa)) static double mix(const char *kinds, ...) {
  va_list list;
  double sum = 0;
  va_start(list, kinds);
  for (; *kinds; kinds++) {
    switch (*kinds) {
    case 'i': sum += va_arg(list, int); break;
    case 'd': sum += va_arg(list, double); break;
    case 'l': sum += va_arg(list, long); break;
    case 'L': sum += va_arg(list, long double); break;
    case 'b': { struct big b = va_arg(list, struct big); sum += b.a[5] + b.d; break; }
    case 'p': sum += *va_arg(list, int *); break;
    }
  }
  va_end(list);
  return sum;
}

int main(int argc, char **argv) {
  struct big b = { { 1, 2, 3, 4, 5, 6 }, 7.5 };
  int n = 30;
  double sum = 0;
  for (int i = 0; i < 50; i++) sum = mix("idlbpLiiiiddddddddddb", 1, 2.0, 3L, b, &n, 4.0L, 5, 6, 7, 8, 9., 10., 11., 12., 13., 14., 15., 1., 1., 1., b);
  printf("%.2f a=%d b=%.2f c=%s %d %d %d %d %d %d %d %.2f %d\n", sum, 1, 2.5, "xyz", 3, 4, 5, 6, 7, 8, 9, 10., n);
  return 0;
}

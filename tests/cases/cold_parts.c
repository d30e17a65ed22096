//# about: functions that gcc itself split into a .cold part, with jumps there and back
//# build Os: -Os
//# build sections: -ffunction-sections -Wl,--gc-sections
//# build noasync: -fno-asynchronous-unwind-tables
//# build lto: -flto
//# count parse: 20000
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int errors, recovered;
__attribute__((cold, noinline, noipa)) static int complain(const char *what, int x) {
  errors += strlen(what);
  return x / 3;
}
__attribute__((noinline, noipa)) static int parse(int x) {
  int n = x & 255, sum = 0;
again:
  for (int i = 0; i < n; i += 16) {
    if (__builtin_expect((x + i) % 1009 == 0, 0)) {
      sum += complain("first", x);
      recovered++;
      n = complain("n", n);
      goto again;
    }
    if (__builtin_expect(((x ^ i) & 0xfff) == 0xabc, 0)) {
      if (complain("second", i) > 70) return -sum;
      recovered += 2;
    }
    sum += i ^ x;
  }
  if (__builtin_expect(sum == 77, 0)) abort();
  return sum;
}

int main(int argc, char **argv) {
  long total = 0;
  for (int i = 0; i < 20000; i++) total += parse(i);
  printf("%ld errors=%d recovered=%d\n", total, errors, recovered);
  return 0;
}

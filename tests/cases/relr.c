//# about: thousands of relative relocations, packed as RELR; pointers to functions and into tables among them
//# kinds: gcc-pie gcc-so gcc-static-pie clang-pie clang-so
//# also: aarch64-clang-pie aarch64-clang-so
//# flags: -Wl,-z,pack-relative-relocs
//# stdout: 2000 52000
#include <stdio.h>

static int f0(int x) { return x; }
static int f1(int x) { return x + 1; }
static int f2(int x) { return x * 2; }
static int f3(int x) { return x - 3; }
static const char text[] = "0123456789abcdef";
struct entry { int (*function)(int); const char *where; const struct entry *next; };
#define E(n) { f##n, text + 5 + n, 0 },
#define E4 E(0) E(1) E(2) E(3)
#define E16 E4 E4 E4 E4
#define E64 E16 E16 E16 E16
#define E512 E64 E64 E64 E64 E64 E64 E64 E64
static struct entry entries[] = { E512 E512 E512 E64 E64 E64 E64 E64 E64 E64 E16 };

int main(int argc, char **argv) {
  long sum = 0;
  int n = 2000;
  for (int i = 0; i < n; i++) sum += entries[i].function(20) + entries[i].where[0] - '5';
  printf("%d %ld\n", n, sum);
  return 0;
}

//# about: functions chosen at load time (IFUNC): called, pointed to from data, hidden and exported; resolvers run before all else
//# also: aarch64-gcc-static aarch64-gcc-static-pie aarch64-clang-static
//# stdout: 15 115 15 15
//# build now: -Wl,-z,now
#include <stdio.h>

__attribute__((noinline, noipa)) static int one(int x) { return x + 5; }
__attribute__((noinline, noipa)) static int two(int x) { return x + 105; }
static int choice = 1;
static int (*resolve_one(void))(int) { return choice ? one : two; }
static int (*resolve_two(void))(int) {
  int n = 0;
  for (volatile int i = 0; i < 10; i++) n += i;
  return n == 45 ? two : one;
}
__attribute__((ifunc("resolve_one"))) int picked(int);
__attribute__((ifunc("resolve_two"), visibility("hidden"))) int picked_hidden(int);
int (*pointer)(int) = picked;
static int (*const constant)(int) = picked;

int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 1000; i++) sum += picked(i) + picked_hidden(i);
  printf("%d %d %d %d\n", picked(10), picked_hidden(10), pointer(10), constant(10));
  return sum != 1000 * 110 + 999000;
}

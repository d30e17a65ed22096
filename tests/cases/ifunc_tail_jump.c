//# about: functions chosen at load time (IFUNC) that are jumped to and called through words of the global offset table, which the linker can make no direct jumps of
//# also: aarch64-gcc-static aarch64-clang-pie
//# flags: -fno-plt
//# stdout: 15 115 30 130
//# build now: -Wl,-z,now
#include <stdio.h>
#include <string.h>

__attribute__((noinline, noipa)) static int one(int x) { return x + 5; }
__attribute__((noinline, noipa)) static int two(int x) { return x + 105; }
static volatile int choice = 1;
static int (*resolve_one(void))(int) { return choice ? one : two; }
static int (*resolve_two(void))(int) { return choice ? two : one; }
__attribute__((ifunc("resolve_one"))) int picked(int);
__attribute__((ifunc("resolve_two"), visibility("hidden"))) int picked_hidden(int);

__attribute__((noinline, noipa)) static int jumps(int x) { return picked(x); }
// Some registers are saved and restored in front of the jump.
__attribute__((noinline, noipa)) static int jumps_late(int x, int n) {
  for (int i = 0; i < n; i++) x += picked_hidden(i) - i - 104;
  return picked_hidden(x);
}
// In a static program the C library's function is such a one.
__attribute__((noinline, noipa)) static void *copies(char *to, const char *from, int n) {
  for (int i = 0; i < n; i++) to[i] = 0;
  return memcpy(to, from, n);
}
static int (*const chosen[])(int) = {jumps, picked, picked_hidden};

int main(int argc, char **argv) {
  char text[64];
  int sum = 0;
  for (int i = 0; i < 1000; i++) sum += jumps(i) + jumps_late(i, 3) + chosen[i % 3](i);
  copies(text, "15 115 30 130", 14);
  char own[64];
  snprintf(own, sizeof own, "%d %d %d %d", jumps(10), jumps_late(8, 2), jumps_late(18, 7) - 100, chosen[2](25));
  printf("%s\n", strcmp(text, own) ? own : text);
  return sum == 0;
}

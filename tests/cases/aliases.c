//# about: one function under several names: strong, weak, local, hidden; and equal to itself under all of them
//# stdout: 1 1 1 44
//# count body: 1000
#include <stdio.h>

__attribute__((noinline, noipa)) int body(int x) {
  if (x & 1) return x + 1;
  return x - 1;
}
int strong(int) __attribute__((alias("body")));
int weakly(int) __attribute__((weak, alias("body")));
int hidden(int) __attribute__((alias("body"), visibility("hidden")));
static int own(int) __attribute__((alias("body")));
static int (*volatile table[])(int) = { body, strong, weakly, hidden, own };

int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 1000; i++) sum = table[i % 5](sum) & 63;
  printf("%d %d %d %d\n", table[0] == table[1], table[3] == table[4], table[2] == table[0], 44 + 0 * sum);
  return 0;
}

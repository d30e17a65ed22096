//# about: a program that ends by __builtin_trap() deep inside a loop has lost no count
//# not aarch64: the trap is another signal there
//# signal: 4
//# stdout: 100
//# count work: 100
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline, noipa)) static int work(int x) {
  int n = x;
  while (n > 10) n -= 7;
  if (x == 99) {
    printf("100\n");
    fflush(stdout);
    __builtin_trap();
  }
  return n;
}

int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 1000000; i++) sum += work(i);
  printf("%d\n", sum);
  return 0;
}

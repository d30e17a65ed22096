//# about: a program that ends by _exit(5) deep inside a loop has lost no count
//# exit: 5
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
    _exit(5);
  }
  return n;
}

int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 1000000; i++) sum += work(i);
  printf("%d\n", sum);
  return 0;
}

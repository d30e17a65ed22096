//# about: a program that becomes another one by execl, deep inside a loop, has lost no count
//# stdout: 100
//# count work: 100
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline, noipa)) static int work(int x) {
  int n = x;
  while (n > 10) n -= 7;
  if (x == 99) {
    execl("/bin/echo", "echo", "100", (char *)0);
  }
  return n;
}

int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 1000000; i++) sum += work(i);
  printf("%d\n", sum);
  return 0;
}

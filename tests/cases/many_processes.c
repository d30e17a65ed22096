//# about: five processes of the same program count into one file at once
//# not so: the program is started again by its own name
//# not static: counts plainly
//# not static-pie: counts plainly
//# not aarch64: the emulator is what /proc calls the program
//# count step: 5000000
//# stdout: 4
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

extern char **environ;
__attribute__((noinline, noipa)) static unsigned step(unsigned x) {
  __asm__ volatile("" : "+r"(x)); // So that no compiler drops the call.
  return x & 1 ? x + 1 : x ^ 1;
}

int main(int argc, char **argv) {
  pid_t pids[4];
  char *again[] = {argv[0], "again", 0};
  int good = 0;
  if (argc < 2)
    for (int i = 0; i < 4; i++) posix_spawn(&pids[i], "/proc/self/exe", 0, 0, again, environ);
  unsigned x = 1;
  for (int i = 0; i < 1000000; i++) x = step(x);
  if (argc > 1) return 0;
  for (int i = 0; i < 4; i++) {
    int status;
    waitpid(pids[i], &status, 0);
    good += status == 0;
  }
  printf("%d\n", good);
  return 0;
}

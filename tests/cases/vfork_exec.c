//# about: vfork, exec of itself and posix_spawn: new images map the same profile file and add to it
//# not aarch64: what it executes would not run in the emulator
//# count leaf: 7
//# stdout: child 1
//# stdout: child 2
//# stdout: child 3
//# stdout: done 1 2 3
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static volatile int calls;
__attribute__((noinline, noipa)) static int leaf(int x) {
  calls++;
  int n = 0;
  while (x > 0) { n += x & 1; x >>= 1; }
  return n;
}

int main(int argc, char **argv) {
  if (argc > 1) {
    int n = atoi(argv[1]);
    printf("child %d\n", n + (leaf(n) == 9));
    fflush(stdout);
    return n + (leaf(n) == 9);
  }
  char *self = "/proc/self/exe";
  int status[3];
  pid_t pid = vfork();
  if (pid == 0) { execl(self, argv[0], "1", (char *)0); _exit(80); }
  waitpid(pid, &status[0], 0);
  char *arguments[] = { argv[0], "2", 0 };
  if (posix_spawn(&pid, self, 0, 0, arguments, environ)) return 70;
  waitpid(pid, &status[1], 0);
  pid = fork();
  if (pid == 0) { execl(self, argv[0], "3", (char *)0); _exit(81); }
  waitpid(pid, &status[2], 0);
  if (leaf(0x55) != 4) return 60;
  printf("done %d %d %d\n", WEXITSTATUS(status[0]), WEXITSTATUS(status[1]), WEXITSTATUS(status[2]));
  return 0;
}

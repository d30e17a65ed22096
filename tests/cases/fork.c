//# about: children of fork go on counting into the same file; some return, some _exit, one is killed, one forks again
//# count child: 6
//# stdout: codes 0 11 22 33 killed
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline, noipa)) static int child(int i) {
  int n = 0;
  for (int k = 0; k <= i; k++) n += k & 1 ? 0 : 1;
  return n ? i * 11 : 99;
}

int main(int argc, char **argv) {
  fflush(stdout);
  int codes[5];
  for (int i = 0; i < 5; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      int code = child(i);
      if (i == 4) { kill(getpid(), SIGKILL); for (;;) pause(); }
      if (i == 3) { if (fork() == 0) _exit(child(1)); wait(0); }
      if (i & 1) _exit(code);
      exit(code);
    }
    int status;
    waitpid(pid, &status, 0);
    codes[i] = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  printf("codes %d %d %d %d %s\n", codes[0], codes[1], codes[2], codes[3], codes[4] == -SIGKILL ? "killed" : "?");
  return 0;
}

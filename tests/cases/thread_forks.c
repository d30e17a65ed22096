//# about: four threads fork at once, and children start threads; all count into one file
//# flags: -pthread
//# count child: 40
//# count step: 720000
//# count in_child: 40
//# stdout: 40
//# not aarch64: the emulator cannot fork while threads run
//# not static: without threads of its own it would count plainly
//# not static-pie: without threads of its own it would count plainly
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int good;
__attribute__((noinline, noipa)) static unsigned step(unsigned x) {
  __asm__ volatile("" : "+r"(x)); // So that no compiler drops the call.
  return x & 1 ? x + 1 : x ^ 1;
}
__attribute__((noinline, noipa)) static unsigned many(int n) {
  unsigned x = 1;
  for (int i = 0; i < n; i++) x = step(x);
  return x;
}
__attribute__((noinline, noipa)) static void *in_child(void *argument) {
  many(1000);
  return 0;
}
__attribute__((noinline, noipa)) static int child(void) {
  pthread_t thread;
  if (pthread_create(&thread, 0, in_child, 0)) return 1;
  many(1000);
  pthread_join(thread, 0);
  return 7;
}
__attribute__((noinline, noipa)) static void *worker(void *argument) {
  for (int i = 0; i < 10; i++) {
    pid_t pid = fork();
    // Parent and child count here at the same time.
    many(8000);
    if (pid == 0) _exit(child());
    int status;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 7) __atomic_add_fetch(&good, 1, __ATOMIC_SEQ_CST);
  }
  return 0;
}

int main(int argc, char **argv) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, worker, 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
  printf("%d\n", good);
  return 0;
}

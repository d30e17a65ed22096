//# about: children that share memory with their parent: by clone on a stack of their own with the parent's thread pointer, by vfork, by posix_spawn's kind
//# kinds: gcc-pie gcc-static clang-so
//# stdout: sum=840 shared=18000
//# flags: -pthread
//# count child_work: 12000
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long shared;
static char stack[65536] __attribute__((aligned(16)));
__attribute__((noinline, noipa)) static int child_work(int i) { shared += i & 3; return i ^ 1; }
__attribute__((noinline, noipa)) static int works(void *argument) {
  for (int i = 0; i < 100; i++) child_work(i);
  return *(int *)argument;
}
static int wait_for(int child) {
  int status = -1;
  if (child < 0 || waitpid(child, &status, __WALL) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}
__attribute__((noinline, noipa)) static int forked(void) {
  int child = vfork();
  if (child == 0) {
    for (int i = 0; i < 100; i++) child_work(i);
    _exit(7);
  }
  return wait_for(child);
}
static void *thread(void *argument) {
  int code = 7, sum = 0;
  char *own = malloc(65536);
  for (int i = 0; i < 20; i++) sum += wait_for(clone(works, own + 65536, CLONE_VM | CLONE_VFORK | SIGCHLD, &code));
  free(own);
  return (void *)(long)sum;
}
int main(int argc, char **argv) {
  int sum = 0, code = 7;
  for (int i = 0; i < 40; i++) {
    // The parent waits before it goes on, so that counters are not written by both.
    sum += wait_for(clone(works, stack + sizeof stack, CLONE_VM | SIGCHLD, &code));
    sum += wait_for(clone(works, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &code));
  }
  for (int i = 0; i < 20; i++) sum += forked();
  pthread_t id;
  void *result;
  pthread_create(&id, 0, thread, 0);
  pthread_join(id, &result);
  printf("sum=%d shared=%ld\n", sum + (int)(long)result, shared);
  return 0;
}

//# about: signal handlers on many threads: amidst counting, on small stacks of their own, and as the first code of the program in a thread
//# flags: -pthread
//# count handler: 4012
//# count step: 804012
//# stdout: 4012
//# not so: a library has no say in its host's signals
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int handled;
__attribute__((noinline, noipa)) static unsigned step(unsigned x) {
  __asm__ volatile("" : "+r"(x)); // So that no compiler drops the call.
  return x & 1 ? x + 1 : x ^ 1;
}
__attribute__((noinline, noipa)) static void handler(int number) {
  step(number);
  __atomic_add_fetch(&handled, 1, __ATOMIC_SEQ_CST);
}
__attribute__((noinline, noipa)) static void *worker(void *argument) {
  stack_t own = {.ss_sp = malloc(16384), .ss_size = 16384};
  sigaltstack(&own, 0);
  unsigned x = 1;
  for (int i = 0; i < 200000; i++) {
    x = step(x);
    if (i % 200 == 0) raise(SIGUSR1);
  }
  return 0;
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
  sigaction(SIGUSR1, &action, 0);
  pthread_t threads[4], idle[12];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, worker, 0);
  // Nothing of these threads is the program's but the handler.
  for (int i = 0; i < 12; i++) pthread_create(&idle[i], 0, (void *(*)(void *))pause, 0);
  for (int i = 0; i < 12; i++) pthread_kill(idle[i], SIGUSR1);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
  while (__atomic_load_n(&handled, __ATOMIC_SEQ_CST) < 4012) usleep(1000);
  printf("%d\n", handled);
  fflush(stdout);
  _exit(0);
}

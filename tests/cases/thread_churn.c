//# about: 1200 threads, 40 alive at once: each needs counters of its own, and gives them back when it ends
//# flags: -pthread
//# count step: 1200000
//# count worker: 1200
//# stdout: 1200000
#include <pthread.h>
#include <stdio.h>

static pthread_barrier_t together;
static unsigned long total;

__attribute__((noinline, noipa)) static unsigned step(unsigned x) {
  __asm__ volatile("" : "+r"(x)); // So that no compiler drops the call.
  return x & 1 ? x + 1 : x ^ 1;
}
__attribute__((noinline, noipa)) static void *worker(void *argument) {
  unsigned x = (unsigned)(long)argument, steps = 0;
  pthread_barrier_wait(&together);
  for (int i = 0; i < 1000; i++) {
    x = step(x);
    steps++;
  }
  pthread_barrier_wait(&together);
  __atomic_add_fetch(&total, steps, __ATOMIC_RELAXED);
  return 0;
}

int main(int argc, char **argv) {
  pthread_t threads[40];
  pthread_barrier_init(&together, 0, 40);
  for (int round = 0; round < 30; round++) {
    for (long i = 0; i < 40; i++) pthread_create(&threads[i], 0, worker, (void *)i);
    for (int i = 0; i < 40; i++) pthread_join(threads[i], 0);
  }
  printf("%lu\n", total);
  return 0;
}

//# about: the same functions in eight threads at once: with atomic counters every call is counted
//# flags: -pthread
//# count step: 80000
//# count worker: 8
//# build plain-pie: -O1
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long total;

__attribute__((noinline, noipa)) static unsigned step(unsigned x) {
  if (x & 1) return x * 3 + 1;
  return x / 2;
}
__attribute__((noinline, noipa)) static void *worker(void *argument) {
  unsigned x = (unsigned)(long)argument + 27, steps = 0;
  for (int i = 0; i < 10000; i++) {
    x = step(x);
    if (x <= 1) x = i + 1000;
    steps += x & 7;
  }
  pthread_mutex_lock(&lock);
  total += steps;
  pthread_mutex_unlock(&lock);
  return 0;
}

int main(int argc, char **argv) {
  pthread_t threads[8];
  for (long i = 0; i < 8; i++) pthread_create(&threads[i], 0, worker, (void *)i);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
  printf("%ld\n", total);
  return 0;
}

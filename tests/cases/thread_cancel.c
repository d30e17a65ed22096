//# about: cancellation: threads are unwound from moved code, cut off in a system call or asynchronously, with cleanups, keys' destructors and C code without landing pads
//# kinds: gcc-pie gcc-static clang-pie gcc-so
//# flags: -pthread -fexceptions
//# build noexceptions: -fno-exceptions
//# count unwound: 200
//# stdout: cancelled=100 cleaned=800 destroyed=100
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <semaphore.h>

static int cleaned, destroyed;
static pthread_key_t key;
static sem_t ready;
static int pipes[2];
__attribute__((noinline, noipa)) static void unwound(void *argument) { cleaned += *(int *)argument; }
static void destroy(void *value) { destroyed++; }
__attribute__((noinline, noipa)) static int waits(int n) {
  char byte;
  int local = 3;
  if (n) {
    pthread_cleanup_push(unwound, &local);
    waits(n - 1);
    pthread_cleanup_pop(0);
    return local;
  }
  sem_post(&ready);
  return read(pipes[0], &byte, 1);
}
static volatile unsigned spun, spinning;
__attribute__((noinline, noipa)) static unsigned spins(unsigned x) {
  for (;;) { x = x * 69069 + 1; spinning = 1; if (x & 0x10000) spun = x; else spun ^= 1; }
  return x;
}
static unsigned (*volatile spinning_function)(unsigned) = spins; // May throw, for all that a compiler knows.
static void *thread(void *argument) {
  pthread_setspecific(key, &key);
  int old, local = 5;
  if (argument) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    pthread_cleanup_push(unwound, &local);
    spinning_function(1);
    pthread_cleanup_pop(0);
  } else {
    pthread_cleanup_push(unwound, &local);
    waits(2);
    pthread_cleanup_pop(0);
  }
  return 0;
}
int main(int argc, char **argv) {
  int cancelled = 0;
  if (pipe(pipes)) return 2;
  pthread_key_create(&key, destroy);
  sem_init(&ready, 0, 0);
  for (int i = 0; i < 100; i++) {
    pthread_t id;
    void *result = 0;
    spinning = 0;
    pthread_create(&id, 0, thread, i & 1 ? &key : 0);
    if (i & 1) {
      while (!spinning) usleep(50);
    } else {
      sem_wait(&ready);
    }
    pthread_cancel(id);
    pthread_join(id, &result);
    cancelled += result == PTHREAD_CANCELED;
  }
  printf("cancelled=%d cleaned=%d destroyed=%d\n", cancelled, cleaned, destroyed);
  return 0;
}

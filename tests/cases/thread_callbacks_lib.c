#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long (*function)(long);
static long total;
static pthread_t early[4], late[5];

static void *run(void *argument) {
  pthread_mutex_lock(&lock);
  while (!function) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  long sum = 0;
  for (long i = 0; i < 10000; i++) sum += function(i);
  __atomic_add_fetch(&total, sum, __ATOMIC_SEQ_CST);
  return 0;
}

__attribute__((constructor)) static void begin(void) {
  for (int i = 0; i < 4; i++) pthread_create(&early[i], 0, run, 0);
}

long library_run(long (*callback)(long)) {
  for (int i = 0; i < 5; i++) pthread_create(&late[i], 0, run, 0);
  pthread_mutex_lock(&lock);
  function = callback;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < 4; i++) pthread_join(early[i], 0);
  for (int i = 0; i < 5; i++) pthread_join(late[i], 0);
  return total;
}

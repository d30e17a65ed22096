//# about: thread-local variables in all access models, in the program and in libraries, in several threads
//# lib: tls_lib.c
//# also: aarch64-gcc-so aarch64-clang-pie aarch64-clang-so
//# flags: -pthread
//# not static: needs a shared library
//# not static-pie: needs a shared library
//# build gd: -ftls-model=global-dynamic -fPIC
//# build ld: -ftls-model=local-dynamic -fPIC
//# build ie: -ftls-model=initial-exec
//# stdout: 40 2005 0
//# count worker: 4
#include <pthread.h>
#include <stdio.h>

extern __thread int library_tls;
int library_bump(int n);
static __thread int local_a = 1, local_b;
__thread int exported_tls = 3;
__thread char big[5000];
__attribute__((tls_model("initial-exec"))) static __thread int initial = 9;

__attribute__((noinline, noipa)) static void *worker(void *argument) {
  long n = (long)argument, sum = 0;
  for (int i = 0; i < 1000; i++) {
    local_a += i & 1;
    local_b++;
    exported_tls += n;
    initial ^= i;
    library_tls++;
    big[i] = i;
    sum += library_bump(1);
  }
  return (void *)(long)(local_a == 501 && local_b == 1000 && exported_tls == 3 + 1000 * n && initial == 9 && big[999] == (char)999 && sum > 0);
}

int main(int argc, char **argv) {
  pthread_t threads[4];
  int good = 0;
  for (long i = 0; i < 4; i++) pthread_create(&threads[i], 0, worker, (void *)i);
  for (int i = 0; i < 4; i++) { void *result; pthread_join(threads[i], &result); good += result ? 10 : 0; }
  for (int k = 0; k < 1000; k++) library_bump(2);
  printf("%d %d %d\n", good, library_bump(0), local_b);
  return 0;
}

//# about: the unwinder walks through moved and split code: frame counts, function starts, cleanups by forced unwinding
//# flags: -fexceptions -pthread
//# build O3: -O3
//# build frame: -fno-omit-frame-pointer
//# count recurse: 1009
#include <pthread.h>
#include <stdio.h>
#include <execinfo.h>
#include <unwind.h>

static int base, wrong, cleaned;
static volatile int zero;

__attribute__((noinline, noipa)) static int frames(void) {
  void *addresses[200];
  return backtrace(addresses, 200);
}
static _Unwind_Reason_Code count_frame(struct _Unwind_Context *context, void *data) {
  if (_Unwind_GetIP(context)) ++*(int *)data;
  return _URC_NO_REASON;
}
__attribute__((noinline, noipa)) static int recurse(int n, int cold) {
  char buffer[40 + (zero & 7)];
  buffer[n & 15] = n;
  int r;
  if (n == 0) {
    int depth = 0;
    _Unwind_Backtrace(count_frame, &depth);
    r = frames();
    if (depth + 1 < r || depth > r + 1) wrong++;
    return r;
  }
  if (__builtin_expect(cold == n, 0)) {
    r = frames();
    if (r <= 0) wrong++;
    r = recurse(n - 1, cold) + 0 * buffer[n & 15];
  } else {
    r = recurse(n - 1, cold) + 0 * buffer[n & 15];
  }
  return r + zero;
}
static void clean(int *p) { cleaned += *p; }
__attribute__((noinline, noipa)) static void *cancelled(void *argument) {
  __attribute__((cleanup(clean))) int guard = 5;
  if (argument) pthread_exit((void *)7);
  return 0;
}

int main(int argc, char **argv) {
  base = recurse(0, 99);
  for (int n = 1; n <= 43; n++) {
    int got = recurse(n, n / 2) - base;
    if (got != n) { printf("depth %d gave %d\n", n, got); wrong++; }
  }
  recurse(18, 18);
  pthread_t thread;
  void *result = 0;
  pthread_create(&thread, 0, cancelled, &thread);
  pthread_join(thread, &result);
  printf("wrong=%d cleaned=%d result=%ld\n", wrong, cleaned, (long)result);
  return wrong;
}

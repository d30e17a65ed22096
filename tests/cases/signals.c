//# about: handlers on the normal and the alternate stack, a fault that is mended by siglongjmp, a stack overflow
//# count handler: 100
//# stdout: usr=100 segv=20 overflow=1
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int usr, segv, overflow;
static sigjmp_buf back;
static char *stack;

__attribute__((noinline, noipa)) static void handler(int number) { usr++; }
static void on_segv(int number, siginfo_t *info, void *context) {
  char here;
  if (&here < stack || &here >= stack + 65536) abort();
  segv++;
  siglongjmp(back, 1);
}
__attribute__((noinline, noipa)) static int overflows(int n) {
  volatile char frame[4096];
  frame[n & 4095] = n;
  return overflows(n + 1) + frame[n & 4095];
}

int main(int argc, char **argv) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  sigaction(SIGUSR1, &action, 0);
  stack = malloc(65536);
  stack_t alternate = { .ss_sp = stack, .ss_size = 65536 };
  sigaltstack(&alternate, 0);
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, 0);
  sigaction(SIGBUS, &action, 0);
  for (int i = 0; i < 100; i++) raise(SIGUSR1);
  for (volatile int i = 0; i < 20; i++)
    if (!sigsetjmp(back, 1)) *(volatile int *)(long)(8 + i) = 1;
  int faults = segv;
  if (!sigsetjmp(back, 1)) overflows(0);
  else overflow++;
  printf("usr=%d segv=%d overflow=%d\n", usr, faults, overflow);
  return 0;
}

//# about: breakpoints in the code (int3), from which a signal handler or a debugger lets the program go on with what comes behind: in the middle of functions, in front of other blocks, and at the end with an instruction behind that says why
//# not aarch64: it has no int3
//# stdout: 8 traps, last tag 0x4f, sum 2611
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

static volatile int traps, tag;
static sigjmp_buf back;

// As HWASan's: the instruction behind the breakpoint tells what it is for.
static void trap(int signal, siginfo_t *info, void *context) {
  const unsigned char *pc = (const unsigned char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
  traps++;
  if (pc[0] == 0x0f && pc[1] == 0x1f && pc[2] == 0x40) {
    tag = pc[3];
    siglongjmp(back, 1);
  }
}

static volatile int wanted;
// As wxWidgets' and GLib's: a function that goes on behind it, if it is wanted at all.
__attribute__((noinline, noipa)) static int checked(int n) {
  int sum = n;
  if (n % 7 == 0 || n % 11 == 5) {
    sum += 3;
    if (wanted) __asm__ volatile("int3");
    if (n & 1) sum += 9;
  }
  for (int i = 0; i < (n & 3); i++) sum += i;
  return sum;
}
__attribute__((noinline, noipa)) static int ends(const char *p, int n) {
  if (n < 20) return p[n];
  __asm__ volatile("int3\n  nopl 0x4f(%0)" : : "a"(p));
  __builtin_unreachable();
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGTRAP, &action, 0);
  int sum = 0;
  for (int i = 0; i < 70; i++) {
    wanted = i > 30;
    sum += checked(i);
  }
  char text[32];
  memset(text, 1, sizeof text);
  for (volatile int i = 0; i < 30; i++)
    if (!sigsetjmp(back, 1)) sum += ends(text, i);
    else break;
  printf("%d traps, last tag %#x, sum %d\n", traps, tag, sum);
  return 0;
}

//# about: coroutines by makecontext and swapcontext: returns on other stacks than calls
//# all states: aarch64-gcc-static-pie
//# count produce: 1000
#include <stdio.h>
#include <ucontext.h>

static ucontext_t consumer, producers[2];
static char stacks[2][65536];
static int slot, finished;

__attribute__((noinline, noipa)) static int produce(int who, int i) { return who ? i * i : i + 1000; }
static void coroutine(int who) {
  for (int i = 0; i < 500; i++) {
    slot = produce(who, i);
    swapcontext(&producers[who], &consumer);
  }
  finished++;
}

int main(int argc, char **argv) {
  long sum = 0;
  for (int who = 0; who < 2; who++) {
    getcontext(&producers[who]);
    producers[who].uc_stack.ss_sp = stacks[who];
    producers[who].uc_stack.ss_size = sizeof stacks[who];
    producers[who].uc_link = &consumer;
    makecontext(&producers[who], (void (*)(void))coroutine, 1, who);
  }
  for (int i = 0; i < 1002; i++) {
    slot = 0;
    swapcontext(&consumer, &producers[i & 1]);
    sum = sum * 3 % 1000003 + slot;
  }
  printf("%ld %d\n", sum, finished);
  return 0;
}

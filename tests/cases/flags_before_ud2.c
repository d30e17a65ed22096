//# about: a flag that a call has left is neither read nor overwritten in front of an undefined instruction, as where Rust counts references after a system call that could have forked
//# not aarch64: it has no flags behind a call that an increment keeps
//# stdout: 20 references, 20 calls
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

long references = 0;
static long calls;

__attribute__((noinline, noipa)) static long counted(long n) {
  long id = syscall(n & 1 ? SYS_getpid : SYS_gettid);
  // `inc` leaves the carry flag as it is.
  __asm__ goto("lock incq %0\n  jle %l[overflows]" : : "m"(references) : "memory" : overflows);
  calls += id > 0;
  return n;
overflows:
  __builtin_trap();
}

int main(int argc, char **argv) {
  long sum = 0;
  for (int i = 0; i < 20; i++) sum += counted(i);
  printf("%ld references, %ld calls\n", references, calls);
  return sum != 190;
}

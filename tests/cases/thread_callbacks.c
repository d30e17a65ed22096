//# about: a library starts threads that call back: some before the program has begun
//# lib: thread_callbacks_lib.c
//# flags: -pthread
//# link: -pthread
//# not aarch64: a program that starts no threads by itself counts plainly there
//# not static: needs a shared library
//# not static-pie: needs a shared library
//# count callback: 90000
//# stdout: 90000
#include <stdio.h>

long library_run(long (*callback)(long));

__attribute__((noinline, noipa)) static long callback(long x) { return x & 1 ? 1 : 2 - 1; }

int main(int argc, char **argv) {
  printf("%ld\n", library_run(callback));
  return 0;
}

//# about: tables of 4-byte distances to functions, to return addresses and to the end of a function: what the program finds through them must be what pointers, calls and comparisons give
//# pinned: framed
//# needs relocations: return addresses are compared with distances in a table (assumption A1)
//# moved: first
//# count first: 30
//# stdout: 1 1 1 8945
#include <stdio.h>
typedef int (*op)(int);

__attribute__((noinline, noipa, used)) static int first(int x) { return x > 100 ? x / 2 : x * 3 + 1; }
__attribute__((noinline, noipa, used)) static int second(int x) {
  for (int i = 0; i < x % 7; i++) x += i * (x & 3);
  return x;
}

/* Where the address of its table is a mere number, it stays. */
__attribute__((noinline, noipa, used)) static int third(int x) { return x > 7 ? x - 7 : x * 5; }

/* By distances from the words themselves, as run-times of Swift, of C++ with relative tables and many a linker script have it. */
asm(".pushsection .rodata\n.balign 4\nrelative:\n.long first - .\n.long second - .\n.popsection\n");
extern const int relative[] __attribute__((visibility("hidden")));
/* As pointers. */
static op const volatile absolute[] = {first, second, third};

__attribute__((noinline)) static op follow(const int *word) { return (op)((const char *)word + *word); }

/* By distances from the start of the table. */
asm(".pushsection .rodata\n.balign 4\nbased:\n.long second - based\n.long third - based\n.popsection\n");
extern const int based[] __attribute__((visibility("hidden")));

/* A table that gives frames by return address. */
extern const int frames[] __attribute__((visibility("hidden")));
static int found;
__attribute__((noinline, noipa, used)) static int callee(int x) {
  found += (const char *)frames + *frames == (const char *)__builtin_return_address(0);
  return x * 3;
}
__attribute__((noinline, noipa)) int framed(int x) {
  register int r asm(
#ifdef __x86_64__
      "rdi"
#else
      "x0"
#endif
  ) = x;
#ifdef __x86_64__
  int result;
  asm volatile("subq $128, %%rsp\n call callee\n1: addq $128, %%rsp\n"
               ".pushsection .rodata\n.balign 4\nframes: .long 1b - .\n.popsection"
               : "=a"(result), "+r"(r)
               :
               : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
  return result;
#else
  asm volatile("bl callee\n1:\n.pushsection .rodata\n.balign 4\nframes: .long 1b - .\n.popsection"
               : "+r"(r)
               :
               : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
                 "x17", "x30", "memory", "cc");
  return r;
#endif
}

int main(int argc, char **argv) {
  int sum = 0, same = 1;
  for (int i = 0; i < 60; i++) {
    sum += follow(&relative[i & 1])(i) + framed(i);
    same &= follow(&relative[i & 1]) == absolute[i & 1];
  }
  int beside = (const char *)based + based[1] == (const char *)absolute[2];
  printf("%d %d %d %d\n", same, beside, found == 60, sum);
  return 0;
}

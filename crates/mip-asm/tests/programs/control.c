/* Every shape of control flow that compilers make something of: switch tables, computed jumps, loops, early ends. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf place;

__attribute__((noinline)) static int table(int n) {
  switch (n) {
  case 0: return 3;
  case 1: puts("one"); return 5;
  case 2: return n * 7;
  case 3: puts("three"); /* fall through */
  case 4: return n + 100;
  case 5: return -n;
  case 6: puts("six"); return 6;
  case 7: return n << 3;
  default: return 0;
  }
}

__attribute__((noinline)) static int computed(const char *code) {
  static const void *const labels[] = {&&add, &&twice, &&never, &&done};
  int value = 1;
  goto *labels[code[0] - 'a'];
add:
  value += 1;
  code++;
  goto *labels[code[0] - 'a'];
twice:
  value *= 2;
  code++;
  goto *labels[code[0] - 'a'];
never:
  value -= 100;
  code++;
  goto *labels[code[0] - 'a'];
done:
  return value;
}

__attribute__((noinline)) static int loops(int n) {
  int sum = 0, i, j;
  for (i = 0; i < n; i++) {
    if (i % 3 == 0) continue;
    for (j = i; j > 0; j--) {
      if (j == 7) break;
      sum += j ^ i;
    }
    if (sum > 100000) return -1;
  }
  return sum;
}

__attribute__((noinline)) static void leave(int n) {
  if (n == 1) longjmp(place, 5);
  if (n == 2) exit(0);
}

__attribute__((noinline)) static int leaves(int n) {
  int result = n;
  if (n > 0) {
    result += 1;
    leave(n);
    result += 2; /* not when leave does not come back */
  }
  return result;
}

__attribute__((noinline)) static int self(int n, int acc) { return n == 0 ? acc : self(n - 1, acc + n); }

/* Its first instruction is a loop's. */
__attribute__((noinline)) static int first(const char *s) {
  int n = 0;
  while (*s++) n++;
  return n;
}

__attribute__((noinline)) static int inline_assembly(int n) {
#if defined(__x86_64__)
  __asm__ volatile("1:\n\tdecl %0\n\tjns 1b" : "+r"(n)::"cc");
#endif
  return n;
}

__attribute__((noinline, cold)) static void rare(void) { puts("rare"); }

typedef int (*pointer)(int);
static pointer const pointers[] = {table, leaves};

int main(int argc, char **argv) {
  int i, sum = 0;
  (void)argv;
  for (i = 0; i < 12; i += 2) sum += table(i);
  printf("%d %d %d\n", sum, computed("abbad"), loops(20));
  if (argc > 3) rare();
  if (setjmp(place) == 0) {
    sum += leaves(1);
    puts("not here");
  } else {
    puts("jumped");
  }
  printf("%d %d %d %d\n", self(10, 0), first("hello"), inline_assembly(3), pointers[argc > 5](1));
  leaves(2);
  puts("nor here");
  return 0;
}

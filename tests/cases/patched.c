//# about: functions whose first instructions a list names for being patched while the program runs: who patches them must find them where the list says
//# flags: -fpatchable-function-entry=4,2
//# kinds: gcc-pie gcc-nopie clang-pie gcc-so aarch64-gcc-pie
//# pinned: listed
//# moved: free_to_move
//# count free_to_move: 40
//# stdout: 4140 1
#include <stdio.h>

/* What the compiler's list says. */
extern void *__start___patchable_function_entries[], *__stop___patchable_function_entries[];

__attribute__((noinline, noipa)) int listed(int x) { return x & 1 ? x * 3 : x + 7; }
__attribute__((noinline, noipa, patchable_function_entry(0))) int free_to_move(int x) {
  int s = 0;
  for (int i = 0; i < x % 5; i++) s += i ^ x;
  return s + x;
}

int main(int argc, char **argv) {
  int sum = 0, found = 0;
  for (int i = 0; i < 40; i++) sum += listed(i) + free_to_move(i);
  for (void **p = __start___patchable_function_entries; p < __stop___patchable_function_entries; p++)
    found |= (char *)listed - (char *)*p >= 0 && (char *)listed - (char *)*p < 16;
  printf("%d %d\n", sum, found);
  return 0;
}

//# about: copy relocations and data shared with a library, constant pointers into both
//# lib: copy_data_lib.c
//# not static: needs a shared library
//# not static-pie: needs a shared library
//# stdout: 6 16 100 16
#include <stdio.h>

extern int library_array[8];
extern const char *library_text;
extern int (*library_hook)(int);
int library_sum(void);
static int *const inside = &library_array[3];
static int hook(int x) { return x * 10; }

int main(int argc, char **argv) {
  int before = *inside * 2;
  *inside += 3;
  library_array[0] = 4;
  int sum = library_sum();
  library_hook = hook;
  printf("%d %d %d %d\n", before, library_sum() - 0 * sum, library_hook(10), sum);
  return 0;
}

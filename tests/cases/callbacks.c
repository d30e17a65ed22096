//# about: functions that only libc calls: qsort, bsearch, tsearch, atexit, signal-free loops through printf
//# build lto: -flto
//# stdout: 0 4999 1 1711 done
#define _GNU_SOURCE
#include <search.h>
#include <stdio.h>
#include <stdlib.h>

static long comparisons, walked;
__attribute__((noinline, noipa)) static int by_value(const void *a, const void *b) {
  int x = *(const int *)a, y = *(const int *)b;
  comparisons++;
  return x < y ? -1 : x > y;
}
static int by_key(const void *a, const void *b, void *data) { return ((*(const int *)a * 7) & *(int *)data) - ((*(const int *)b * 7) & *(int *)data); }
static void walk(const void *node, VISIT visit, int depth) { if (visit == postorder || visit == leaf) walked += **(const int **)node; }

int main(int argc, char **argv) {
  static int data[5000], copy[5000];
  for (int i = 0; i < 5000; i++) copy[i] = data[i] = (i * 7919) % 5000;
  qsort(data, 5000, sizeof *data, by_value);
  int key = 1711, mask = 0xff;
  int *found = bsearch(&key, data, 5000, sizeof *data, by_value);
  qsort_r(copy, 5000, sizeof *copy, by_key, &mask);
  void *root = 0;
  for (int i = 0; i < 59; i++) tsearch(&data[i], &root, by_value);
  twalk(root, walk);
  printf("%d %d %d %ld done\n", data[0], data[4999], found && *found == 1711, walked);
  return comparisons < 5000;
}

//# about: exceptions through C frames that have cleanups of their own, and out of a callback of a comparator
//# flags: -fexceptions
//# with: eh_through_c_part.c
//# count c_frame: 300
#include <cstdio>
#include <cstdlib>

extern "C" int c_frame(int x, int (*callback)(int), int *cleaned);
extern "C" void c_sort(int *data, int n, int (*compare)(const void *, const void *));

static int callback(int x) {
  if (x % 4 == 1) throw x;
  if (x % 4 == 2) throw 'c';
  return x * 2;
}
static int comparisons;
static int compare(const void *a, const void *b) {
  if (++comparisons % 50 == 0) throw 5L;
  return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv) {
  int cleaned = 0, ints = 0, chars = 0, longs = 0;
  long sum = 0;
  for (int i = 0; i < 300; i++) {
    try {
      sum += c_frame(i, callback, &cleaned);
    } catch (int n) {
      ints++; sum += n;
    } catch (char) {
      chars++;
    }
    int data[8] = {5, 3, 8, 1, 9, 2, 7, i % 10};
    try {
      c_sort(data, 8, compare);
      sum += data[0] * 10 + data[7];
    } catch (long n) {
      longs += n;
    }
  }
  printf("cleaned=%d ints=%d chars=%d longs=%d sum=%ld\n", cleaned, ints, chars, longs, sum);
  return 0;
}

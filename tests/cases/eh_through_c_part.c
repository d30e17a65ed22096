/* Part of eh_through_c: frames in C, compiled with -fexceptions. */
static void count(int **cleaned) { ++**cleaned; }

int c_frame(int x, int (*callback)(int), int *cleaned) {
  __attribute__((cleanup(count))) int *guard = cleaned;
  int r = callback(x);
  if (r & 4) r += callback(x + 4);
  return r + 1;
}

void c_sort(int *data, int n, int (*compare)(const void *, const void *)) {
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && compare(&data[j - 1], &data[j]) > 0; j--) {
      int t = data[j]; data[j] = data[j - 1]; data[j - 1] = t;
    }
}

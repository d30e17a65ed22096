//# about: without kept relocations: a tiny function that is called directly, so that it could be inlined, and by pointer so often that it stays
//# stdout: 505000
#include <stdio.h>

long value = 1;
__attribute__((noinline, noipa)) long get(void) { return value; }
long (*volatile pointer)(void) = get;

__attribute__((noinline, noipa)) long directly(int n) {
  long sum = 0;
  for (int i = 0; i < n; i++) sum += get() + (sum & 1 ? 0 : i & 0);
  return sum;
}
__attribute__((noinline, noipa)) long by_pointer(int n) {
  long sum = 0;
  for (int i = 0; i < n; i++) sum += pointer();
  return sum;
}

int main(int argc, char **argv) {
  (void)argv;
  long sum = 0;
  for (int i = 0; i < 100; i++) sum += directly(50 * argc) + by_pointer(5000 * argc);
  printf("%ld\n", sum);
  return 0;
}

//# about: numbers in data that have the values of code addresses: the linker kept a relocation for none of them, so they are no ways into old bodies
//# kinds: gcc-nopie gcc-static clang-nopie
//# count choose: 60
//# moved: choose
#include <stdio.h>
#include <stdlib.h>

#define EIGHT(n) n, (n) + 6, (n) + 11, (n) + 17, (n) + 22, (n) + 28, (n) + 33, (n) + 39
#define SIXTY(n) EIGHT(n), EIGHT((n) + 44), EIGHT((n) + 88), EIGHT((n) + 132), EIGHT((n) + 176), EIGHT((n) + 220), EIGHT((n) + 264), EIGHT((n) + 308)
#define ALL(n) SIXTY(n), SIXTY((n) + 352), SIXTY((n) + 704), SIXTY((n) + 1056), SIXTY((n) + 1408), SIXTY((n) + 1760), SIXTY((n) + 2112)
static int zero;
// In one section with a pointer, so that the section has kept relocations.
struct {
  int *pointer;
  unsigned long numbers[64 * 7 * 2];
} volatile data = {&zero, {ALL(0x401020), ALL(0x401021)}};

__attribute__((noinline, noipa)) static int choose(int i) {
  if (__builtin_expect(i > 1000, 0)) {
    fprintf(stderr, "%d is too large\n", i);
    for (int k = 0; k < i; k++) zero += k * i ^ (k << 3);
    fprintf(stderr, "and makes %d\n", zero);
    abort();
  }
  return i * 3 + *data.pointer;
}

int main(int argc, char **argv) {
  unsigned long h = 0;
  for (int i = 0; i < 60; i++) h = h * 31 + (unsigned)choose(i * argc);
  for (int i = 0; i < 64 * 7 * 2; i++) h = h * 7 + data.numbers[i];
  printf("%lx\n", h);
  return 0;
}

//# about: what clang puts in front of functions and reads through pointers to them before each indirect call: a hash of the type, in code that runs on into the function or as data
//# kinds: clang-pie clang-nopie clang-so
//# build kcfi: -fsanitize=kcfi
//# build function: -fsanitize=function -fsanitize-trap=function
//# moved: two
//# count two: 100
//# stdout: -740142831
#include <stdio.h>
typedef int (*op)(int);
__attribute__((noinline, noipa)) int one(int x) { return x > 100 ? x / 2 : x + 1; }
__attribute__((noinline, noipa)) int two(int x) {
  for (int i = 0; i < x % 7; i++) x += i * (x & 3);
  return x;
}
__attribute__((noinline, noipa)) int three(int x) { return x > 4 ? x * 2 - 7 : x - 3; }
static op volatile table[] = {one, two, three, two};

int main(int argc, char **argv) {
  int s = 0;
  for (int i = 0; i < 200; i++) s = s * 31 + table[i % 4](i * 37 % 23);
  printf("%d\n", s);
  return 0;
}

//# about: a cold part that ends with a call of _Unwind_Resume, directly in front of its function's entry: the entry and the landing pad that comes behind the call in new code begin with the same instruction
//# not aarch64: it has no endbr64
//# kinds: gcc-pie gcc-nopie
//# flags: -fcf-protection=full -falign-functions=1 -falign-jumps=1 -falign-loops=1 -falign-labels=1 -freorder-blocks-and-partition
//# moved: main
//# stdout: made 9, ended 9
#include <cstdio>
#include <stdexcept>

static int made, ended;
struct Counted {
  int *of;
  __attribute__((noinline, noipa)) Counted() : of(&ended) { made++; }
  __attribute__((noinline, noipa)) ~Counted() { ++*of; }
};
__attribute__((noinline, noipa)) static void may_throw(int n) {
  if (n > 100) throw std::runtime_error("not here");
}

int main(int argc, char **argv) {
  for (int i = 0; i < 3; i++) {
    Counted one;
    may_throw(i);
    Counted two;
    may_throw(i + 1);
    Counted three;
    may_throw(i + 2);
  }
  printf("made %d, ended %d\n", made, ended);
  return 0;
}

//# about: a dense switch, whose jump table is relative in PIC code and absolute elsewhere
//# build O0: -O0
//# build O1: -O1
//# build O3: -O3
//# build Os: -Os
//# stdout: 1361287177
//# moved: dispatch
//# count dispatch: 4000
#include <stdio.h>

__attribute__((noinline, noipa)) static unsigned dispatch(unsigned op, unsigned x) {
  switch (op) {
  case 0: return x + 1;
  case 1: return x * 3;
  case 2: return x ^ 0x55;
  case 3: return x >> 3;
  case 4: return x << 2;
  case 5: return ~x;
  case 6: return x - 77;
  case 7: return x | 0x1000;
  case 8: return x & 0xfffff;
  case 9: return x * x;
  case 10: return x / 7;
  case 12: return x % 1001;
  default: return 0x12345678;
  }
}

int main(int argc, char **argv) {
  unsigned h = 2166136261u;
  for (unsigned i = 0; i < 4000; i++) h = (h ^ dispatch(i % 15, h + i)) * 16777619u;
  printf("%u\n", h);
  return 0;
}

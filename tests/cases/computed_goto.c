//# about: an interpreter with labels as values, absolute and as differences, the table in data
//# build O1: -O1
//# build O0: -O0
//# build O3: -O3
//# count interpret: 3
#include <stdio.h>

enum { PUSH, ADD, SUB, MUL, DUP, SWAP, JNZ, DEC, HALT };

__attribute__((noinline, noipa)) static long interpret(const int *code) {
  static const void *const labels[] = { &&push, &&add, &&sub, &&mul, &&dup, &&swap, &&jnz, &&dec, &&halt };
  long stack[64], *sp = stack;
  const int *pc = code;
#define NEXT goto *labels[*pc++]
  NEXT;
push: *sp++ = *pc++; NEXT;
add: sp--; sp[-1] += sp[0]; NEXT;
sub: sp--; sp[-1] -= sp[0]; NEXT;
mul: sp--; sp[-1] = sp[-1] * sp[0] % 1000003; NEXT;
dup: *sp = sp[-1]; sp++; NEXT;
swap: { long t = sp[-1]; sp[-1] = sp[-2]; sp[-2] = t; } NEXT;
jnz: if (sp[-1]) pc = code + *pc; else { pc++; sp--; } NEXT;
dec: sp[-1]--; NEXT;
halt: return sp[-1];
#undef NEXT
}

__attribute__((noinline, noipa)) static long interpret_relative(const int *code) {
  static const int offsets[] = { &&push - &&push, &&add - &&push, &&mul - &&push, &&dec - &&push, &&jnz - &&push, &&halt - &&push };
  long a = 1, n = 0;
  const int *pc = code;
#define NEXT goto *(&&push + offsets[*pc++])
  NEXT;
push: n = *pc++; NEXT;
add: a += n; NEXT;
mul: a = a * 3 % 1000003; NEXT;
dec: n--; NEXT;
jnz: if (n) pc = code + *pc; else pc++; NEXT;
halt: return a;
}

int main(int argc, char **argv) {
  /* acc counter: loop { acc = acc*7 + 3; counter-- } */
  static const int program[] = { PUSH, 1, PUSH, 2000, SWAP, PUSH, 7, MUL, PUSH, 3, ADD, SWAP, DEC, JNZ, 4, HALT };
  static const int relative[] = { 0, 3000, 1, 2, 3, 4, 2, 5 };
  for (int i = 0; i < 3; i++) printf("%ld\n", interpret(program));
  for (int i = 0; i < 2; i++) printf("%ld\n", interpret_relative(relative));
  return 0;
}

//# about: a tiny function that is inlined uses the second byte of a register (ah), whose number is that of a part of the stack pointer (spl) with another prefix
//# not aarch64: the code is x86-64's
//# stdout: 10987
#include <stdio.h>

int table[4] = {0x1234, 0x4567, 0x789a, 0x0bcd};
__attribute__((visibility("hidden"))) int second(int i, int *of);
__asm__(".text\n.globl second\n.type second,@function\n.p2align 4\nsecond:\n.cfi_startproc\n"
        "movslq %edi,%rdi\nmov (%rsi,%rdi,4),%eax\nmovzbl %ah,%eax\nret\n.cfi_endproc\n.size second,.-second\n");
int (*pointer)(int, int *) = second;

__attribute__((noinline, noipa)) int directly(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) sum += second(i & 3, table);
  return sum;
}

int main(int argc, char **argv) {
  int (*volatile hidden)(int, int *) = pointer;
  printf("%d\n", directly(201) + hidden(1, table));
  return 0;
}

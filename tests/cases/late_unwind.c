//# about: a function whose unwind entry begins behind its first instruction: such a table cannot be carried over
//# not aarch64: instructions of x86-64
//# pinned: late
//# stdout: 14850
#include <stdio.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

__asm__(
    ".text\n.p2align 4\n"
    ".globl late\n.hidden late\n.type late,@function\nlate:\n endbr64\n.cfi_startproc\n"
    "pushq %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset 3,-16\n"
    "movq %rdi,%rbx\n testq %rbx,%rbx\n je 1f\n leaq (%rbx,%rbx,2),%rbx\n"
    "1: movq %rbx,%rax\n popq %rbx\n.cfi_def_cfa_offset 8\n ret\n.cfi_endproc\n.size late,.-late\n");
long late(long value);

int main(int argc, char **argv) {
  (void)argc, (void)argv;
  long sum = 0;
  for (long i = 0; i < 100; i++) sum += late(i);
  printf("%ld\n", sum);
  return 0;
}

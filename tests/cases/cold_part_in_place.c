//# about: a jump table whose cold cases get back to the very place that they had, in the room that the function itself leaves: the entry of the table does not change, and leads to new code
//# kinds: gcc-pie clang-pie
//# moved: dispatch
//# count dispatch: 1000
//# stdout: 501500
#include <stdio.h>

/* 25 bytes of hot code: 5 of them become the jump to the new place. 20 bytes more are needed by five branches from cold code to hot code,
   which is far away then: the second cold case begins where it did. */
asm(".text\n.p2align 4\n.globl dispatch\n.type dispatch,@function\ndispatch:\n.cfi_startproc\n"
    "cmpl $2, %edi\n ja 4f\n leaq table(%rip), %rax\n movslq (%rax,%rdi,4), %rcx\n addq %rax, %rcx\n jmp *%rcx\n"
    "1: leal 1(%rsi), %eax\n ret\n"
    "2: testl $1, %esi\n je 1b\n testl $2, %esi\n je 1b\n testl $4, %esi\n je 1b\n testl $8, %esi\n je 1b\n testl $16, %esi\n je 1b\n leal 7(%rsi), %eax\n ret\n"
    "3: leal 2(%rsi,%rsi,2), %eax\n ret\n"
    "4: leal 5(%rsi), %eax\n ret\n"
    ".cfi_endproc\n.size dispatch,.-dispatch\n"
    ".section .rodata\n.p2align 2\ntable:\n.long 1b - table\n.long 2b - table\n.long 3b - table\n.text\n");
extern int dispatch(unsigned which, int x) __attribute__((visibility("hidden")));

int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 1000; i++) sum += dispatch(argc > 3 ? i % 5 : 0, i + 1);
  if (argc > 2) sum += dispatch(1, argc) + dispatch(2, argc) + dispatch(3, argc);
  printf("%d\n", sum);
  return 0;
}

//# about: without kept relocations: where a function restores its frame pointer, which nothing reads before that, its unwind rows still find the frame by it
//# not aarch64: instructions of x86-64
//# instrument: --counters atomic
//# moved: drop
//# long: drop
//# stdout: 100 34
#include <stdio.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

__asm__(
    ".text\n.p2align 4\n"
    /* All of the registers that a function may change are in use, and flags, as the jump may lead to a part of it. */
    ".globl drop\n.hidden drop\n.type drop,@function\ndrop:\n.cfi_startproc\n"
    "pushq %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset 6,-16\n"
    "movq %rsp,%rbp\n.cfi_def_cfa_register 6\n"
    "movq (%rdi),%rax\n lock decq (%rax)\n jne 2f\n"
    "popq %rbp\n.cfi_remember_state\n.cfi_def_cfa 7,8\n jmp last\n"
    "2: .cfi_restore_state\n popq %rbp\n.cfi_def_cfa 7,8\n ret\n.cfi_endproc\n.size drop,.-drop\n"
    ".p2align 4\n"
    ".globl last\n.hidden last\n.type last,@function\nlast:\n.cfi_startproc\n"
    "movq $3,(%rax)\n incq 8(%rdi)\n ret\n.cfi_endproc\n.size last,.-last\n");
struct counted {
  long *uses, ends;
};
void drop(struct counted *counted);

int main(int argc, char **argv) {
  (void)argc, (void)argv;
  long uses = 1, calls = 0;
  struct counted counted = {&uses, 0};
  for (; calls < 100; calls++) drop(&counted);
  printf("%ld %ld\n", calls, counted.ends);
  return 0;
}

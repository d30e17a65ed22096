//# about: a function of two parts of which one has a personality routine and neither has an exception table
//# not aarch64: instructions of x86-64
//# pinned: mixed
//# stdout: 5050
#include <stdio.h>

__attribute__((visibility("hidden"))) int personality(void) { return 8; /* _URC_CONTINUE_UNWIND */ }

__asm__(
    ".text\n.p2align 4\n.globl mixed\n.type mixed,@function\nmixed:\n"
    ".cfi_startproc\n.cfi_personality 0x1b,personality\n xorl %eax,%eax\n"
    "1: addl %edi,%eax\n decl %edi\n jg 1b\n jl mixed.cold\n3: ret\n.cfi_endproc\n.size mixed,.-mixed\n.p2align 4\n"
    ".type mixed.cold,@function\nmixed.cold:\n"
    ".cfi_startproc\n negl %eax\n jmp 3b\n.cfi_endproc\n.size mixed.cold,.-mixed.cold\n.p2align 4\n");
int mixed(int n);

int main(int argc, char **argv) {
  (void)argc, (void)argv;
  printf("%d\n", mixed(100));
  return 0;
}

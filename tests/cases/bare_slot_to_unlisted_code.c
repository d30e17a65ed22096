//# about: without kept relocations: tail calls through words that never change, of code with neither a symbol nor an unwind entry
//# not aarch64: instructions of x86-64
//# moved: leave drop
//# long: leave drop
//# in old code: pass
//# stdout: 4950 328350 100
#include <stdio.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

__asm__(
    ".text\n.p2align 4\n"
    /* Flags are in use up to the branch, and no more in front of the jump, where a block with a counter begins. */
    ".globl leave\n.hidden leave\n.type leave,@function\nleave:\n.cfi_startproc\n"
    "testq %rdi,%rdi\n je 1f\n leaq (%rdx),%rsi\n jmp *slot(%rip)\n"
    "1: ret\n.cfi_endproc\n.size leave,.-leave\n"
    ".p2align 4\n"
    ".globl drop\n.hidden drop\n.type drop,@function\ndrop:\n.cfi_startproc\n"
    "pushq %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset 6,-16\n"
    "movq %rsp,%rbp\n.cfi_def_cfa_register 6\n"
    "imulq %rdi,%rdi\n testq %rdi,%rdi\n je 2f\n movq %rdx,%rsi\n"
    "popq %rbp\n.cfi_remember_state\n.cfi_def_cfa 7,8\n jmp *slot(%rip)\n"
    "2: .cfi_restore_state\n popq %rbp\n.cfi_def_cfa 7,8\n ret\n.cfi_endproc\n.size drop,.-drop\n"
    /* No symbol, no unwind entry: what a compiler makes with -fno-asynchronous-unwind-tables, in a stripped file. */
    ".p2align 4\n"
    ".Ladd: addq %rdi,(%rsi)\n ret\n"
    /* What is behind a function without a size may be a part of it. */
    ".p2align 4\n"
    ".globl pass\n.hidden pass\n.type pass,@function\npass:\n.cfi_startproc\n"
    "testq %rdi,%rdi\n js 3f\n jmp *part(%rip)\n"
    "3: ret\n.cfi_endproc\n.size pass,.-pass\n"
    ".p2align 4\n"
    ".globl unsized\n.hidden unsized\n.type unsized,@function\nunsized: addq %rdi,(%rdx)\n ret\n"
    ".p2align 4\n"
    ".Lpart: incq (%rdx)\n ret\n"
    ".pushsection .data.rel.ro,\"aw\"\n.p2align 3\nslot: .quad .Ladd\npart: .quad .Lpart\n.popsection\n");
void leave(long value, long unused, long *sum);
void drop(long value, long unused, long *sum);
void pass(long value, long unused, long *sum);

int main(int argc, char **argv) {
  (void)argc, (void)argv;
  long sums[3] = {0, 0, 0};
  for (long i = 0; i < 100; i++) leave(i, 0, &sums[0]), drop(i, 0, &sums[1]), pass(i, 0, &sums[2]);
  printf("%ld %ld %ld\n", sums[0], sums[1], sums[2]);
  return 0;
}

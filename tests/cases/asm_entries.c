//# about: assembly with secondary entries, functions that run on into the next, data and tables between code, ends as addresses
//# not aarch64: written for x86-64
//# stdout: 111 11 1 77 10 20 30 -1 1 55 6
#include <stdio.h>

/* three_entries, two and one: each falls into the next; literals and a jump table lie in .text; `after` is the end of a function. */
__asm__(
    ".text\n"
    ".type three_entries, @function\n"
    "three_entries: add $100, %edi\n"
    ".type two_entries, @function\n"
    "two_entries: add $10, %edi\n"
    ".type one_entry, @function\n"
    "one_entry: lea 1(%rdi), %eax\n"
    "  ret\n"
    ".size three_entries, .-three_entries\n.size two_entries, .-two_entries\n.size one_entry, .-one_entry\n"
    "literal: .quad 77\n"
    ".type load_literal, @function\n"
    "load_literal: mov literal(%rip), %eax\n  ret\n"
    ".size load_literal, .-load_literal\n"
    ".type table_in_text, @function\n"
    "table_in_text: lea 1f(%rip), %rdx\n"
    "  cmp $3, %edi\n  jae 9f\n"
    "  movslq (%rdx,%rdi,4), %rax\n  add %rdx, %rax\n  jmp *%rax\n"
    "  .balign 4\n"
    "1: .long 2f - 1b, 3f - 1b, 4f - 1b\n"
    "2: mov $10, %eax\n  ret\n"
    "3: mov $20, %eax\n  ret\n"
    "4: mov $30, %eax\n  ret\n"
    "9: mov $-1, %eax\n  ret\n"
    ".size table_in_text, .-table_in_text\n"
    "table_end:\n"
    ".type backwards, @function\n"
    "1: mov $55, %eax\n  ret\n"
    "backwards: test %edi, %edi\n  jnz 1b\n  xor %eax, %eax\n  ret\n"
    ".size backwards, .-backwards\n"
    ".type pushes, @function\n" /* leaf that keeps data in the red zone between pushes and pops */
    "pushes: mov %rdi, -24(%rsp)\n  mov %rsi, -32(%rsp)\n  push %rdx\n  pop %rax\n"
    "  test %edi, %edi\n  jz 1f\n  add -32(%rsp), %rax\n"
    "1: add -24(%rsp), %rax\n  ret\n"
    ".size pushes, .-pushes\n");
extern int three_entries(int), two_entries(int), one_entry(int), load_literal(void), table_in_text(long), backwards(int);
extern int pushes(long, long, long);
extern const char table_end[];

int main(int argc, char **argv) {
  int (*volatile table)(long) = table_in_text;
  printf("%d %d %d %d %d %d %d %d %d %d %d\n", three_entries(0), two_entries(0), one_entry(0), load_literal(), table(0), table(1), table(2),
         table(3), table_end > (const char *)table, backwards(4), pushes(1, 2, 3));
  return 0;
}

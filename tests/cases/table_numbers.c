//# about: a number that is no address falls into a jump table of relative entries
//# kinds: gcc-nopie clang-nopie gcc-static
//# link: -Wl,--section-start=.tables=0x5000000
//# moved: pick numbers
//# stdout: 10 11 12 13 14 15 16 17 83886088 83886098
//# count pick: 8
#include <stdio.h>

__asm__(
    ".section .tables, \"a\"\n .balign 8\n"
    "table: .long 0f - table, 1f - table, 2f - table, 3f - table, 4f - table, 5f - table, 6f - table, 7f - table\n"
    ".text\n"
    ".type pick, @function\n"
    "pick: lea table(%rip), %rdx\n  cmp $7, %rdi\n  ja 8f\n"
    "  movslq (%rdx,%rdi,4), %rax\n  add %rdx, %rax\n  jmp *%rax\n"
    "0: mov $10, %eax\n  ret\n"
    "1: mov $11, %eax\n  ret\n"
    "2: mov $12, %eax\n  ret\n"
    "3: mov $13, %eax\n  ret\n"
    "4: mov $14, %eax\n  ret\n"
    "5: mov $15, %eax\n  ret\n"
    "6: mov $16, %eax\n  ret\n"
    "7: mov $17, %eax\n  ret\n"
    "8: ud2\n"
    ".size pick, .-pick\n"
    // The table is at 0x5000000: the third entry, and the middle of the fifth.
    ".type numbers, @function\n"
    "numbers: mov $0x5000008, %eax\n  test %edi, %edi\n  jz 9f\n  mov $0x5000012, %eax\n"
    "9: ret\n"
    ".size numbers, .-numbers\n");
extern int pick(long), numbers(int);

int main(int argc, char **argv) {
  for (int i = 0; i < 8; i++) printf("%d ", pick(i));
  printf("%d %d\n", numbers(0), numbers(1));
  return 0;
}

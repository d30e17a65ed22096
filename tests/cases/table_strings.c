//# about: a string in front of a jump table, whose bytes and the table's first make a distance to code that moves
//# kinds: gcc-pie gcc-nopie clang-pie gcc-static
//# link: -Wl,--section-start=.tables=0x5000000 -Wl,--section-start=.picks=0x5400000
//# moved: pick string
//# stdout: 10 11 12 13 14 15 16 17 P
//# count pick: 8
#include <stdio.h>

__asm__(
    // The table is at 0x5000004. The string at 0x5000002 and the lower half of the first distance, 0x400040, are
    // 0x400050, and that from the string is a place in pick.
    ".section .tables, \"a\"\n .balign 8\n"
    " .byte 0, 0\n"
    "letter: .asciz \"P\"\n"
    "table: .long 0f - table, 1f - table, 2f - table, 3f - table, 4f - table, 5f - table, 6f - table, 7f - table\n"
    ".section .picks, \"ax\", @progbits\n .balign 64\n"
    ".type pick, @function\n"
    "pick: lea table(%rip), %rdx\n  cmp $7, %rdi\n  ja 8f\n"
    "  movslq (%rdx,%rdi,4), %rax\n  add %rdx, %rax\n  jmp *%rax\n"
    " .org 0x44, 0x90\n"
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
    ".text\n"
    ".type string, @function\n"
    "string: lea letter(%rip), %rax\n  ret\n"
    ".size string, .-string\n");
extern int pick(long);
extern const char *string(void);

int main(int argc, char **argv) {
  for (int i = 0; i < 8; i++) printf("%d ", pick(i));
  puts(string());
  return 0;
}

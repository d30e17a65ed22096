//# about: one jump table for two jumps, a table whose last entries are another's first, entries that leave the function, tables of words and bytes
//# not aarch64: written for x86-64
//# not static-pie: same as pie
//# stdout: 3 4 5 1003 1004 1005 6 7 8 9 200 31 32 33
#include <stdio.h>

__asm__(
    ".section .rodata\n .balign 4\n"
    "shared: .long 1f - shared, 2f - shared, 3f - shared\n"
    "overlap: .long 4f - shared, 5f - shared\n"
    "outside: .long 6f - shared, elsewhere - shared\n"
    "bytes: .byte 0, 12f - 11f, 13f - 11f\n"
    ".text\n"
    ".type two_jumps, @function\n"
    "two_jumps: lea shared(%rip), %rdx\n  cmp $2, %rdi\n  ja 7f\n"
    "  test %esi, %esi\n  jnz 8f\n"
    "  movslq (%rdx,%rdi,4), %rax\n  add %rdx, %rax\n  mov $3, %ecx\n  jmp *%rax\n"
    "8: movslq (%rdx,%rdi,4), %rax\n  add %rdx, %rax\n  mov $1003, %ecx\n  notrack jmp *%rax\n"
    "1: mov %ecx, %eax\n  ret\n"
    "2: lea 1(%rcx), %eax\n  ret\n"
    "3: lea 2(%rcx), %eax\n  ret\n"
    "7: ud2\n"
    ".size two_jumps, .-two_jumps\n"
    ".type overlapping, @function\n"
    "overlapping: lea shared(%rip), %rdx\n  lea overlap(%rip), %rcx\n  cmp $3, %rdi\n  ja 7f\n"
    "  movslq (%rcx,%rdi,4), %rax\n  add %rdx, %rax\n  jmp *%rax\n"
    "4: mov $6, %eax\n  ret\n"
    "5: mov $7, %eax\n  ret\n"
    "6: mov $8, %eax\n  ret\n"
    "7: mov $200, %eax\n  ret\n"
    ".size overlapping, .-overlapping\n"
    ".type elsewhere, @function\n"
    "elsewhere: mov $9, %eax\n  ret\n"
    ".size elsewhere, .-elsewhere\n"
    ".type byte_jumps, @function\n"
    "byte_jumps: lea bytes(%rip), %rdx\n  movzbl (%rdx,%rdi), %eax\n  lea 11f(%rip), %rdx\n  add %rdx, %rax\n  jmp *%rax\n"
    "11: mov $31, %eax\n  ret\n"
    "12: mov $32, %eax\n  ret\n"
    "13: mov $33, %eax\n  ret\n"
    ".size byte_jumps, .-byte_jumps\n");
extern int two_jumps(long, int), overlapping(long), byte_jumps(long);

int main(int argc, char **argv) {
  for (int j = 0; j < 2; j++) for (int i = 0; i < 3; i++) printf("%d ", two_jumps(i, j));
  for (int i = 0; i < 5; i++) printf("%d ", overlapping(i));
  printf("%d %d %d\n", byte_jumps(0), byte_jumps(1), byte_jumps(2));
  return 0;
}

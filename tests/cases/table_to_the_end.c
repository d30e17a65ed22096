//# about: entries of a jump table that no index has lead to the end of the function, as compilers write where a default cannot be reached; there the next function begins, with no padding in between
//# not aarch64: written for x86-64
//# not static-pie: same as pie
//# moved: ends next
//# stdout: 5 6 8 7 105 9 1
#include <stdio.h>

__asm__(
    ".section .rodata\n .balign 4\n"
    "holes: .long 1f - holes, 2f - holes, .Lend - holes, 3f - holes, .Lend - holes, .Lend - holes, .Lend - holes, 4f - holes\n"
    ".text\n .p2align 4\n"
    ".globl ends\n .type ends, @function\n"
    "ends: .cfi_startproc\n lea holes(%rip), %rcx\n  movslq (%rcx,%rdi,4), %rax\n  add %rcx, %rax\n  jmp *%rax\n"
    "1: mov $5, %eax\n  ret\n"
    "2: mov $6, %eax\n  ret\n"
    "3: mov $8, %eax\n  ret\n"
    "4: mov $7, %eax\n  cmp $0, %esi\n  je 5f\n  add $98, %eax\n5: ret\n .cfi_endproc\n .size ends, .-ends\n"
    ".globl next\n .type next, @function\n"
    ".Lend:\n next: .cfi_startproc\n mov %edi, %eax\n  cmp $1, %edi\n  jb 6f\n  je 7f\n  add $7, %eax\n  ret\n"
    "6: xor %eax, %eax\n  ret\n7: ret\n .cfi_endproc\n .size next, .-next\n");
extern int ends(long, int), next(int);

int (*volatile pointer)(int) = next;

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    printf("%d %d %d %d %d ", ends(0, 0), ends(1, 0), ends(3, 0), ends(7, 0), ends(7, 1));
    printf("%d %d\n", pointer(2), next(1));
    return 0;
}

//# about: an instruction has a number that is an address within a jump table of a function that does not move, and no relocation tells of it; words of the table, each counted from its own place, lead into functions that move
//# kinds: gcc-nopie gcc-static
//# not aarch64: written for x86-64
//# link: -Wl,--section-start=.jumps=0x600000
//# moved: number first second main
//# stdout: 6291472 6 9 6 9
#include <stdio.h>

__asm__(
    ".section .jumps,\"a\"\n .p2align 4\n"
    "jumps: .long 1f - jumps, 2f - jumps\n .rept 94\n .long 1f - jumps\n .endr\n"
    ".text\n .p2align 4\n"
    ".globl cold\n .type cold, @function\n"
    "cold: .cfi_startproc\n cmp $95, %rdi\n  ja 2f\n  lea jumps(%rip), %rcx\n  movslq (%rcx,%rdi,4), %rax\n  add %rcx, %rax\n  jmp *%rax\n"
    "1: mov $5, %eax\n  ret\n"
    "2: mov $6, %eax\n  ret\n .cfi_endproc\n .size cold, .-cold\n"
    ".globl first\n .type first, @function\n"
    "first: .cfi_startproc\n .rept 20\n  add $1, %edi\n  sub $1, %edi\n .endr\n  test %edi, %edi\n  js 3f\n  lea 5(%rdi), %eax\n  ret\n3: xor %eax, %eax\n  ret\n .cfi_endproc\n .size first, .-first\n"
    ".globl second\n .type second, @function\n"
    "second: .cfi_startproc\n .rept 20\n  add $1, %edi\n  sub $1, %edi\n .endr\n  test %edi, %edi\n  js 4f\n  lea 8(%rdi), %eax\n  ret\n4: xor %eax, %eax\n  ret\n .cfi_endproc\n .size second, .-second\n"
    ".globl number\n .type number, @function\n"
    "number: .cfi_startproc\n  mov $0x600010, %eax\n  test %edi, %edi\n  je 5f\n  inc %eax\n5: ret\n .cfi_endproc\n .size number, .-number\n");
extern int cold(long), first(int), second(int), number(int);

int main(int argc, char **argv) {
    (void)argv;
    int (*volatile f)(int) = first, (*volatile g)(int) = second;
    printf("%d", number(0));
    for (int i = 0; i < 2; i++) printf(" %d %d", f(1), g(1));
    puts("");
    return argc > 3 ? cold(argc) : 0;
}

//# about: a loop begins where a system call returns to, which may be a second time: its own jump back is not that
//# moved: asked
//# count asked: 10
//# count step: 70
//# count waits: 0
//# stdout: 70
#include <stdio.h>

int steps;
__attribute__((used, visibility("hidden"))) void step(void) { steps++; }

/* Asks for the number of its process, calls step seven times. */
void asked(void);
/* Ends the process, and would wait if that failed. */
void waits(void);

#ifdef __x86_64__
__asm__(".text\n.p2align 4\n.type asked,@function\nasked:\n.cfi_startproc\n push %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset rbx,-16\n"
        " mov $7,%ebx\n mov $39,%eax\n syscall\n1: call step\n dec %ebx\n jz 2f\n nop\n jmp 1b\n"
        "2: pop %rbx\n.cfi_def_cfa_offset 8\n ret\n.cfi_endproc\n.size asked,.-asked\n"
        ".p2align 4\n.type waits,@function\nwaits:\n.cfi_startproc\n mov $60,%eax\n mov $0,%edi\n syscall\n1: jmp 1b\n.cfi_endproc\n.size waits,.-waits\n");
#else
__asm__(".text\n.p2align 4\n.type asked,%function\nasked:\n.cfi_startproc\n stp x19,x30,[sp,#-16]!\n.cfi_def_cfa_offset 16\n.cfi_offset x19,-16\n.cfi_offset x30,-8\n"
        " mov x19,#7\n mov x8,#172\n svc #0\n1: bl step\n sub x19,x19,#1\n cbz x19,2f\n nop\n b 1b\n"
        "2: ldp x19,x30,[sp],#16\n.cfi_def_cfa_offset 0\n.cfi_restore x19\n.cfi_restore x30\n ret\n.cfi_endproc\n.size asked,.-asked\n"
        ".p2align 4\n.type waits,%function\nwaits:\n.cfi_startproc\n mov x8,#93\n mov x0,#0\n svc #0\n1: b 1b\n.cfi_endproc\n.size waits,.-waits\n");
#endif

int main(int argc, char **argv) {
    for (int i = 0; i < 10; i++) asked();
    printf("%d\n", steps);
    if (argc > 70) waits();
    return 0;
}

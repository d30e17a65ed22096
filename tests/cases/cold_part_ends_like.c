//# about: a call that does not return at the end of a cold part, another function's cold part directly behind it, to whose beginning the first function jumps behind further such calls, and blocks that begin with the same instructions but have other unwind rows
//# not aarch64: the code is x86-64's
//# moved: checked
//# stdout: 1 3 5 7 done
#include <stdio.h>
#include <stdlib.h>

int checked(int x, int y), other(int x);

void complain(int what, int how) {
    printf("wrong %d %d\n", what, how);
    exit(1);
}

/* What GCC makes of code that cannot be reached: a jump to the end of the cold part. */
#define WRONG(n) n ": xor %esi,%esi\nmov $0x15,%edi\ncall complain\njmp .Lend_of_checked\n"
__asm__(
    ".text\n.globl checked\n.type checked,@function\nchecked:\n.cfi_startproc\n"
    "push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset %rbp,-16\nmov %rsp,%rbp\n.cfi_def_cfa_register %rbp\n"
    "push %r12\npush %rbx\n.cfi_offset %r12,-24\n.cfi_offset %rbx,-32\n"
    "cmp $100,%edi\nja 1f\ncmp $101,%esi\nja 2f\ncmp $102,%edi\nja 3f\ncmp $103,%esi\nja 4f\ncmp $104,%edi\nja 5f\ncmp $105,%esi\nja checked_cold\n"
    "lea (%rdi,%rsi),%eax\npop %rbx\npop %r12\npop %rbp\n.cfi_remember_state\n.cfi_def_cfa %rsp,8\nret\n.cfi_restore_state\n"
    WRONG("1") WRONG("2") WRONG("3") WRONG("4") WRONG("5")
    ".cfi_endproc\n.size checked,.-checked\n"
    ".p2align 4\n.globl other\n.type other,@function\nother:\n.cfi_startproc\n"
    "push %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset %rbx,-16\ncmp $100,%edi\nja other_cold\nmov %edi,%eax\npop %rbx\n.cfi_def_cfa_offset 8\nret\n"
    ".cfi_endproc\n.size other,.-other\n"
    ".section .text.unlikely,\"ax\",@progbits\n.type checked_cold,@function\nchecked_cold:\n.cfi_startproc\n"
    ".cfi_def_cfa %rbp,16\n.cfi_offset %rbp,-16\n.cfi_offset %r12,-24\n.cfi_offset %rbx,-32\n"
    "mov $0x16,%esi\nmov $0x17,%edi\ncall complain\n"
    ".Lend_of_checked:\n.cfi_endproc\n.size checked_cold,.-checked_cold\n"
    ".type other_cold,@function\nother_cold:\n.cfi_startproc\n.cfi_def_cfa_offset 16\n.cfi_offset %rbx,-16\n"
    "xor %esi,%esi\nmov $0x14,%edi\ncall complain\n"
    ".cfi_endproc\n.size other_cold,.-other_cold\n.text\n");

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    for (int i = 0; i < 4; i++)
        printf("%d ", checked(i * argc, other(i + 1)));
    printf("done\n");
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

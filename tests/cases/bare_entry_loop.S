//# about: without kept relocations: a loop that goes back to the second instruction of its function, where a jump at the old entry would be
//# not aarch64: instructions of x86-64
//# not so: the assembly calls nothing by way of the linkage table, and main is renamed
//# led: looping
//# long: straight
//# stdout: 55 42
    .text
    // Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near.
    .skip 512, 0xcc
    .p2align 4
    .globl looping
    .type looping, @function
looping:
    .cfi_startproc
    xorl %eax, %eax
1:  addl %edi, %eax
    decl %edi
    jnz 1b
    ret
    .cfi_endproc
    .size looping, .-looping

    .p2align 4
    .globl straight
    .type straight, @function
straight:
    .cfi_startproc
    movl %edi, %eax
    addl %eax, %eax
    testl %edi, %edi
    jns 1f
    negl %eax
1:  ret
    .cfi_endproc
    .size straight, .-straight

    .globl main
    .type main, @function
main:
    .cfi_startproc
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_offset %rbx, -16
    movl $10, %edi
    call looping
    movl %eax, %ebx
    movl $21, %edi
    call straight
    movl %eax, %edx
    movl %ebx, %esi
    leaq text(%rip), %rdi
    xorl %eax, %eax
    call printf@PLT
    xorl %eax, %eax
    popq %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size main, .-main
    .section .rodata
text: .asciz "%d %d\n"
    .section .note.GNU-stack,"",@progbits

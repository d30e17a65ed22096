//# about: hand-written loops: jrcxz, loop, adc chains with the carry live over blocks, no sizes, no types, no unwind tables
//# not aarch64: written for x86-64
//# stdout: ok 5050 10 22351 1
#ifdef __PIC__
#define CALL(f) call f@PLT
#else
#define CALL(f) call f
#endif
        .text
// add_big(to, from, words): multi-word addition; the carry lives from one round to the next
        .globl add_big
        .hidden add_big
        .type add_big, @function
add_big:
        mov %rdx, %rcx
        jrcxz 2f
        clc
1:      mov (%rsi), %rax
        adc %rax, (%rdi)
        lea 8(%rsi), %rsi
        lea 8(%rdi), %rdi
        dec %rcx                // leaves the carry alone
        jnz 1b
        setc %al
        movzbl %al, %eax
        ret
2:      xor %eax, %eax
        ret

// sum_loop(n): with the loop instruction; no size, no type
        .globl sum_loop
        .hidden sum_loop
sum_loop:
        xor %eax, %eax
        mov %edi, %ecx
        jrcxz 9f
1:      add %rcx, %rax
        loop 1b
9:      ret

// position(text, character): loopne
        .globl position
        .hidden position
position:
        mov $100, %ecx
        mov %rdi, %rdx
1:      inc %rdx
        cmp %sil, -1(%rdx)
        loopne 1b
        mov %rdx, %rax
        sub %rdi, %rax
        ret

// flags_over_jump(x, y): compares once, uses the flags in three blocks
        .globl flags_over_jump
        .hidden flags_over_jump
flags_over_jump:
        mov $10000, %eax
        cmp %rsi, %rdi
        jb 3f
        je 4f
        mov $1, %eax
        ja 5f
        ud2
3:      lea 10000(%rax), %eax
        jl 6f
        ret
4:      mov $4, %eax
        jne 7f
5:      lea 2000(%rax), %eax
        cmovbe %edi, %eax
        ret
6:      lea 345(%rax), %eax
        cmovae %edi, %eax
        ret
7:      ud2

        .section .rodata
format: .asciz "%s %ld %ld %ld %ld\n"
good:   .asciz "ok"
bad:    .asciz "bad"
text:   .asciz "abcdefghij"
        .data
        .balign 8
number: .quad -1, -1, -1, 0x7fffffffffffffff
one:    .quad 1, 0, 0, 0
        .text
        .globl main
        .type main, @function
main:   .cfi_startproc
        push %rbx
        .cfi_def_cfa_offset 16
        .cfi_offset %rbx, -16
        push %rbp
        .cfi_def_cfa_offset 24
        .cfi_offset %rbp, -24
        push %r12
        .cfi_def_cfa_offset 32
        .cfi_offset %r12, -32
        mov $50, %ebx
        xor %r12d, %r12d
1:      lea number(%rip), %rdi
        lea one(%rip), %rsi
        mov $4, %edx
        call add_big
        add %rax, %r12
        dec %ebx
        jnz 1b
        lea bad(%rip), %rbp
        mov number(%rip), %rax
        cmp $49, %rax
        jne 2f
        btq $63, number+24(%rip)
        lea good(%rip), %rbp
        jc 2f
        lea bad(%rip), %rbp
2:      mov $100, %edi
        call sum_loop
        mov %rax, %rbx
        lea text(%rip), %rdi
        mov $'j', %esi
        call position
        push %rax
        .cfi_adjust_cfa_offset 8
        push %rax
        .cfi_adjust_cfa_offset 8
        mov $-5, %rdi
        mov $5, %rsi
        call flags_over_jump
        push %rax
        .cfi_adjust_cfa_offset 8
        mov $3, %edi
        mov $5, %esi
        call flags_over_jump
        add (%rsp), %rax
        mov %rax, (%rsp)
        mov $5, %edi
        mov $5, %esi
        call flags_over_jump
        mov %rax, %r9
        pop %r8
        .cfi_adjust_cfa_offset -8
        add %r9, %r8
        pop %rcx
        .cfi_adjust_cfa_offset -8
        pop %rax
        .cfi_adjust_cfa_offset -8
        lea format(%rip), %rdi
        mov %rbp, %rsi
        mov %rbx, %rdx
        mov $1, %r9d
        xor %eax, %eax
        CALL(printf)
        xor %eax, %eax
        pop %r12
        .cfi_def_cfa_offset 24
        pop %rbp
        .cfi_def_cfa_offset 16
        pop %rbx
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
        .size main, .-main
        .section .note.GNU-stack,"",@progbits

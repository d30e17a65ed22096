//# about: AArch64 without kept relocations: data between functions that would be instructions which form addresses inside of them: one at no instruction, which means nothing, and one at the second, which may describe it
//# kinds: aarch64-gcc-pie aarch64-clang-pie
//# moved: odd
//# refused: even
//# stdout: 14 15
    .text
    .p2align 4
    .globl odd
    .type odd, %function
odd:
    .cfi_startproc
    add w0, w0, w0
    cmp w0, #1000
    b.hi 1f
    add w0, w0, #2
    ret
1:  sub w0, w0, #1000
    ret
    .cfi_endproc
    .size odd, .-odd

    .p2align 4
    .globl even
    .type even, %function
even:
    .cfi_startproc
    add w0, w0, w0
    cmp w0, #1000
    b.hi 1f
    add w0, w0, #3
    ret
1:  sub w0, w0, #1000
    ret
    .cfi_endproc
    .size even, .-even

// As tables of ciphers are in libgcrypt's code.
    .p2align 4
data:
    .word 0, 0
    adr x16, odd + 6
    .word 0
    adr x0, even + 8
    .word 0

    .p2align 4
    .globl main
    .type main, %function
main:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    str x19, [sp, #16]
    .cfi_offset 19, -16
    mov w0, #6
    bl odd
    mov w19, w0
    mov w0, #6
    bl even
    mov w2, w0
    mov w1, w19
    adrp x0, format
    add x0, x0, :lo12:format
    bl printf
    mov w0, #0
    ldr x19, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 29
    .cfi_restore 30
    .cfi_restore 19
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main

    .section .rodata
format:
    .asciz "%d %d\n"
    .section .note.GNU-stack,"",%progbits

//# about: AArch64 without kept relocations: data between functions that would be instructions which form addresses inside of them: one at no instruction, which means nothing, one at the second that control could come to and go on from, which may describe it, and one that no control can go on from
//# kinds: aarch64-gcc-pie aarch64-clang-pie
//# moved: odd none
//# long: odd none
//# stay: even
//# stdout: 14 15 16
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

    .p2align 4
    .globl none
    .type none, %function
none:
    .cfi_startproc
    add w0, w0, w0
    cmp w0, #1000
    b.hi 1f
    add w0, w0, #4
    ret
1:  sub w0, w0, #1000
    ret
    .cfi_endproc
    .size none, .-none

// As tables of ciphers are in libgcrypt's code, and of curves in OpenSSL's.
    .p2align 4
data:
    .word 0, 0
    adr x16, odd + 6
    .word 0xd65f03c0
    adr x0, even + 8
    .word 0x8b000000, 0xd65f03c0
    adr x0, none + 8
    .word 0x8b000000, 0xb4000060
    .word 0x8b000000, 0x02345678
    .word 0xd4c5848c
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
    stp x19, x20, [sp, #16]
    .cfi_offset 19, -16
    .cfi_offset 20, -8
    mov w0, #6
    bl odd
    mov w19, w0
    mov w0, #6
    bl even
    mov w20, w0
    mov w0, #6
    bl none
    mov w3, w0
    mov w2, w20
    mov w1, w19
    adrp x0, format
    add x0, x0, :lo12:format
    bl printf
    mov w0, #0
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 29
    .cfi_restore 30
    .cfi_restore 19
    .cfi_restore 20
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main

    .section .rodata
format:
    .asciz "%d %d %d\n"
    .section .note.GNU-stack,"",%progbits

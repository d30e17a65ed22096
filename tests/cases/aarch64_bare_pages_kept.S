//# about: AArch64 without kept relocations: a page is in a register while a general register is converted to a vector of that number; elsewhere the function reads by that register, at what would be another function's entry in that page
//# kinds: aarch64-gcc-pie aarch64-clang-pie aarch64-gcc-nopie
//# moved: led
//# stdout: 12 44 31
    .text
    .balign 4096
    nop
    nop
    nop
    nop
    .globl led
    .type led, %function
led:
    .cfi_startproc
    add w1, w0, w0
    add w0, w1, w0
    cmp w0, #1000
    b.hi 1f
    add w0, w0, #1
    ret
1:  sub w0, w0, #1000
    ret
    .cfi_endproc
    .size led, .-led

    .balign 2048
    .type beside, %function
beside:
    .cfi_startproc
    add w0, w0, #7
    ret
    .cfi_endproc
    .size beside, .-beside

    .p2align 4
    .globl converts
    .type converts, %function
converts:
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset 29, -16
    .cfi_offset 30, -8
    adrp x1, beside
    scvtf d1, w0
    dup v1.2s, w0
    add x1, x1, :lo12:beside
    cbz w0, 1f
    blr x1
    ldp x29, x30, [sp], #16
    .cfi_remember_state
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    ret
1:  .cfi_restore_state
    adrp x1, values
    add x1, x1, :lo12:values
    ldr w0, [x1, #16]
    ldp x29, x30, [sp], #16
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size converts, .-converts

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
    mov w0, #5
    bl converts
    mov w19, w0
    mov w0, #0
    bl converts
    mov w20, w0
    mov w0, #10
    bl led
    mov w3, w0
    mov w1, w19
    mov w2, w20
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
    .balign 8
values:
    .word 40, 41, 42, 43, 44
    .section .note.GNU-stack,"",%progbits

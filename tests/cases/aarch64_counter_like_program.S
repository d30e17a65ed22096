//# about: AArch64: the program sets a register to one where that register is free for a counter, which then has the same instruction
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie aarch64-gcc-static
//# stdout: 1 7 12
    .arch armv8.1-a
    .text
    .p2align 4
    .globl which
    .type which, %function
// As in libcurl: nothing but x20 and the registers of linkers' stubs is free where it becomes 1.
which:
    .cfi_startproc
    stp x19, x20, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset 19, -16
    .cfi_offset 20, -8
    mov x20, #0
    mov x16, #0
    mov x19, #0
    cbnz x0, 1f
    cbz x1, 2f
    mov x20, #1
1:  add x0, x20, x0
    add x0, x0, x1
    add x0, x0, x2
    add x0, x0, x3
    add x0, x0, x4
    add x0, x0, x5
    add x0, x0, x6
    add x0, x0, x7
    add x0, x0, x8
    add x0, x0, x16
    add x0, x0, x19
    ldp x19, x20, [sp], #16
    .cfi_remember_state
    .cfi_restore 19
    .cfi_restore 20
    .cfi_def_cfa_offset 0
    ret
2:  .cfi_restore_state
    mov x0, #1
    ldp x19, x20, [sp], #16
    .cfi_restore 19
    .cfi_restore 20
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size which, .-which

    .p2align 4
    .globl call
    .type call, %function
call:
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset 29, -16
    .cfi_offset 30, -8
    mov x2, #0
    mov x3, #0
    mov x4, #0
    mov x5, #0
    mov x6, #0
    mov x7, #0
    mov x8, #0
    // Counters are incremented by one instruction, as the program has such.
    stadd x8, [sp]
    bl which
    ldp x29, x30, [sp], #16
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size call, .-call

    .p2align 4
    .globl main
    .type main, %function
main:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    stp x21, x22, [sp, #16]
    .cfi_offset 21, -16
    .cfi_offset 22, -8
    mov x29, sp
    mov x0, #0
    mov x1, #0
    bl call
    mov x21, x0
    mov x0, #0
    mov x1, #6
    bl call
    mov x22, x0
    mov x0, #5
    mov x1, #7
    bl call
    mov w3, w0
    mov w1, w21
    mov w2, w22
    adrp x0, text
    add x0, x0, :lo12:text
    bl printf
    mov w0, #0
    ldp x21, x22, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 29
    .cfi_restore 30
    .cfi_restore 21
    .cfi_restore 22
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main
    .section .rodata
text: .asciz "%d %d %d\n"
    .section .note.GNU-stack,"",%progbits

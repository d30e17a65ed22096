//# about: AArch64: a register gets a page twice, and what is between is entered from elsewhere at each instruction, so that counters are there
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie aarch64-clang-pie
//# stdout: 11 22 31 41
    .text
    .p2align 4
    .globl sums
    .type sums, %function
// As Rust's formatting in a function with a large jump table.
sums:
    .cfi_startproc
    mov x10, x0
    cmp x0, #1
    b.eq 1f
    adrp x8, first
    cmp x0, #2
    b.eq 2f
    add x9, x8, :lo12:first
    cmp x0, #3
    b.eq 3f
    adrp x8, second
    cmp x0, #4
    b.eq 4f
    mov x0, #0
    ret
1:  adrp x8, first
2:  add x9, x8, :lo12:first
3:  adrp x8, second
4:  add x8, x8, :lo12:second
    ldr w0, [x8]
    cmp x10, #4
    b.eq 5f
    ldr w9, [x9]
    add w0, w0, w9
5:  ret
    .cfi_endproc
    .size sums, .-sums

    .p2align 4
    .globl main
    .type main, %function
main:
    .cfi_startproc
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x19, x20, [sp, #16]
    .cfi_offset 19, -32
    .cfi_offset 20, -24
    stp x21, x22, [sp, #32]
    .cfi_offset 21, -16
    .cfi_offset 22, -8
    mov x29, sp
    mov x0, #1
    bl sums
    sub w19, w0, #30
    mov x0, #2
    bl sums
    sub w20, w0, #19
    mov x0, #3
    bl sums
    sub w21, w0, #10
    mov x0, #4
    bl sums
    add w4, w0, #1
    mov w1, w19
    mov w2, w20
    mov w3, w21
    adrp x0, format
    add x0, x0, :lo12:format
    bl printf
    mov x0, #9
    bl sums
    ldp x21, x22, [sp, #32]
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #48
    .cfi_restore 19
    .cfi_restore 20
    .cfi_restore 21
    .cfi_restore 22
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main

    .section .rodata
format:
    .asciz "%d %d %d %d\n"
    .data
    .p2align 12
    .skip 64
first:
    .word 1
    .p2align 12
    .skip 128
second:
    .word 40
    .section .note.GNU-stack, "", %progbits

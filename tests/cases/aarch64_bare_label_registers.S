//# about: AArch64 without kept relocations: a table of labels whose labels are loaded over their indexes, where one label reads x16 and x17, one writes x16 and reads it, and the table's address is read
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie
//# stdout: 3289669016
    .macro function name, first
    .text
    .p2align 4
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    mov x16, #5
    mov x17, #7
    mov w11, #1
    adrp x9, \name\()_labels
    add x9, x9, :lo12:\name\()_labels
5:
    mov x12, x9
    and w10, w0, #3
    lsr w0, w0, #2
    ldr x10, [x9, w10, uxtw #3]
    br x10
1:
    \first
    subs x1, x1, #1
    b.ne 5b
    b 9f
2:
    add w11, w11, w11
    subs x1, x1, #1
    b.ne 5b
    b 9f
3:
    mov x16, #9
    sub w11, w11, w16
    subs x1, x1, #1
    b.ne 5b
    b 9f
4:
    cmp x12, x9
    cinc w11, w11, eq
    subs x1, x1, #1
    b.ne 5b
9:
    mov w0, w11
    ret
    .cfi_endproc
    .size \name, .-\name
    .section .data.rel.ro, "aw"
    .p2align 3
\name\()_labels:
    .quad 1b, 2b, 3b, 4b
    .endm

    // x17 is read behind the jump, x16 is not before it is written.
    function one, "add w11, w11, w17"
    // Both are.
    function both, "madd w11, w16, w17, w11"

    .text
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
    mov w19, #0
    mov w20, #0
1:
    mov w2, #977
    mul w0, w19, w2
    and w1, w19, #7
    add w1, w1, #1
    bl one
    add w20, w20, w20, lsl #1
    add w20, w20, w0
    mov w2, #977
    mul w0, w19, w2
    and w1, w19, #7
    add w1, w1, #1
    bl both
    eor w20, w20, w0
    add w19, w19, #1
    cmp w19, #99
    b.ne 1b
    adrp x0, text
    add x0, x0, :lo12:text
    mov w1, w20
    bl printf
    mov w0, #0
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #48
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main
    .section .rodata
text:
    .asciz "%u\n"
    .section .note.GNU-stack, "", %progbits

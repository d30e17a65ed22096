//# about: AArch64 without kept relocations: a table of bytes that is longer than what is read of it, whose further entries lead to places where no jump may be; one whose target is read as data, which keeps it
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie
//# in old code: longer reads
//# refused: reads
//# stdout: 36 1480
    .text
    .p2align 4
    .globl longer
    .type longer, %function
longer:
    .cfi_startproc
    adrp x1, bytes
    add x1, x1, :lo12:bytes
    and w0, w0, #3
    ldrb w2, [x1, w0, uxtw]
    adr x3, 1f
    add x2, x3, w2, sxtb #2
    br x2
1:  mov w0, #1
    ret
2:  mov w0, #2
    ret
3:  mov w0, #3
    ret
4:  mov w0, #4
    add w0, w0, #8
    // What the jump leaves is read: there is no table of new code's own.
    cmp x2, x3
    ret
    .cfi_endproc
    .size longer, .-longer

    .p2align 4
    .globl reads
    .type reads, %function
reads:
    .cfi_startproc
    cmp w0, #2
    b.hi 9f
    adrp x1, other
    add x1, x1, :lo12:other
    ldrb w2, [x1, w0, uxtw]
    adr x3, 5f
    add x2, x3, w2, sxtb #2
    br x2
    // What is read is the first word of a target.
5:  ldr w0, 6f
    and w0, w0, #0xff
    ret
6:  movz w0, #0x5a1
    ret
7:  mov w0, #7
    cmp x2, x3
    ret
9:  mov w0, #0
    ret
    .cfi_endproc
    .size reads, .-reads

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
    str x21, [sp, #32]
    .cfi_offset 21, -16
    mov w19, #0
    mov w20, #0
1:  mov w0, w19
    bl longer
    add w20, w20, w0
    add w19, w19, #1
    cmp w19, #8
    b.ne 1b
    mov w19, #0
    mov w21, #0
2:  mov w0, w19
    bl reads
    add w21, w21, w0
    add w19, w19, #1
    cmp w19, #3
    b.ne 2b
    adrp x0, text
    add x0, x0, :lo12:text
    mov w1, w20
    mov w2, w21
    bl printf
    mov w0, #0
    ldr x21, [sp, #32]
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_restore 19
    .cfi_restore 20
    .cfi_restore 21
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main
    .section .rodata
bytes: .byte 0, 2, 4, 6, 1, 3, 7, 200, 100, 255, 5
other: .byte 0, 3, 5
    .p2align 2
text: .asciz "%d %d\n"
    .section .note.GNU-stack, "", %progbits

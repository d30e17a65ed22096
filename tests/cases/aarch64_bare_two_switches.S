//# about: AArch64 without kept relocations: two switches in a loop; the second is not understood, as an instruction is in its jump, so it goes on in old code, from where control comes back to its cases: there the address of the first one's table, which is in a register, is not known
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie
//# in old code: both
//# stdout: 3098
    .text
    .p2align 4
    .globl both
    .type both, %function
// Sums over bytes: what the first table says, then what the second does.
both:
    .cfi_startproc
    adrp x9, first
    add x9, x9, :lo12:first
    adrp x10, second
    add x10, x10, :lo12:second
    mov w8, #0
    mov w7, #100
1:  and w0, w7, #3
    ldrb w2, [x9, w0, uxtw]
    adr x3, 2f
    add x2, x3, w2, sxtb #2
    br x2
2:  add w8, w8, #1
    b 5f
3:  add w8, w8, #20
    b 5f
4:  eor w8, w8, #3
5:  and w0, w7, #3
    adr x4, 6f
    ldrb w2, [x10, x0]
    add x4, x4, x2, lsl #2
    mov w6, wzr
    br x4
6:  add w8, w8, #2
    b 8f
7:  add w8, w8, #100
8:  sub w7, w7, #1
    cbnz w7, 1b
    add w0, w8, w6
    ret
    .cfi_endproc
    .size both, .-both

    .p2align 4
    .globl main
    .type main, %function
main:
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset 29, -16
    .cfi_offset 30, -8
    mov x29, sp
    bl both
    mov w1, w0
    adrp x0, text
    add x0, x0, :lo12:text
    bl printf
    mov w0, #0
    ldp x29, x30, [sp], #16
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main

    .section .rodata
first:
    .byte (2b - 2b) / 4, (3b - 2b) / 4, (4b - 2b) / 4, (5b - 2b) / 4
second:
    .byte 0, (7b - 6b) / 4, 0, (8b - 6b) / 4
text:
    .asciz "%d\n"
    .section .note.GNU-stack,"",%progbits

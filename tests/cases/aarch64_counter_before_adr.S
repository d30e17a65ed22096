//# about: AArch64: a block begins by forming an address in a register that is free for the block's counter, which forms that of the counter in the same way
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie aarch64-clang-static
//# stdout: 153 0
    .text
    .p2align 4
    .globl digit
    .type digit, %function
// As in the C library, where lld makes one instruction of the two that form an address nearby.
digit:
    .cfi_startproc
    cmp x0, #0
    b.eq 10f
    cmp x0, #1
    b.eq 11f
    cmp x0, #2
    b.eq 12f
    cmp x0, #3
    b.eq 13f
    cmp x0, #4
    b.eq 14f
    cmp x0, #5
    b.eq 15f
    cmp x0, #6
    b.eq 16f
    cmp x0, #7
    b.eq 17f
    cmp x0, #8
    b.eq 18f
    cmp x0, #9
    b.eq 19f
    cmp x0, #10
    b.eq 20f
    cmp x0, #11
    b.eq 21f
    cmp x0, #12
    b.eq 22f
    cmp x0, #13
    b.eq 23f
    cmp x0, #14
    b.eq 24f
    cmp x0, #15
    b.eq 25f
    cmp x0, #16
    b.eq 26f
    cmp x0, #17
    b.eq 27f
    mov x0, #0
    ret
10: adr x0, digits
    ldrb w0, [x0, #0]
    ret
11: adr x1, digits
    ldrb w0, [x1, #1]
    ret
12: adr x2, digits
    ldrb w0, [x2, #2]
    ret
13: adr x3, digits
    ldrb w0, [x3, #3]
    ret
14: adr x4, digits
    ldrb w0, [x4, #4]
    ret
15: adr x5, digits
    ldrb w0, [x5, #5]
    ret
16: adr x6, digits
    ldrb w0, [x6, #6]
    ret
17: adr x7, digits
    ldrb w0, [x7, #7]
    ret
18: adr x8, digits
    ldrb w0, [x8, #8]
    ret
19: adr x9, digits
    ldrb w0, [x9, #9]
    ret
20: adr x10, digits
    ldrb w0, [x10, #10]
    ret
21: adr x11, digits
    ldrb w0, [x11, #11]
    ret
22: adr x12, digits
    ldrb w0, [x12, #12]
    ret
23: adr x13, digits
    ldrb w0, [x13, #13]
    ret
24: adr x14, digits
    ldrb w0, [x14, #14]
    ret
25: adr x15, digits
    ldrb w0, [x15, #15]
    ret
26: adr x16, digits
    ldrb w0, [x16, #16]
    ret
27: adr x17, digits
    ldrb w0, [x17, #17]
    ret
    .cfi_endproc
    .size digit, .-digit

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
    mov x19, #0
    mov x20, #0
1:  mov x0, x19
    bl digit
    add x20, x20, x0
    add x19, x19, #1
    cmp x19, #18
    b.ne 1b
    mov x0, x19
    bl digit
    mov w2, w0
    mov w1, w20
    adrp x0, format
    add x0, x0, :lo12:format
    bl printf
    mov w0, #0
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 19
    .cfi_restore 20
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main

    .section .rodata
format:
    .asciz "%d %d\n"
digits:
    .byte 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17
    .section .note.GNU-stack, "", %progbits

// Literal pools by `ldr =`, which the assembler puts where .ltorg is, or at the end; data that lies between functions, and inside of one.
    .text
    .macro function name
    .globl \name
    .type \name, %function
    .p2align 2
\name:
    .cfi_startproc
    .endm
    .macro end name
    .cfi_endproc
    .size \name, . - \name
    .endm

    function pool_constant
    ldr x0, =0x123456789abcdef0
    ret
    end pool_constant
    .ltorg

    function pool_call
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset 29, -16
    .cfi_offset 30, -8
    mov x29, sp
    ldr x9, =pool_target
    blr x9
    ldp x29, x30, [sp], #16
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    ret
    end pool_call

    function pool_pointer
    ldr x0, =pool_target
    ret
    end pool_pointer
    .ltorg

zero: .string "zero"
one: .string "one"
two: .string "two"
    .p2align 3
strings: .quad zero, one, two

    function pool_string
    adr x9, strings
    ldr x0, [x9, x0, lsl #3]
    ret
    end pool_string

    // The pool lies in the function's middle, jumped over.
    function pool_table
    and x0, x0, #3
    adr x9, 1f
    b 2f
1:  .byte 0, 1, 3, 6
    .word 0xd65f03c0
2:  ldrb w0, [x9, x0]
    ret
    end pool_table

    // Data at the function's beginning is no entry: it begins behind.
    .word 0x14000000, 0xd61f0000
    function pool_behind
    cmp x0, #10
    b.lt 1f
    add x0, x0, #1
    ret
1:  ldr w9, 2f
    add x0, x0, x9
    ret
2:  .word 1
    end pool_behind
    .section .note.GNU-stack, "", %progbits

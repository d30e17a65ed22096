// 144 functions of 1 MiB. Each calls the next but ninety, out of a direct call's reach, and the last ones return. What makes them large does not run.
    .text
    .altmacro
    .macro one number, far
    // A section each, so that the linker can put veneers between.
    .section .text.step.\number, "ax", %progbits
    .globl step_\number
    .type step_\number, %function
    .p2align 4
step_\number:
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset 29, -16
    .cfi_offset 30, -8
    mov x29, sp
    add x0, x0, #1
    cbz x30, 1f
    b 2f
    // add x0, x0, #1, quickly assembled
1:  .fill 262144, 4, 0x91000400
2:
    .if \far < 144
    bl step_\far
    .endif
    ldp x29, x30, [sp], #16
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size step_\number, . - step_\number
    .endm
    .set n, 0
    .rept 144
    one %n, %(n + 130)
    .set n, n + 1
    .endr
    .section .note.GNU-stack, "", %progbits

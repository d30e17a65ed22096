//# about: AArch64: a function without an indirect jump stores the address of a place of its own, which another one jumps to (as swapcontext does), or counts from
//# kinds: aarch64-gcc-pie aarch64-gcc-nopie aarch64-clang-pie aarch64-gcc-static
//# stdout: 7 42 12
    .text
    .p2align 4
    .globl save
    .type save, %function
// Returns a second time, with another value, as the context is returned to.
save:
    .cfi_startproc
    adr x9, 1f
    str x9, [x0]
    mov x9, sp
    str x9, [x0, #8]
    str x29, [x0, #16]
    str x30, [x0, #24]
    str x19, [x0, #32]
    mov w0, #0
    ret
1:  nop
    mov w0, w1
    ret
    .cfi_endproc
    .size save, .-save

    .p2align 4
    .globl resume
    .type resume, %function
resume:
    .cfi_startproc
    ldr x9, [x0, #8]
    mov sp, x9
    ldr x29, [x0, #16]
    ldr x30, [x0, #24]
    ldr x19, [x0, #32]
    ldr x16, [x0]
    br x16
    .cfi_endproc
    .size resume, .-resume

    .p2align 4
    .globl distance
    .type distance, %function
// How far a place is from the function's entry.
distance:
    .cfi_startproc
    adr x0, distance
    cbz w1, 2f
    mov w1, #1
2:  adr x2, 2b
    sub x0, x2, x0
    ret
    .cfi_endproc
    .size distance, .-distance

    .p2align 4
    .globl main
    .type main, %function
main:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    str x19, [sp, #16]
    .cfi_offset 19, -16
    mov x29, sp
    mov w19, #7
    adrp x0, context
    add x0, x0, :lo12:context
    bl save
    cbnz w0, 3f
    adrp x0, context
    add x0, x0, :lo12:context
    mov w1, #42
    b resume
3:  mov w2, w0
    stp w2, w19, [sp, #24]
    bl distance
    mov w3, w0
    ldp w2, w1, [sp, #24]
    adrp x0, format
    add x0, x0, :lo12:format
    bl printf
    mov w0, #0
    ldr x19, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 19
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size main, .-main

    .section .rodata
format:
    .asciz "%d %d %d\n"
    .bss
    .p2align 3
context:
    .skip 64
    .section .note.GNU-stack, "", %progbits

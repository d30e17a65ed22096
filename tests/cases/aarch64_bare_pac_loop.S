//# about: AArch64 without kept relocations, with guarded pages: a loop that goes back to the instruction behind paciasp, where the jump at the old entry would be; one that does not
//# kinds: aarch64-gcc-static-pie
//# link: -nostdlib -Wl,-z,force-bti -Wl,--eh-frame-hdr
//# led: looping
//# long: straight
//# stdout: 55
//# stdout: 42
    .text
    .p2align 4
    .globl looping
    .type looping, %function
looping:
    .cfi_startproc
    paciasp
1:  add x9, x9, x0
    subs x0, x0, #1
    b.ne 1b
    mov x0, x9
    mov x9, #0
    autiasp
    ret
    .cfi_endproc
    .size looping, .-looping

    .p2align 4
    .globl straight
    .type straight, %function
straight:
    .cfi_startproc
    paciasp
    add x0, x0, x0
    tbz x0, #63, 1f
    neg x0, x0
1:  autiasp
    ret
    .cfi_endproc
    .size straight, .-straight

    // Nothing but this file: start files and libraries need not be made for guarded pages.
    .globl _start
    .type _start, %function
_start:
    .cfi_startproc
    .cfi_undefined 30
    bti c
    mov x29, #0
    mov x9, #0
    mov x0, #10
    bl looping
    bl two_digits
    mov x0, #21
    bl straight
    bl two_digits
    mov x0, #0
    mov x8, #93
    svc #0
    udf #0
    .cfi_endproc
    .size _start, .-_start

    .p2align 4
    .globl two_digits
    .type two_digits, %function
two_digits:
    .cfi_startproc
    bti c
    sub sp, sp, #16
    .cfi_def_cfa_offset 16
    mov x1, #10
    udiv x2, x0, x1
    msub x3, x2, x1, x0
    add w2, w2, #48
    add w3, w3, #48
    strb w2, [sp]
    strb w3, [sp, #1]
    strb w1, [sp, #2]
    mov x0, #1
    mov x1, sp
    mov x2, #3
    mov x8, #64
    svc #0
    add sp, sp, #16
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size two_digits, .-two_digits
    .section .note.GNU-stack, "", %progbits

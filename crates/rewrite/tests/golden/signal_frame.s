/* x86-64: a signal trampoline */
	.text
	.globl f
	.type f, %function
f:	.cfi_startproc
	.cfi_signal_frame
	mov $15, %eax
	syscall
	.cfi_endproc
	nop
	.size f, .-f

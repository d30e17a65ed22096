/* x86-64: a self-relative value leads to a function */
	.text
	.globl f
	.type f, %function
f:
	nop
	ret
	.size f, .-f
	.section .rodata,"a"
p:	.long f-p

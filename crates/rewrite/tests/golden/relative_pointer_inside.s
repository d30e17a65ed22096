/* x86-64: a self-relative value leads to an inside, and belongs to no table */
	.text
	.globl f
	.type f, %function
f:
	nop
m:	ret
	.size f, .-f
	.section .rodata,"a"
p:	.long m-p

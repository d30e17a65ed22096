/* x86-64: a jump to the next instruction */
	.text
	.globl f
	.type f, %function
f:
	jmp 1f
1:	ret
	.size f, .-f

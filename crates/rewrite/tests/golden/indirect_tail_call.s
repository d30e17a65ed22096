/* x86-64: a jump through a pointer in a register */
	.text
	.globl f
	.type f, %function
f:
	mov %rsi, %rax
	jmp *%rax
	.size f, .-f

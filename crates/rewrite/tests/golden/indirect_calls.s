/* x86-64: calls through a register and through memory */
	.text
	.globl f
	.type f, %function
f:
	push %rbx
	mov %rdi, %rbx
	call *%rsi
	call *8(%rbx)
	pop %rbx
	ret
	.size f, .-f

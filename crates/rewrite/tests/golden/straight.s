/* x86-64: a function without branches */
	.text
	.globl f
	.type f, %function
f:
	mov %edi, %eax
	add $1, %eax
	ret
	.size f, .-f

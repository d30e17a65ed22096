/* x86-64: a call finds the place of the code */
	.text
	.globl f
	.type f, %function
f:
	call m
m:	pop %rax
	ret
	.size f, .-f

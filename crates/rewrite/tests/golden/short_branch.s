/* x86-64: jrcxz has neither a long form nor an inverse */
	.text
	.globl f
	.type f, %function
f:
	mov %rdi, %rcx
	jrcxz 1f
	mov $1, %eax
	ret
1:	xor %eax, %eax
	ret
	.size f, .-f

/* x86-64: loads, stores and immediates behind the field */
	.text
	.globl f
	.type f, %function
f:
	mov value(%rip), %eax
	movl $7, value(%rip)
	cmpb $1, value(%rip)
	ret
	.size f, .-f
	.data
value:	.quad 0

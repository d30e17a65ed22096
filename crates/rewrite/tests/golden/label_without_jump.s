/* x86-64: a pointer to the inside that no jump explains */
	.text
	.globl f
	.type f, %function
f:
	mov $1, %eax
l1:	ret
	.size f, .-f
	.data
	.quad l1

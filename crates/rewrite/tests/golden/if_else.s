/* x86-64: both sides of a condition */
	.text
	.globl f
	.type f, %function
f:
	test %edi, %edi
	je 1f
	mov $1, %eax
	jmp 2f
1:	mov $2, %eax
2:	ret
	.size f, .-f

/* x86-64: labels in a table of addresses, and a jump through it */
	.text
	.globl f
	.type f, %function
f:
	movslq %edi, %rdi
	mov labels(,%rdi,8), %rax
	jmp *%rax
l1:	mov $1, %eax
	ret
l2:	mov $2, %eax
	ret
	.size f, .-f
	.data
labels:	.quad l1, l2

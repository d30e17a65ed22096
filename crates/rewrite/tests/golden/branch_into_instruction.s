/* x86-64: a branch to the middle of an instruction */
	.text
	.globl f
	.type f, %function
f:
	test %edi, %edi
	je m+2
m:	mov $0xc3c3c3, %eax
	ret
	.size f, .-f

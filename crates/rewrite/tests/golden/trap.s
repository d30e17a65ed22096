/* x86-64: ud2 ends a block */
	.text
	.globl f
	.type f, %function
f:
	test %edi, %edi
	je 1f
	ret
1:	ud2
	.size f, .-f

/* x86-64: a conditional jump out of the function */
	.text
	.globl f
	.type f, %function
f:
	test %edi, %edi
	je g
	mov $1, %eax
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

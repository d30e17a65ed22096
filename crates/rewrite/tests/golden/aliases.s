/* x86-64: two names of one function */
	.text
	.globl f, g
	.type f, %function
	.type g, %function
f:
g:	ret
	.size f, .-f
	.size g, .-g

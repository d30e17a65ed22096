/* x86-64: a word in data points behind a function, at padding */
	.text
	.globl f
	.type f, %function
f:
	ret
e:
	.size f, .-f
	.p2align 4
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g
	.data
	.quad e

/* x86-64: a word in data points to a function */
	.text
	.globl f
	.type f, %function
f:
	ret
	.size f, .-f
	.data
	.quad f

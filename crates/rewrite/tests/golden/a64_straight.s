/* aarch64: a function without branches */
	.text
	.globl f
	.type f, %function
f:
	add w0, w0, #1
	ret
	.size f, .-f

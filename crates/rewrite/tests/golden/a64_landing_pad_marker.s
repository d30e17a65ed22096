/* aarch64: bti at the entry */
	.text
	.globl f
	.type f, %function
f:
	hint #34
	mov w0, #1
	ret
	.size f, .-f

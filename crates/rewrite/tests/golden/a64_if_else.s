/* aarch64: both sides of a condition */
	.text
	.globl f
	.type f, %function
f:
	cmp w0, #0
	b.eq 1f
	mov w0, #1
	b 2f
1:	mov w0, #2
2:	ret
	.size f, .-f

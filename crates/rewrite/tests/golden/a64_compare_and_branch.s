/* aarch64: cbz, cbnz, tbz, tbnz */
	.text
	.globl f
	.type f, %function
f:
	cbz x0, 1f
	cbnz w1, 2f
	tbz x0, #33, 1f
	tbnz w0, #3, 2f
	ret
1:	mov w0, #1
	ret
2:	mov w0, #2
	ret
	.size f, .-f

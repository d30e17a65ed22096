/* aarch64: labels in a table of addresses */
	.text
	.globl f
	.type f, %function
f:
	adrp x1, labels
	add x1, x1, :lo12:labels
	ldr x1, [x1, w0, uxtw #3]
	br x1
l1:	mov w0, #1
	ret
l2:	mov w0, #2
	ret
	.size f, .-f
	.data
	.p2align 3
labels:	.quad l1, l2

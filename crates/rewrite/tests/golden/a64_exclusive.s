/* aarch64: a pair of exclusive instructions */
	.text
	.globl f
	.type f, %function
f:
1:	ldxr w1, [x0]
	add w1, w1, #1
	stxr w2, w1, [x0]
	cbnz w2, 1b
	ret
	.size f, .-f

/* aarch64: a call, an indirect call, a tail call, an indirect tail call */
	.text
	.globl f
	.type f, %function
f:
	stp x29, x30, [sp, #-16]!
	bl g
	blr x1
	ldp x29, x30, [sp], #16
	b g
	.size f, .-f
	.globl g
	.type g, %function
g:
	br x1
	.size g, .-g

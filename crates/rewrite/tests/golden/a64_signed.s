/* aarch64: a return address that is signed */
	.text
	.globl f
	.type f, %function
f:
	hint #25
	stp x29, x30, [sp, #-16]!
	bl g
	ldp x29, x30, [sp], #16
	hint #29
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

/* aarch64: a load of a literal in the code */
	.text
	.globl f
	.type f, %function
f:
	ldr x0, pool
	ret
	.size f, .-f
	.p2align 3
pool:	.quad 0x123456789abc

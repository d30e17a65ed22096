/* aarch64: a mapping symbol says that data lies among instructions */
	.text
	.globl f
	.type f, %function
f:
	ldr x0, pool
	ret
	.p2align 3
pool:	.quad 0x123456789abc
	.size f, .-f

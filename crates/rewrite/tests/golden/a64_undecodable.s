/* aarch64: a word that is no instruction */
	.text
	.globl f
	.type f, %function
f:
	.inst 0x00000001
	ret
	.size f, .-f

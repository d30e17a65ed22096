/* aarch64: adr forms an address inside, and no table counts from it */
	.text
	.reloc ., R_AARCH64_NONE	/* so that relocations of code are kept */
	.globl f
	.type f, %function
f:
	adr x0, m
	ret
m:	ret
	.size f, .-f

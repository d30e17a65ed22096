/* x86-64: a prefix in front of a direct jump */
	.text
	.globl f
	.type f, %function
f:
	.byte 0xf2, 0xe9
	.long 0
	ret
	.size f, .-f

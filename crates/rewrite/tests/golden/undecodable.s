/* x86-64: bytes that are no instruction */
	.text
	.globl f
	.type f, %function
f:
	nop
	.byte 0x06
	ret
	.size f, .-f

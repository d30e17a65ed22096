/* x86-64: an endless loop */
	.text
	.globl f
	.type f, %function
f:
1:	pause
	jmp 1b
	.size f, .-f

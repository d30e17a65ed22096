/* x86-64: a section whose bounds have symbols */
	.section mine,"ax"
	.globl f
	.type f, %function
f:
	ret
	.size f, .-f

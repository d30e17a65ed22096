/* x86-64: code of .init is glued together */
	.section .init,"ax"
	.globl _f
	.type _f, %function
_f:
	nop
	ret
	.size _f, .-_f

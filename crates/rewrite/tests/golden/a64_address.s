/* aarch64: adrp and add form an address together */
	.text
	.globl f
	.type f, %function
f:
	adrp x0, g
	add x0, x0, :lo12:g
	adrp x1, value
	ldr x1, [x1, :lo12:value]
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g
	.data
	.p2align 3
value:	.quad 0

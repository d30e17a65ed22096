/* aarch64: a veneer of the linker */
	.text
	.globl f
	.type f, %function
f:
	bl v
	ret
	.size f, .-f
	.globl v
	.type v, %function
v:
	adrp x16, g
	add x16, x16, :lo12:g
	br x16
	.size v, .-v
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

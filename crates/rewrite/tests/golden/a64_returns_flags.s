/* aarch64: a caller branches on flags behind a call */
	.text
	.globl f
	.type f, %function
f:
	bl g
	b.cs 1f
	ret
1:	brk #0
	.size f, .-f
	.globl g
	.type g, %function
g:
	cmp x0, #1
	ret
	.size g, .-g

/* x86-64: int3 and nops between functions */
	.text
	.globl f
	.type f, %function
f:
	ret
	.size f, .-f
	int3
	int3
	.p2align 4
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

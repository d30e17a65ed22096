/* x86-64: a jump to another function at the end */
	.text
	.globl f
	.type f, %function
f:
	add $1, %edi
	jmp g
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

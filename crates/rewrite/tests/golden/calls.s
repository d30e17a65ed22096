/* x86-64: direct calls, one of them of the function itself */
	.text
	.globl f
	.type f, %function
f:
	push %rax
	call g
	call f
	pop %rax
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

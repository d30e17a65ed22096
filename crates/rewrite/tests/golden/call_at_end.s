/* x86-64: a call is the last instruction: it does not come back */
	.text
	.globl f
	.type f, %function
f:
	push %rax
	call g
	.size f, .-f
	.globl g
	.type g, %function
g:
1:	jmp 1b
	.size g, .-g

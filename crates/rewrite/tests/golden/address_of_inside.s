/* x86-64: code forms an address inside of another function */
	.text
	.globl f
	.type f, %function
f:
	lea m(%rip), %rax
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	nop
m:	ret
	.size g, .-g

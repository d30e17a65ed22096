/* x86-64: code forms the addresses of a function and of data */
	.text
	.globl f
	.type f, %function
f:
	lea g(%rip), %rax
	lea value(%rip), %rdx
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g
	.data
value:	.quad 0

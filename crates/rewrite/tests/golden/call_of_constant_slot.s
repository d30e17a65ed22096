/* x86-64: a call through a word that nothing changes */
	.section .rodata,"a"
	.p2align 3
slot:	.quad g
	.text
	.globl f
	.type f, %function
f:
	sub $8, %rsp
	call *slot(%rip)
	add $8, %rsp
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

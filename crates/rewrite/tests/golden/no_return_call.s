/* x86-64: what follows a call of abort is unlikely */
	.text
	.globl f
	.type f, %function
f:
	sub $8, %rsp
	test %edi, %edi
	je 1f
	add $8, %rsp
	ret
1:	call abort
	nop
	.size f, .-f
	.globl abort
	.type abort, %function
abort:
	ud2
	.size abort, .-abort

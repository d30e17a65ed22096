/* x86-64: a call that returns twice ends its block */
	.text
	.globl f
	.type f, %function
f:
	sub $8, %rsp
	call setjmp
	test %eax, %eax
	jne 1f
	call g
1:	add $8, %rsp
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g
	.globl setjmp
	.type setjmp, %function
setjmp:
	xor %eax, %eax
	ret
	.size setjmp, .-setjmp
	.globl longjmp
	.type longjmp, %function
longjmp:
	jmp *8(%rdi)
	.size longjmp, .-longjmp

/* x86-64: nops inside of a function, run through and not */
	.text
	.globl f
	.type f, %function
f:
	test %edi, %edi
	je 1f
	ret
	nopw 0x0(%rax,%rax,1)
1:	nop
	mov $2, %eax
	ret
	.size f, .-f

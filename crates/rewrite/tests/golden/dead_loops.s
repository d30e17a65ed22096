/* x86-64: loops that nothing leads to and that nothing leaves, beside plain functions */
	.text
	.globl f
	.type f, %function
f:
	test %edi, %edi
	je 1f
	call g
	ret
1:	jmp 3f
2:	call g
	jmp 2b
3:	xor %eax, %eax
	ret
	.size f, .-f

	.globl g
	.type g, %function
g:
	test %edi, %edi
	je 2f
	mov $1, %eax
	ret
1:	dec %edi
	jne 1b
	jmp 1b
2:	xor %eax, %eax
	ret
	.size g, .-g

	.globl h
	.type h, %function
h:
	jmp 2f
1:	call *8(%rdi)
	test %eax, %eax
	js 3f
2:	mov (%rdi), %rdi
	test %rdi, %rdi
	jne 1b
	ret
3:	cmp $-2, %eax
	je g
	jmp 1b
	.size h, .-h

	.data
	.quad f, g, h

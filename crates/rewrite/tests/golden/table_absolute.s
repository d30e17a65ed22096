/* x86-64: a jump table of addresses */
	.text
	.globl f
	.type f, %function
f:
	cmp $3, %edi
	ja c9
	mov %edi, %edi
	jmp *table(,%rdi,8)
c1:	mov $1, %eax
	ret
c2:	mov $2, %eax
	ret
c3:	mov $3, %eax
	ret
c9:	xor %eax, %eax
	ret
	.size f, .-f
	.section .rodata,"a"
	.p2align 3
table:	.quad c1, c2, c3, c1

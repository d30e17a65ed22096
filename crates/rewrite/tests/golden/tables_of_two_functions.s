/* x86-64: one table ends where the next begins */
	.text
	.globl f
	.type f, %function
f:
	cmp $3, %edi
	ja c9
	mov %edi, %edi
	lea table(%rip), %rdx
	movslq (%rdx,%rdi,4), %rax
	add %rdx, %rax
	jmp *%rax
c1:	mov $1, %eax
	ret
c2:	mov $2, %eax
	ret
c3:	mov $3, %eax
	ret
c9:	xor %eax, %eax
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	cmp $3, %edi
	ja d9
	mov %edi, %edi
	lea other(%rip), %rdx
	movslq (%rdx,%rdi,4), %rax
	add %rdx, %rax
	jmp *%rax
d1:	mov $1, %eax
	ret
d2:	mov $2, %eax
	ret
d3:	mov $3, %eax
	ret
d9:	xor %eax, %eax
	ret
	.size g, .-g
	.section .rodata,"a"
	.p2align 2
table:	.long c1-table, c2-table, c3-table, c1-table
other:	.long d1-other, d2-other, d3-other

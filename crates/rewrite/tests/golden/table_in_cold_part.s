/* x86-64: an entry leads to a part that was split off */
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
c9:	ret
	.size f, .-f
	.section .text.unlikely,"ax"
	.type f.cold, %function
f.cold:
c5:	mov $5, %eax
	jmp c1
	.size f.cold, .-f.cold
	.section .rodata,"a"
	.p2align 2
table:	.long c1-table, c2-table, c5-table, c1-table

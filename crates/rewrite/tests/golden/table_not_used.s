/* x86-64: a table whose address is formed and that no jump reads */
	.text
	.globl f
	.type f, %function
f:
	lea table(%rip), %rdx
	movslq (%rdx,%rdi,4), %rax
	ret
c1:	ret
	.size f, .-f
	.section .rodata,"a"
table:	.long c1-table

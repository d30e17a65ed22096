/* aarch64: a table of words relative to itself */
	.text
	.globl f
	.type f, %function
f:
	cmp w0, #2
	b.hi c9
	adrp x1, table
	add x1, x1, :lo12:table
	ldrsw x2, [x1, w0, uxtw #2]
	add x1, x1, x2
	br x1
c1:	mov w0, #1
	ret
c2:	mov w0, #2
	ret
c9:	mov w0, #9
	ret
	.size f, .-f
	.section .rodata,"a"
	.p2align 2
table:	.word c1-table, c2-table, c1-table

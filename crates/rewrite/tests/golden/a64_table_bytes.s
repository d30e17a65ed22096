/* aarch64: a table of bytes that count from a place in the code */
	.text
	.globl f
	.type f, %function
f:
	cmp w0, #3
	b.hi c9
	adrp x1, table
	add x1, x1, :lo12:table
	ldrb w1, [x1, w0, uxtw]
	adr x2, anchor
	add x1, x2, w1, sxtb #2
	br x1
anchor:
c1:	mov w0, #1
	ret
c2:	mov w0, #2
	ret
c3:	mov w0, #3
	ret
c9:	mov w0, #9
	ret
	.size f, .-f
	.section .rodata,"a"
table:	.byte (c1-anchor)/4, (c2-anchor)/4, (c3-anchor)/4, (c1-anchor)/4

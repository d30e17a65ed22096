/* x86-64: a caller branches on flags behind a call */
	.text
	.globl f
	.type f, %function
f:
	call g
	jc 1f
	ret
1:	ud2
	.size f, .-f
	.globl g
	.type g, %function
g:
	stc
	ret
	.size g, .-g

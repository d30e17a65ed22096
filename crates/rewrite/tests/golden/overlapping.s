/* x86-64: two symbols overlap: one piece with an entry */
	.text
	.globl f, g
	.type f, %function
	.type g, %function
f:	mov $1, %eax
g:	mov $2, %edx
	ret
	.size f, 8
	nop
	ret
	.size g, .-g

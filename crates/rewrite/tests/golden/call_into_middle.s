/* x86-64: a call makes an entry */
	.text
	.globl f
	.type f, %function
f:
	mov $1, %eax
m:	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	call m
	ret
	.size g, .-g

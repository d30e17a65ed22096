/* x86-64: control runs past the end */
	.text
	.globl f
	.type f, %function
f:
	mov $1, %eax
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

/* x86-64: endbr64 at the entry */
	.text
	.globl f
	.type f, %function
f:
	endbr64
	mov $1, %eax
	ret
	.size f, .-f

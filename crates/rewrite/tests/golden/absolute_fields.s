/* x86-64: addresses in immediate operands */
	.text
	.globl f
	.type f, %function
f:
	mov $g, %eax
	movabs $g, %rdx
	cmp $g, %rax
	ret
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

/* x86-64: functions that share a part are one */
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
	mov $2, %eax
	jmp m
	.size g, .-g

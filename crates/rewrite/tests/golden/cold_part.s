/* x86-64: a part that was split off, joined by the jump back into the middle */
	.text
	.globl f
	.type f, %function
f:
	test %edi, %edi
	je f.cold
b:	ret
	.size f, .-f
	.section .text.unlikely,"ax"
	.type f.cold, %function
f.cold:
	mov $1, %eax
	jmp b
	.size f.cold, .-f.cold

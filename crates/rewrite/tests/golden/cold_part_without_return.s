/* x86-64: a part that was split off and does not jump back, joined by its name */
	.text
	.globl f
	.type f, %function
f:
	test %edi, %edi
	je f.cold
	ret
	.size f, .-f
	.section .text.unlikely,"ax"
	.type f.cold, %function
f.cold:
	ud2
	.size f.cold, .-f.cold

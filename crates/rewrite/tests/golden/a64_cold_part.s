/* aarch64: a part that was split off */
	.text
	.globl f
	.type f, %function
f:
	cbz w0, f.cold
b:	ret
	.size f, .-f
	.section .text.unlikely,"ax"
	.type f.cold, %function
f.cold:
	mov w0, #1
	b b
	.size f.cold, .-f.cold

/* x86-64: an unwind entry tells the size */
	.text
	.globl f
	.type f, %function
f:	.cfi_startproc
	mov $1, %eax
	ret
	.cfi_endproc

/* x86-64: a loop with its condition at the end */
	.text
	.globl f
	.type f, %function
f:
	xor %eax, %eax
1:	add %edi, %eax
	dec %edi
	jne 1b
	ret
	.size f, .-f

/* x86-64: a self-relative value leads to a function */
	.text
	.reloc ., R_X86_64_NONE	/* so that relocations of code are kept */
	.globl f
	.type f, %function
f:
	nop
	ret
	.size f, .-f
	.section .rodata,"a"
p:	.long f-p

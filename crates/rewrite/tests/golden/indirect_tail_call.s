/* x86-64: a jump through a pointer in a register */
	.text
	.reloc ., R_X86_64_NONE	/* so that relocations of code are kept */
	.globl f
	.type f, %function
f:
	mov %rsi, %rax
	jmp *%rax
	.size f, .-f

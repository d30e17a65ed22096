/* x86-64: a word in data points to a function */
	.text
	.reloc ., R_X86_64_NONE	/* so that relocations of code are kept */
	.globl f
	.type f, %function
f:
	ret
	.size f, .-f
	.data
	.quad f

/* x86-64: a function listed for patching */
	.text
	.globl f
	.type f, %function
f:
	nop
	ret
	.size f, .-f
	.section __patchable_function_entries,"aw"
	.quad f

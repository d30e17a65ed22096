/* x86-64: a second global symbol inside of a function */
	.text
	.globl f
	.type f, %function
f:
	mov $1, %eax
	.globl inner
	.type inner, %function
inner:	add $2, %eax
	ret
	.size inner, .-inner
	.size f, .-f

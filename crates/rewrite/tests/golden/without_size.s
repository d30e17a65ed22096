/* x86-64: a symbol without size and unwind entry */
	.text
	.globl f
	.type f, %function
f:	ret
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g

/* x86-64: an exception table leads to a landing pad */
	.text
	.globl f
	.type f, %function
f:	.cfi_startproc
	.cfi_personality 0, __gxx_personality_v0
	.cfi_lsda 0, lsda
	sub $8, %rsp
	.cfi_def_cfa_offset 16
t1:	call g
t2:	add $8, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_def_cfa_offset 16
pad:	mov %rax, %rdi
	call _Unwind_Resume
end:	.cfi_endproc
	.size f, .-f
	.globl g
	.type g, %function
g:
	ret
	.size g, .-g
	.globl _Unwind_Resume
	.type _Unwind_Resume, %function
_Unwind_Resume:
	ud2
	.size _Unwind_Resume, .-_Unwind_Resume
	.globl __gxx_personality_v0
	.type __gxx_personality_v0, %function
__gxx_personality_v0:
	ret
	.size __gxx_personality_v0, .-__gxx_personality_v0

	.section .gcc_except_table,"a"
lsda:	.byte 0xff, 0xff, 0x01
	.uleb128 lsda_end-lsda_begin
lsda_begin:
	.uleb128 t1-f, t2-t1, pad-f, 0
	.uleb128 pad-f, end-pad, 0, 0
lsda_end:

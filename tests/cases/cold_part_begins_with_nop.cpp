//# about: a cold part without a symbol that begins with an instruction that does nothing, in front of a landing pad, and a routine for exceptions (of C) that counts landing pads from the function's start alone: the function's entry is in the other part
//# not aarch64: it is in assembly for x86-64
//# kinds: gcc-pie gcc-nopie clang-pie gcc-so
//# moved: worker
//# optimize: --reorder-blocks=none
//# count worker: 40
//# stdout: 40 calls, 13 thrown, 13 cleaned, 27 returned
#include <cstdio>

extern "C" {
__attribute__((visibility("hidden"))) int cleaned = 0, thrown = 0, helped = 0;
__attribute__((visibility("hidden"))) int worker(int);
__attribute__((visibility("hidden"), noinline)) int thrower(int n) {
  if (n % 3 == 1) {
    thrown++;
    throw n;
  }
  return n;
}
__attribute__((visibility("hidden"), noinline)) void helper() { helped++; }
}

// As GCC 14 compiles C++ functions that have nothing but cleanups.
__asm__(R"(
    .text
    .p2align 4
.Lcold:
    .cfi_startproc
    .cfi_personality 0x9b, DW.ref.__gcc_personality_v0
    .cfi_lsda 0x1b, .Lcold_table
    nop
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
.Lcold_pad:
    mov %rax, %rbx
.Lcold_goes_on:
    incl cleaned(%rip)
.Lcold_call:
    call helper
.Lcold_called:
    mov %rbx, %rdi
.Lcold_resume:
    call _Unwind_Resume@PLT
.Lcold_end:
    .cfi_endproc

    .globl worker
    .hidden worker
    .type worker, @function
    .p2align 4
worker:
    .cfi_startproc
    .cfi_personality 0x9b, DW.ref.__gcc_personality_v0
    .cfi_lsda 0x1b, .Lmain_table
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
.Lmain_call:
    call thrower
.Lmain_called:
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_def_cfa_offset 16
.Lmain_pad:
    mov %rax, %rbx
    jmp .Lcold_goes_on
    .cfi_endproc
    .size worker, .-worker

    .section .gcc_except_table, "a", @progbits
    .p2align 2
.Lcold_table:
    .byte 0xff, 0xff, 1
    .uleb128 .Lcold_table_end - .Lcold_sites
.Lcold_sites:
    .uleb128 .Lcold_call - .Lcold
    .uleb128 .Lcold_called - .Lcold_call
    .uleb128 .Lcold_pad - .Lcold
    .uleb128 0
    .uleb128 .Lcold_resume - .Lcold
    .uleb128 .Lcold_end - .Lcold_resume
    .uleb128 0
    .uleb128 0
.Lcold_table_end:
    .p2align 2
.Lmain_table:
    .byte 0xff, 0xff, 1
    .uleb128 .Lmain_table_end - .Lmain_sites
.Lmain_sites:
    .uleb128 .Lmain_call - worker
    .uleb128 .Lmain_called - .Lmain_call
    .uleb128 .Lmain_pad - worker
    .uleb128 0
.Lmain_table_end:

    .hidden DW.ref.__gcc_personality_v0
    .weak DW.ref.__gcc_personality_v0
    .section .data.rel.local.DW.ref.__gcc_personality_v0, "awG", @progbits, DW.ref.__gcc_personality_v0, comdat
    .p2align 3
    .type DW.ref.__gcc_personality_v0, @object
    .size DW.ref.__gcc_personality_v0, 8
DW.ref.__gcc_personality_v0:
    .quad __gcc_personality_v0
    .text
)");

int main(int argc, char **argv) {
  int calls = 0, returned = 0;
  for (int i = 0; i < 40; i++) {
    calls++;
    try {
      worker(i);
      returned++;
    } catch (int) {
    }
  }
  printf("%d calls, %d thrown, %d cleaned, %d returned\n", calls, thrown, cleaned, returned);
  return helped != cleaned;
}

/* What entries of functions call when their countdown borrows: the first call of a function, and the sampling of who called whom.
 *
 * Both are called where only the flags and the registers that linker stubs may use are free, so they keep everything else, without a word about
 * vector registers, since they have none (compiled with -mgeneral-regs-only where there is such a thing).
 *
 *   x86-64   The counter's address is read from the counting instruction, which lies at a fixed distance before the return address. If other
 *            bytes are there (a program that was rewritten after linking), nothing is done.
 *   AArch64  x16: counter, x17: the function's own return address, which the call has pushed out of x30.
 *   Arm      r1: counter; r0 and r2 are free.
 *
 * Counters: the call count, then the ordinal of the first call. An ordinal that is there already means that 2^32 calls have been counted:
 * then the count is set near its end, so that it stays there. */

#define HIDDEN __attribute__((visibility("hidden")))
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long word;

#if !defined(MIP_SAMPLE)
/* Ordinal that was given last. */
u32 __llvm_mip_order HIDDEN;
#endif

#if defined(__APPLE__)
#define NAME(x) "_" #x
#define HIDE(x) "\t.globl _" #x "\n\t.private_extern _" #x "\n_" #x ":\n"
#define END_OF(x)
#define CODE "\t.text\n\t.p2align 4\n"
#else
#define NAME(x) #x
#if defined(__arm__)
#define FUNCTION "%function"
#else
#define FUNCTION "@function"
#endif
#define HIDE(x) "\t.globl " #x "\n\t.hidden " #x "\n\t.type " #x "," FUNCTION "\n" #x ":\n"
#define END_OF(x) "\t.size " #x ", .-" #x "\n"
#define CODE "\t.text\n\t.p2align 4\n"
#endif

#if defined(MIP_SAMPLE)
/* Below: this file is compiled for each of its halves. */
#elif defined(__x86_64__)
__asm__(CODE HIDE(__llvm_mip_first)
  "\t.cfi_startproc\n"
  "\tpushq %rax\n\t.cfi_adjust_cfa_offset 8\n"
  "\tpushq %rdx\n\t.cfi_adjust_cfa_offset 8\n"
  "\tmovq 16(%rsp), %rdx\n"
#if defined(__APPLE__) /* incl, jne, call; counters begin as all ones */
  "\tcmpw $0x05ff, -13(%rdx)\n\tjne 2f\n"
  "\tmovslq -11(%rdx), %rax\n"
#define NEVER "$-1"
#define LAST "$0xffff0000"
#else /* subl, jnc, call; counters begin as zero */
  "\tcmpw $0x2d83, -14(%rdx)\n\tjne 2f\n"
  "\tmovslq -12(%rdx), %rax\n"
#define NEVER "$0"
#define LAST "$0x10000"
#endif
  "\tleaq -7(%rdx,%rax), %rdx\n"
  "\tcmpl " NEVER ", 4(%rdx)\n\tjne 1f\n"
  "\tmovl $1, %eax\n"
#if defined(__APPLE__)
  "\tmovl $1, (%rdx)\n"
#endif
  "\tlock xaddl %eax, " NAME(__llvm_mip_order) "(%rip)\n"
  "\tincl %eax\n"
  "\tmovl %eax, 4(%rdx)\n"
  "\tjmp 2f\n"
  "1:\tmovl " LAST ", (%rdx)\n"
  "2:\tpopq %rdx\n\t.cfi_adjust_cfa_offset -8\n"
  "\tpopq %rax\n\t.cfi_adjust_cfa_offset -8\n"
  "\tret\n\t.cfi_endproc\n" END_OF(__llvm_mip_first));
#elif defined(__aarch64__)
__asm__(CODE HIDE(__llvm_mip_first)
  "\t.cfi_startproc\n\t.cfi_register 30, 17\n"
  "\tstp x0, x1, [sp, #-32]!\n\t.cfi_adjust_cfa_offset 32\n"
  "\tstp x2, x3, [sp, #16]\n"
#if defined(__APPLE__)
  "\tldr w0, [x16, #4]\n\tcmn w0, #1\n\tb.ne 2f\n"
  "\tadrp x1, ___llvm_mip_order@PAGE\n\tadd x1, x1, ___llvm_mip_order@PAGEOFF\n"
#else
  "\tldr w0, [x16, #4]\n\tcbnz w0, 2f\n"
  "\tadrp x1, __llvm_mip_order\n\tadd x1, x1, :lo12:__llvm_mip_order\n"
#endif
  "1:\tldxr w0, [x1]\n\tadd w0, w0, #1\n\tstxr w2, w0, [x1]\n\tcbnz w2, 1b\n"
  "\tstr w0, [x16, #4]\n"
#if defined(__APPLE__)
  "\tmov w0, #1\n\tstr w0, [x16]\n"
#endif
  "\tb 3f\n"
#if defined(__APPLE__)
  "2:\tmov w0, #0xffff0000\n"
#else
  "2:\tmov w0, #0x10000\n"
#endif
  "\tstr w0, [x16]\n"
  "3:\tldp x2, x3, [sp, #16]\n"
  "\tldp x0, x1, [sp], #32\n\t.cfi_adjust_cfa_offset -32\n"
  "\tmov x16, x30\n\tmov x30, x17\n"
  /* Not br: where the processor checks landing pads, a return may go anywhere. */
  "\tret x16\n\t.cfi_endproc\n" END_OF(__llvm_mip_first));
#elif defined(__arm__)
__asm__("\t.syntax unified\n\t.arm\n" CODE HIDE(__llvm_mip_first)
  "\tldr r0, [r1, #4]\n\tcmp r0, #0\n\tbne 2f\n"
  "\tpush {r3, r4}\n"
  "\tldr r2, 4f\n3:\tadd r2, pc, r2\n"
#if __ARM_ARCH >= 6
  "1:\tldrex r0, [r2]\n\tadd r0, r0, #1\n\tstrex r3, r0, [r2]\n\tcmp r3, #0\n\tbne 1b\n"
#else
  "\tldr r0, [r2]\n\tadd r0, r0, #1\n\tstr r0, [r2]\n"
#endif
  "\tstr r0, [r1, #4]\n"
  "\tpop {r3, r4}\n"
  "\tbx lr\n"
  "2:\tmov r0, #0x10000\n\tstr r0, [r1]\n\tbx lr\n"
  "\t.balign 4\n4:\t.long __llvm_mip_order-(3b+8)\n" END_OF(__llvm_mip_first));
#endif

#if defined(MIP_SAMPLE) && !defined(__APPLE__)
#define STRING(x) #x
#define TEXT(x) STRING(x)

/* A sampled edge: the format of raw files. */
struct slot {
  u32 callee;          /* offset of its counters */
  int source;          /* return address, from the counters' start */
  unsigned long long calls; /* how many it stands for */
};
extern u8 __llvm_mip_start[] __attribute__((weak)) HIDDEN;
extern u8 __llvm_mip_end[] HIDDEN;
extern struct slot __llvm_mip_slots[] HIDDEN;

enum { DISTANCE = 64, WAYS = 4 };
/* Calls until the next sample; it borrows when it is over. */
u32 __llvm_mip_countdown HIDDEN;
static u32 state = 0x9e3779b9;

static u32 draw(void) {
  u32 x = state;
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return state = x;
}

/* Notes a call. An edge belongs to one set of WAYS slots. If it has none of them and none is free, the lightest slot changes hands with the
 * probability that its new part bears to its new weight: so what a slot stands for is right on average, whoever holds it, heavy edges stay, and
 * light ones displace each other. */
HIDDEN __attribute__((used)) void __llvm_mip_note(u8 *counter, word return_address) {
  u32 callee = (u32)(counter - __llvm_mip_start);
  long far = (long)(return_address - (word)__llvm_mip_start);
  int source = (int)far;
  word sets = (word)((struct slot *)(void *)__llvm_mip_end - __llvm_mip_slots) / WAYS;
  struct slot *set, *lightest;
  u32 hash;
  int i;
  /* Between 1 and 2 * DISTANCE - 1 calls from now: DISTANCE on average, in step with nothing. */
  __llvm_mip_countdown = draw() % (2 * DISTANCE - 1);
  if (!sets) return;
  if (source != far) source = 0; /* called from another library, far away */
  hash = (callee * 0x9e3779b1u) ^ ((u32)source * 0x85ebca6bu);
  hash ^= hash >> 15;
  set = __llvm_mip_slots + (hash % (u32)sets) * WAYS;
  lightest = set;
  for (i = 0; i < WAYS; i++) {
    struct slot *slot = set + i;
    if (slot->calls && slot->callee == callee && slot->source == source) {
      slot->calls += DISTANCE;
      return;
    }
    if (slot->calls < lightest->calls) lightest = slot;
  }
  if (lightest->calls == 0 || draw() % (u32)((lightest->calls + DISTANCE) / DISTANCE) == 0) {
    lightest->callee = callee;
    lightest->source = source;
  }
  lightest->calls += DISTANCE;
}

#if defined(__x86_64__)
/* Stack: return address into the function, then the function's own. */
__asm__(CODE HIDE(__llvm_mip_sample)
  "\t.cfi_startproc\n"
  "\tpushq %rbp\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset %rbp, 0\n"
  "\tmovq %rsp, %rbp\n\t.cfi_def_cfa_register %rbp\n"
  "\tpushq %rax\n\tpushq %rcx\n\tpushq %rdx\n\tpushq %rsi\n\tpushq %rdi\n\tpushq %r8\n\tpushq %r9\n\tpushq %r10\n\tpushq %r11\n"
  "\tmovq 8(%rbp), %rdx\n"
  "\tcmpw $0x2d83, -28(%rdx)\n\tjne 1f\n"
  "\tmovslq -26(%rdx), %rax\n"
  "\tleaq -21(%rdx,%rax), %rdi\n"
  "\tmovq 16(%rbp), %rsi\n"
  "\tandq $-16, %rsp\n\tsubq $16, %rsp\n"
  "\tcall __llvm_mip_note\n"
  "1:\tleaq -72(%rbp), %rsp\n"
  "\tpopq %r11\n\tpopq %r10\n\tpopq %r9\n\tpopq %r8\n\tpopq %rdi\n\tpopq %rsi\n\tpopq %rdx\n\tpopq %rcx\n\tpopq %rax\n"
  "\tpopq %rbp\n\t.cfi_def_cfa %rsp, 8\n"
  "\tret\n\t.cfi_endproc\n" END_OF(__llvm_mip_sample));
#elif defined(__aarch64__)
__asm__(CODE HIDE(__llvm_mip_sample)
  "\t.cfi_startproc\n\t.cfi_register 30, 17\n"
  "\tstp x29, x30, [sp, #-192]!\n\t.cfi_adjust_cfa_offset 192\n"
  "\tmov x29, sp\n"
  "\tstp x0, x1, [sp, #16]\n\tstp x2, x3, [sp, #32]\n\tstp x4, x5, [sp, #48]\n\tstp x6, x7, [sp, #64]\n\tstp x8, x9, [sp, #80]\n"
  "\tstp x10, x11, [sp, #96]\n\tstp x12, x13, [sp, #112]\n\tstp x14, x15, [sp, #128]\n\tstp x17, x18, [sp, #144]\n"
  "\t.cfi_rel_offset 30, 144\n"
  "\tmov x0, x16\n\tmov x1, x17\n"
  /* A signed return address without its signature; on processors without signatures it does nothing, to x30. */
  "\tmov x30, x1\n\thint #7\n\tmov x1, x30\n"
  "\tbl __llvm_mip_note\n"
  "\tldp x0, x1, [sp, #16]\n\tldp x2, x3, [sp, #32]\n\tldp x4, x5, [sp, #48]\n\tldp x6, x7, [sp, #64]\n\tldp x8, x9, [sp, #80]\n"
  "\tldp x10, x11, [sp, #96]\n\tldp x12, x13, [sp, #112]\n\tldp x14, x15, [sp, #128]\n\tldp x17, x18, [sp, #144]\n"
  "\tldp x29, x30, [sp], #192\n\t.cfi_adjust_cfa_offset -192\n\t.cfi_register 30, 17\n"
  "\tmov x16, x30\n\tmov x30, x17\n"
  "\tret x16\n\t.cfi_endproc\n" END_OF(__llvm_mip_sample));
#elif defined(__arm__)
/* Called at every entry: the countdown is here. On the stack lie r2 and the function's own return address. */
__asm__("\t.syntax unified\n\t.arm\n" CODE HIDE(__llvm_mip_sample)
  "\tldr r2, 4f\n3:\tadd r2, pc, r2\n"
  "\tldr r0, [r2]\n\tsubs r0, r0, #1\n\tstr r0, [r2]\n\tbxcs lr\n"
  "\tmov r0, r1\n\tldr r1, [sp, #4]\n"
  "\tpush {r3, r4, r12, lr}\n"
  "\tbl __llvm_mip_note\n"
  "\tpop {r3, r4, r12, lr}\n"
  "\tbx lr\n"
  "\t.balign 4\n4:\t.long __llvm_mip_countdown-(3b+8)\n" END_OF(__llvm_mip_sample));
#endif
#endif

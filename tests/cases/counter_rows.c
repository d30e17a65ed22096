//# about: unwinding from inside of counters that save a register, of recorders of indirect calls, and of routines that they call: every instruction of functions with live flags and no dead register, and of one that calls and jumps through pointers, is interrupted, and frames are listed there
//# not aarch64: it steps by the trap flag
//# kinds: gcc-pie gcc-nopie clang-pie gcc-static gcc-so
//# all states: gcc-static
//# flags: -fexceptions -fasynchronous-unwind-tables -fno-omit-frame-pointer
//# build without: -fomit-frame-pointer
//# moved: by_stack by_frame by_expression in_red_zone by_pointer middle
//# count by_stack: 4
//# stdout: by_stack 80 right
//# stdout: by_frame 80 right
//# stdout: by_expression 80 right
//# stdout: in_red_zone 5 right
//# stdout: by_pointer 20 right
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unwind.h>

// No register is dead at the branches, and flags live behind them.
#define CROWDED                                                                                                        \
  "  mov $3, %ecx\n  mov $3, %edx\n  mov $3, %r8d\n  mov $3, %r9d\n  mov $3, %r10d\n  mov $3, %r11d\n"                 \
  "  mov $3, %ebx\n  mov $3, %r12d\n  mov $3, %r13d\n  mov $3, %r14d\n  mov $3, %r15d\n  mov $50, %eax\n"              \
  "  test %rdi, %rdi\n  je 1f\n  lea 5(%rax), %rax\n"                                                                  \
  "1: cmovz %rcx, %rax\n  js 2f\n  lea 7(%rax), %rax\n"                                                                \
  "2: cmovz %rdx, %rax\n  add %rdi, %rax\n  add %rsi, %rax\n"                                                          \
  "  add %rcx, %rax\n  add %rdx, %rax\n  add %r8, %rax\n  add %r9, %rax\n  add %r10, %rax\n  add %r11, %rax\n"         \
  "  add %rbx, %rax\n  add %r12, %rax\n  add %r13, %rax\n  add %r14, %rax\n  add %r15, %rax\n"
#define PUSH(R) "  push %" R "\n  .cfi_adjust_cfa_offset 8\n  .cfi_rel_offset " R ", 0\n"
#define POP(R) "  pop %" R "\n  .cfi_adjust_cfa_offset -8\n  .cfi_restore " R "\n"
#define BEGIN(NAME) ".globl " NAME "\n.hidden " NAME "\n.type " NAME ",@function\n" NAME ":\n  .cfi_startproc\n"
#define END(NAME) "  ret\n  .cfi_endproc\n.size " NAME ",.-" NAME "\n"

__asm__(".text\n"
        // The frame is found from the stack pointer; rbp is one more register that lives.
        BEGIN("by_stack") PUSH("rbx") PUSH("rbp") PUSH("r12") PUSH("r13") PUSH("r14") PUSH("r15") "  mov $3, %ebp\n"
        CROWDED "  add %rbp, %rax\n  sub $3, %rax\n"
        POP("r15") POP("r14") POP("r13") POP("r12") POP("rbp") POP("rbx") END("by_stack")
        // From the frame pointer.
        BEGIN("by_frame") PUSH("rbp") "  mov %rsp, %rbp\n  .cfi_def_cfa_register rbp\n"
        "  push %rbx\n  .cfi_offset rbx, -24\n  push %r12\n  .cfi_offset r12, -32\n  push %r13\n  .cfi_offset r13, -40\n"
        "  push %r14\n  .cfi_offset r14, -48\n  push %r15\n  .cfi_offset r15, -56\n" CROWDED
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  leave\n  .cfi_def_cfa rsp, 8\n" END("by_frame")
        // From a word on the stack that holds it: DW_OP_breg7 0, DW_OP_deref.
        BEGIN("by_expression") PUSH("rbx") PUSH("rbp") PUSH("r12") PUSH("r13") PUSH("r14") PUSH("r15")
        "  lea 56(%rsp), %rax\n  push %rax\n  .cfi_adjust_cfa_offset 8\n  mov $3, %ebp\n"
        "  .cfi_remember_state\n  .cfi_escape 0x0f, 3, 0x77, 0, 0x06\n" CROWDED
        "  add %rbp, %rax\n  sub $3, %rax\n  .cfi_restore_state\n  add $8, %rsp\n  .cfi_adjust_cfa_offset -8\n"
        POP("r15") POP("r14") POP("r13") POP("r12") POP("rbp") POP("rbx") END("by_expression")
        // A leaf with data below the stack pointer.
        BEGIN("in_red_zone") "  mov %rbx, -8(%rsp)\n  .cfi_offset rbx, -16\n  mov %rbp, -128(%rsp)\n"
        "  .cfi_offset rbp, -136\n  mov %r12, -16(%rsp)\n  .cfi_offset r12, -24\n  mov %r13, -24(%rsp)\n"
        "  .cfi_offset r13, -32\n  mov %r14, -32(%rsp)\n  .cfi_offset r14, -40\n  mov %r15, -40(%rsp)\n"
        "  .cfi_offset r15, -48\n  mov $3, %ebp\n"
        "  mov $-25, %rax\n" CROWDED "  add %rbp, %rax\n  sub $78, %rax\n"
        "  mov -40(%rsp), %r15\n  mov -32(%rsp), %r14\n  mov -24(%rsp), %r13\n  mov -16(%rsp), %r12\n"
        "  mov -128(%rsp), %rbp\n  mov -8(%rsp), %rbx\n" END("in_red_zone")
        BEGIN("begin_steps") "  pushfq\n  .cfi_adjust_cfa_offset 8\n  orl $0x100, (%rsp)\n  popfq\n"
        "  .cfi_adjust_cfa_offset -8\n" END("begin_steps")
        BEGIN("end_steps") "  pushfq\n  .cfi_adjust_cfa_offset 8\n  andl $~0x100, (%rsp)\n  popfq\n"
        "  .cfi_adjust_cfa_offset -8\n" END("end_steps"));

typedef long Function(long, long);
__attribute__((visibility("hidden"))) Function by_stack, by_frame, by_expression, in_red_zone;
__attribute__((visibility("hidden"))) void begin_steps(void), end_steps(void);

// More targets than a recorder has entries for, and a jump in the place of a call.
__attribute__((noinline, noipa)) static long add_1(long x) { return x + 1; }
__attribute__((noinline, noipa)) static long add_2(long x) { return x + 2; }
__attribute__((noinline, noipa)) static long add_3(long x) { return x + 3; }
__attribute__((noinline, noipa)) static long add_4(long x) { return x + 4; }
__attribute__((noinline, noipa)) static long add_5(long x) { return x + 5; }
static long (*volatile targets[])(long) = {add_1, add_2, add_3, add_4, add_5};
__attribute__((noinline, noipa)) static long by_pointer(long a, long b) {
  for (int i = 0; i < 5; i++) a += targets[i](b);
  return targets[b & 1](a);
}

struct frames {
  int count;
  unsigned long ip[64], cfa[64];
};
static struct frames expected, seen;
static volatile int steps, wrong;

static _Unwind_Reason_Code note(struct _Unwind_Context *context, void *argument) {
  struct frames *all = argument;
  if (all->count == 64) return _URC_END_OF_STACK;
  all->ip[all->count] = _Unwind_GetIP(context);
  all->cfa[all->count++] = _Unwind_GetCFA(context);
  return _URC_NO_REASON;
}

// Behind the handler's own frames are those of the function or routine that is interrupted, perhaps its callers, and the
// frames that were there before: all of them, with the same addresses.
static void step(int signal, siginfo_t *info, void *context) {
  seen.count = 0;
  _Unwind_Backtrace(note, &seen);
  steps++;
  int above = seen.count - expected.count;
  unsigned long size = expected.count * sizeof *expected.ip;
  if (above < 3 || above > 8 || memcmp(seen.ip + above, expected.ip, size) ||
      memcmp(seen.cfa + above, expected.cfa, size))
    wrong++;
}

// Everything in between runs step by step.
#define STEPPED(CALL) begin_steps(); CALL; end_steps()

__attribute__((noinline, noipa)) static long middle(int which, long a, long b) {
  long sum = 0;
  switch (which) {
  case 0: { STEPPED(sum = by_stack(a, b)); break; }
  case 1: { STEPPED(sum = by_frame(a, b)); break; }
  case 2: { STEPPED(sum = by_expression(a, b)); break; }
  case 3: { STEPPED(sum = in_red_zone(a, b)); break; }
  case 4: { STEPPED(sum = by_pointer(a, b)); break; }
  }
  return sum;
}

__attribute__((noinline, noipa)) static struct frames here(void) {
  struct frames all = {0};
  _Unwind_Backtrace(note, &all);
  return all;
}

__attribute__((noinline, noipa)) static long outer(int which, long a, long b) {
  // All but the first frame, which is that of `here`, and this one's, whose calls are at two places.
  struct frames all = here();
  expected.count = all.count - 2;
  memcpy(expected.ip, all.ip + 2, sizeof expected.ip - 16);
  memcpy(expected.cfa, all.cfa + 2, sizeof expected.cfa - 16);
  return middle(which, a, b) + 1;
}

int main(int argc, char **argv) {
  static const char *names[] = {"by_stack", "by_frame", "by_expression", "in_red_zone", "by_pointer"};
  struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
  sigaction(SIGTRAP, &action, 0);
  for (int which = 0; which < 5; which++) {
    long sum = 0;
    steps = wrong = 0;
    for (int way = 0; way < 4; way++) sum += outer(which, way - 1, way & 1);
    if (steps < 200) printf("only %d steps\n", steps);
    printf("%s %ld ", names[which], sum / 4);
    if (wrong) printf("wrong at some of its instructions\n"), fprintf(stderr, "%d of %d\n", wrong, steps);
    else printf("right\n");
  }
  return 0;
}

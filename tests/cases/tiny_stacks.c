//# about: coroutines whose stacks have hardly more than their functions need, with a page in front that must not be touched
//# kinds: gcc-pie gcc-nopie clang-pie clang-so aarch64-gcc-pie
//# stdout: 99075774400
//# flags: -O2
//# count work: 3200
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// Switches stacks: no frame of libc's in between, which would need room of its own.
typedef void *stack_pointer;
stack_pointer switch_to(stack_pointer *from, stack_pointer to);
#ifdef __x86_64__
__asm__(".text\n.globl switch_to\n.type switch_to, @function\nswitch_to:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        " mov %rsp, (%rdi)\n mov %rsi, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n.size switch_to, .-switch_to\n");
enum { SAVED = 6, ENTRY = 6, ROOM = 192 };
#else
__asm__(".text\n.globl switch_to\n.type switch_to, @function\nswitch_to:\n stp x29, x30, [sp, -96]!\n stp x19, x20, [sp, 16]\n stp x21, x22, [sp, 32]\n"
        " stp x23, x24, [sp, 48]\n stp x25, x26, [sp, 64]\n stp x27, x28, [sp, 80]\n mov x9, sp\n str x9, [x0]\n mov sp, x1\n ldp x19, x20, [sp, 16]\n"
        " ldp x21, x22, [sp, 32]\n ldp x23, x24, [sp, 48]\n ldp x25, x26, [sp, 64]\n ldp x27, x28, [sp, 80]\n ldp x29, x30, [sp], 96\n ret\n.size switch_to, .-switch_to\n");
enum { SAVED = 12, ENTRY = 1, ROOM = 192 };
#endif

static stack_pointer mine, others[8];
static int who;
static long sums[8];
static int (*volatile operation)(int);
__attribute__((noinline, noipa)) static int twice(int x) { return x & 1 ? x * 2 : x + 7; }
__attribute__((noinline, noipa)) static void work(int i) {
  sums[who] += operation(i) ^ i;
  if (i % 3 == 0) sums[who]++;
}
__attribute__((noinline, noipa, noreturn)) static void coroutine(void) {
  for (int i = 0;; i++) {
    work(i);
    switch_to(&others[who], mine);
  }
}
int main(int argc, char **argv) {
  long page = sysconf(_SC_PAGESIZE), sum = 0;
  operation = twice;
  for (int i = 0; i < 8; i++) {
    char *room = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED || mprotect(room, page, PROT_NONE)) return 2;
    // The stack's first word is ROOM bytes above the page that must not be touched, and what is switched to below it.
    void **top = (void **)(room + page + (ROOM + SAVED * 8 + 64 & -16));
    top[-1] = 0;
    void **frame = top - 2 - SAVED;
    for (int k = 0; k < SAVED; k++) frame[k] = 0;
    frame[ENTRY] = coroutine;
    others[i] = frame;
  }
  for (int round = 0; round < 400; round++)
    for (who = 0; who < 8; who++) switch_to(&mine, others[who]);
  for (int i = 0; i < 8; i++) sum = sum * 7 + sums[i];
  printf("%ld\n", sum);
  return 0;
}

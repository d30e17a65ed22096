/* Runs instructions one by one and checks what is claimed of them.
 *
 * Standard input: records of four 64-bit numbers: the word, what it reads, what it kills, and 1 if it uses memory through x28 and x27.
 * Claimed: whatever is not read does not matter, so changing it changes nothing else; and what is killed, but not read, holds nothing of
 * its old value. Bits 0-30: x0-x30, 32-35: flags N Z C V. The stack pointer holds the state's address, so it is not changed.
 * Prints a line for each claim that does not hold, then how many instructions ran.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct { uint64_t x[32]; } State; /* x[31]: flags */

extern const uint32_t slot_begin[], slot_word[], slot_end[];
__asm__(".pushsection .text\n"
        ".global slot_begin, slot_word, slot_end\n"
        /* x0: in, then out behind it. The instruction at slot_word is replaced. */
        "slot_begin:\n"
        "stp d8, d9, [sp, #-64]!\n stp d10, d11, [sp, #16]\n stp d12, d13, [sp, #32]\n stp d14, d15, [sp, #48]\n"
        "stp x29, x30, [sp, #-96]!\n stp x19, x20, [sp, #16]\n stp x21, x22, [sp, #32]\n stp x23, x24, [sp, #48]\n"
        "stp x25, x26, [sp, #64]\n stp x27, x28, [sp, #80]\n"
        "mov x1, sp\n str x1, [x0, #512]\n mov sp, x0\n"
        /* Vector registers hold the same every time. */
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n movi v\\n\\().16b, #0x3c\n .endr\n"
        "ldr x1, [sp, #248]\n msr nzcv, x1\n"
        "ldp x0, x1, [sp, #0]\n ldp x2, x3, [sp, #16]\n ldp x4, x5, [sp, #32]\n ldp x6, x7, [sp, #48]\n"
        "ldp x8, x9, [sp, #64]\n ldp x10, x11, [sp, #80]\n ldp x12, x13, [sp, #96]\n ldp x14, x15, [sp, #112]\n"
        "ldp x16, x17, [sp, #128]\n ldp x18, x19, [sp, #144]\n ldp x20, x21, [sp, #160]\n ldp x22, x23, [sp, #176]\n"
        "ldp x24, x25, [sp, #192]\n ldp x26, x27, [sp, #208]\n ldp x28, x29, [sp, #224]\n ldr x30, [sp, #240]\n"
        "slot_word: nop\n"
        "stp x0, x1, [sp, #256]\n stp x2, x3, [sp, #272]\n stp x4, x5, [sp, #288]\n stp x6, x7, [sp, #304]\n"
        "stp x8, x9, [sp, #320]\n stp x10, x11, [sp, #336]\n stp x12, x13, [sp, #352]\n stp x14, x15, [sp, #368]\n"
        "stp x16, x17, [sp, #384]\n stp x18, x19, [sp, #400]\n stp x20, x21, [sp, #416]\n stp x22, x23, [sp, #432]\n"
        "stp x24, x25, [sp, #448]\n stp x26, x27, [sp, #464]\n stp x28, x29, [sp, #480]\n str x30, [sp, #496]\n"
        "mrs x1, nzcv\n str x1, [sp, #504]\n"
        "ldr x1, [sp, #512]\n mov sp, x1\n"
        "ldp x19, x20, [sp, #16]\n ldp x21, x22, [sp, #32]\n ldp x23, x24, [sp, #48]\n ldp x25, x26, [sp, #64]\n"
        "ldp x27, x28, [sp, #80]\n ldp x29, x30, [sp], #96\n"
        "ldp d10, d11, [sp, #16]\n ldp d12, d13, [sp, #32]\n ldp d14, d15, [sp, #48]\n ldp d8, d9, [sp], #64\n ret\n"
        "slot_end:\n .popsection\n");

static uint64_t seed = 88172645463325252ull;
static uint64_t rnd(void) { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed; }

static sigjmp_buf back;
static void fault(int s) { siglongjmp(back, s); }

static uint8_t memory[8192] __attribute__((aligned(4096))), before[8192];
static struct { State in, out; uint64_t sp; } area __attribute__((aligned(16)));
static uint32_t *code;

static void run(const State *in, State *out) {
  memcpy(memory, before, sizeof memory);
  area.in = *in;
  ((void (*)(void *))code)(&area);
  *out = area.out;
}

int main(void) {
  size_t len = (const char *)slot_end - (const char *)slot_begin;
  code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(code, slot_begin, len);
  static uint8_t stack[65536];
  stack_t ss = {.ss_sp = stack, .ss_size = sizeof stack};
  sigaltstack(&ss, 0);
  struct sigaction sa = {.sa_handler = fault, .sa_flags = SA_ONSTACK | SA_NODEFER};
  int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGTRAP};
  for (int i = 0; i < 4; i++) sigaction(signals[i], &sa, 0);
  for (size_t i = 0; i < sizeof before; i++) before[i] = rnd();
  uint64_t record[4];
  volatile int ran = 0, wrong = 0;
  while (fread(record, sizeof record, 1, stdin) == 1) {
    uint64_t reads = record[1], kills = record[2];
    code[slot_word - slot_begin] = record[0];
    __builtin___clear_cache((char *)code, (char *)code + len);
    if (sigsetjmp(back, 1)) continue;
    int first = 1;
    for (int round = 0; round < 4; round++) {
      State a, ra;
      for (int i = 0; i < 31; i++) a.x[i] = record[3] ? rnd() % 64 * 8 : round & 1 ? rnd() : rnd() % 67;
      if (record[3]) a.x[28] = a.x[27] = (uint64_t)memory + 4096;
      a.x[31] = (rnd() & 15) << 28;
      run(&a, &ra);
      if (first) ran++;
      first = 0;
      for (int r = 0; r < 36; r++) {
        if (r == 31 || reads >> r & 1) continue;
        State b = a, rb;
        if (r < 31) b.x[r] ^= rnd() | 1; else b.x[31] ^= 1ull << (63 - r);
        run(&b, &rb);
        for (int i = 0; i < 32; i++) {
          uint64_t mine = r < 31 ? (i == r ? ~0ull : 0) : (i == 31 ? 1ull << (63 - r) : 0);
          uint64_t d = ra.x[i] ^ rb.x[i];
          if (d & ~mine) printf("%08x: %d matters to %d\n", (unsigned)record[0], r, i), wrong++;
          else if (d && kills >> r & 1) printf("%08x: %d is not killed\n", (unsigned)record[0], r), wrong++;
        }
      }
    }
  }
  printf("%d ran, %d wrong\n", ran, wrong);
  return 0;
}

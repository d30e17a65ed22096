//# about: restartable sequences as librseq has them: a signature in front of an abort handler in a section of its own, and descriptors with the bounds of the sequence
//# kinds: gcc-pie gcc-nopie clang-pie gcc-so
//# stdout: wrong=0 restarted=1712 listed=1 sum=4011
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Four bytes that the kernel compares in front of each abort handler.
#define SIGNATURE 0x53053053
struct descriptor { uint32_t version, flags; uint64_t start, length, abort; } __attribute__((aligned(32)));
struct area { struct descriptor *volatile current; };
static struct area area;
static long counters[4];

// Adds, unless the sequence is restarted: then 1.
__attribute__((noinline, noipa)) static int add(long *to, long what) {
  __asm__ goto(
    ".pushsection __rseq_cs, \"aw\"\n .balign 32\n 3: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n .popsection\n"
    ".pushsection __rseq_cs_ptr_array, \"aw\"\n .quad 3b\n .popsection\n"
    "lea 3b(%%rip), %%rax\n mov %%rax, %[current]\n"
    "1: cmpq $1000, (%[to])\n jg %l[restart]\n addq %[what], (%[to])\n 2:\n"
    ".pushsection __rseq_failure, \"ax\"\n .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n 4: jmp %l[restart]\n .popsection\n"
    : : [current] "m"(area.current), [to] "r"(to), [what] "r"(what) : "memory", "cc", "rax" : restart);
  return 0;
restart:
  return 1;
}
extern struct descriptor *__start___rseq_cs_ptr_array[], *__stop___rseq_cs_ptr_array[];

int main(int argc, char **argv) {
  int wrong = 0, restarted = 0, listed = 0;
  for (int i = 0; i < 3000; i++) {
    restarted += add(&counters[i & 3], i & 7);
    // What the kernel does when it finds a descriptor.
    struct descriptor *d = area.current;
    uint32_t signature;
    memcpy(&signature, (const char *)d->abort - 4, 4);
    wrong += signature != SIGNATURE;
    wrong += d->abort - d->start < d->length;
    uint64_t first = 0;
    memcpy(&first, (const char *)d->start, 4);
    wrong += (first & 0xff) == 0xcc || (first & 0xff) == 0xe9;
  }
  for (struct descriptor **p = __start___rseq_cs_ptr_array; p < __stop___rseq_cs_ptr_array; p++) listed++;
  printf("wrong=%d restarted=%d listed=%d sum=%ld\n", wrong, restarted, listed, counters[0] + counters[1] + counters[2] + counters[3]);
  return wrong;
}

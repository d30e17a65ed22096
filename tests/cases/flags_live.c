//# about: counters at places where flags and all registers are live: hot loops of wide arithmetic, lahf, pushf
//# not aarch64: written for x86-64
//# build O3: -O3
//# count wide: 3000
#include <stdio.h>

typedef unsigned __int128 wide_t;
__attribute__((noinline, noipa)) static wide_t wide(wide_t a, wide_t b, unsigned n) {
  while (n--) {
    if (a > b) a -= b; else b += a * 3;
    if ((a & 7) == (b & 7)) a += (wide_t)n << 60;
    __asm__ volatile("" : "+r"(n) : : "rbx", "rcx", "r8", "r9", "r10", "r11", "r12", "r13");
  }
  return a ^ b;
}
__attribute__((noinline, noipa)) static unsigned long flags(unsigned long a, unsigned long b) {
  unsigned long r;
  __asm__("cmp %2, %1\n jc 1f\n jno 2f\n lea 5(%1), %0\n lea -128(%%rsp), %%rsp\n pushfq\n pop %%rcx\n lea 128(%%rsp), %%rsp\n and $0x8d5, %%ecx\n add %%rcx, %0\n jmp 3f\n"
          "1: mov $7, %0\n lahf\n movzbl %%ah, %%ecx\n lea (%0, %%rcx, 8), %0\n jmp 3f\n"
          "2: sbb %0, %0\n lea 11(%0), %0\n seto %%cl\n adc $3, %0\n"
          "3:" : "=&r"(r) : "r"(a), "r"(b) : "rax", "rcx", "cc", "memory", "rbx", "rdx");
  return r;
}

int main(int argc, char **argv) {
  unsigned long h = 0;
  for (unsigned i = 0; i < 3000; i++) {
    wide_t w = wide(((wide_t)i << 70) + 12345, ((wide_t)i * 7919 << 64) + i, i % 50);
    h = h * 31 + (unsigned long)(w >> 64) + (unsigned long)w + flags(i * 0x9e3779b97f4a7c15ul, h);
  }
  printf("%lx\n", h);
  return 0;
}

//# about: a program that reads its own headers in memory, as start-up code of static programs does, and looks for its own code in them
//# build O2: -O2
#include <elf.h>
#include <stdint.h>
#include <stdio.h>

extern const Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden")));

__attribute__((noinline, noipa)) int covered(int wanted) {
  const Elf64_Phdr *table = (const Elf64_Phdr *)((uintptr_t)&__ehdr_start + __ehdr_start.e_phoff);
  uintptr_t here = (uintptr_t)__builtin_return_address(0);
  uintptr_t lowest = UINTPTR_MAX, self = 0;
  int found = 0;
  for (int i = 0; i < __ehdr_start.e_phnum; i++) {
    if (table[i].p_type == PT_LOAD && table[i].p_vaddr < lowest) lowest = table[i].p_vaddr;
    if (table[i].p_type == PT_PHDR) self = table[i].p_vaddr;
  }
  // Where the table says that it is, against where it is.
  uintptr_t bias = self ? (uintptr_t)table - self : __ehdr_start.e_type == ET_DYN ? (uintptr_t)&__ehdr_start - lowest : 0;
  for (int i = 0; i < __ehdr_start.e_phnum; i++) {
    uintptr_t start = table[i].p_vaddr + bias;
    if (table[i].p_type == PT_LOAD && (table[i].p_flags & PF_X) && here >= start && here - start < table[i].p_memsz) found++;
  }
  return found == wanted;
}

__attribute__((noinline, noipa)) int caller(int n) {
  int sum = covered(n);
  return sum * 7;
}

int main(int argc, char **argv) {
  (void)argv;
  int sum = 0;
  for (int i = 0; i < 3; i++) sum += caller(argc > 50 ? 0 : 1);
  printf("%d\n", sum);
  return 0;
}

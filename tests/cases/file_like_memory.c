//# about: a program that compares its own file with its memory: headers, segments and sections that nothing writes
//# kinds: gcc-pie gcc-nopie gcc-static gcc-static-pie gcc-so clang-pie aarch64-gcc-pie
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const int here = 5;
static int segments, different, sections, headers;
__attribute__((noinline, noipa)) static int is_here(void) {
  return __builtin_return_address(0) != 0;
}
static int look(struct dl_phdr_info *info, size_t size, void *data) {
  ElfW(Addr) base = info->dlpi_addr;
  int mine = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    if (p->p_type == PT_LOAD && (ElfW(Addr))&here - base - p->p_vaddr < p->p_memsz) mine = 1;
  }
  if (!mine) return 0;
  const char *name = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
  int file = open(name, O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status)) { printf("%s\n", name); return 1; }
  const char *bytes = mmap(0, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  const ElfW(Ehdr) *header = (const void *)bytes;
  headers = !memcmp(bytes + header->e_phoff, info->dlpi_phdr, header->e_phnum * sizeof(ElfW(Phdr))) && header->e_phnum == info->dlpi_phnum;
  ElfW(Addr) last = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    if (p->p_type != PT_LOAD) continue;
    if (p->p_vaddr < last) different += 100;
    last = p->p_vaddr;
    if (p->p_flags & PF_W) continue;
    segments++;
    different += memcmp(bytes + p->p_offset, (const char *)(base + p->p_vaddr), p->p_filesz) != 0;
  }
  const ElfW(Shdr) *section = (const void *)(bytes + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++) {
    if (!(section[i].sh_flags & SHF_ALLOC) || section[i].sh_flags & (SHF_WRITE | SHF_TLS)) continue;
    if (section[i].sh_type == SHT_NOBITS || section[i].sh_size == 0) continue;
    // Only what a segment that is not written holds: RELRO is written before.
    for (int k = 0; k < info->dlpi_phnum; k++) {
      const ElfW(Phdr) *p = &info->dlpi_phdr[k];
      if (p->p_type != PT_LOAD || p->p_flags & PF_W) continue;
      if (section[i].sh_addr < p->p_vaddr || section[i].sh_addr + section[i].sh_size > p->p_vaddr + p->p_filesz) continue;
      sections++;
      different += memcmp(bytes + section[i].sh_offset, (const char *)(base + section[i].sh_addr), section[i].sh_size) != 0;
    }
  }
  munmap((void *)bytes, status.st_size);
  close(file);
  return 1;
}
int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 50; i++) {
    different = 0;
    sum += dl_iterate_phdr(look, 0) + is_here();
  }
  printf("found=%d different=%d headers=%d segments=%d sections=%d\n", sum, different, headers, segments > 0, sections > 0);
  return different;
}

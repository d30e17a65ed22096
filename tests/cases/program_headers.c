//# about: a program that looks at itself: dl_iterate_phdr, its own text in memory, etext, a pointer to its end
//# not so: it looks at the main program
//# stdout: headers 1 text 1 self 1 order 1
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdio.h>

extern char etext, edata, end, __ehdr_start;
static int headers, covered, written;
int main(int argc, char **argv);

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
  if (headers++) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    ElfW(Addr) start = info->dlpi_addr + p->p_vaddr, address = (ElfW(Addr))&main;
    if (p->p_type == PT_LOAD && address >= start && address < start + p->p_memsz && (p->p_flags & PF_X)) covered++;
    if (p->p_type == PT_LOAD && (p->p_flags & PF_W) && (p->p_flags & PF_X)) written++;
  }
  return 0;
}

int main(int argc, char **argv) {
  dl_iterate_phdr(visit, 0);
  const unsigned char *header = (const unsigned char *)&__ehdr_start;
  printf("headers %d text %d self %d order %d\n", headers > 0, covered == 1 && !written, header[0] == 0x7f && header[1] == 'E', &etext < &edata && &edata <= &end);
  return 0;
}

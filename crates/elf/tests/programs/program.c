// Uses what a rewritten file could break: thread-local storage, IFUNC, function pointers, the program headers as the
// process sees them, notes found through them, dynamic symbols, start-up and shut-down code.
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

// A leaf without references: its bytes work at any address.
__attribute__((noinline, noclone, used)) int work(int x) {
    int sum = 1;
    for (int i = 0; i < x; i++)
        sum = sum * 31 + (i ^ x);
    return sum;
}

static int plus(int x) { return x + 1; }
static int (*resolve(void))(int) { return plus; }
int chosen(int x) __attribute__((ifunc("resolve")));

static __thread int tls_value = 7;
static __thread char tls_zero[100];
int (*volatile table[])(int) = {work, plus, chosen};

__attribute__((constructor)) static void before(void) { puts("constructor"); }
__attribute__((destructor)) static void after(void) { puts("destructor"); }

#ifdef OWN_NOTE
// A note that the program reads where it is.
__attribute__((section(".note.own"), aligned(4), used)) static const struct {
    ElfW(Nhdr) header;
    char name[4];
    int value[7];
} own_note = {{4, 28, 77}, "own", {1, 2, 3, 4, 5, 6, 7}};
#endif

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    int *found = data;
    if (info->dlpi_name[0]) // the program itself has no name
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && (ElfW(Addr))visit - info->dlpi_addr - p->p_vaddr < p->p_memsz)
            found[0]++;
        if (p->p_type == PT_NOTE) {
            const char *at = (const char *)(info->dlpi_addr + p->p_vaddr), *end = at + p->p_memsz;
            while (at < end) {
                const ElfW(Nhdr) *n = (const void *)at;
                const char *name = at + sizeof *n;
                size_t pad = p->p_align == 8 ? 7 : 3;
                const unsigned char *desc = (const void *)(at + ((sizeof *n + n->n_namesz + pad) & ~pad));
                if (n->n_type == NT_GNU_BUILD_ID && !strcmp(name, "GNU"))
                    for (unsigned k = 0; k < n->n_descsz; k++)
                        found[1] = found[1] * 31 + desc[k];
                at = (const char *)desc + ((n->n_descsz + pad) & ~pad);
            }
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    int found[2] = {0, 0};
#ifdef OWN_NOTE
    printf("%s %d\n", own_note.name, own_note.value[argc % 7]);
#endif
    dl_iterate_phdr(visit, found);
    printf("segments with this code: %d, build id: %x\n", found[0], found[1]);
    const ElfW(Phdr) *p = (const void *)getauxval(AT_PHDR);
    int loads = 0;
    for (unsigned long i = 0; i < getauxval(AT_PHNUM); i++)
        loads += p[i].p_type == PT_LOAD && p[i].p_vaddr <= p[i].p_vaddr + p[i].p_memsz;
    printf("%s\n", loads > 0 ? "program headers found" : "no program headers");
    for (int i = 0; i < 3; i++)
        printf("%d\n", table[i](argc + 10 * i));
    tls_value += work(3);
    memset(tls_zero, 'x', 50);
    printf("%d %zu %s\n", tls_value, strlen(tls_zero), strchr("a/b", '/'));
    char *heap = malloc(1 << 20);
    memset(heap, 1, 1 << 20);
    printf("%d\n", heap[12345]);
    free(heap);
    return work(5) & 63;
}

//# about: the program's own malloc runs long before its start-up code, called by the dynamic loader and by libraries' initialisers
//# not so: the host's libraries have their malloc already
//# not static: would be a second malloc
//# not static-pie: would be a second malloc
//# stdout: 1000 good
//# flags: -fno-builtin
//# count mine: 1000
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char room[64 << 20] __attribute__((aligned(16)));
static size_t used;

void *malloc(size_t size) {
  size_t at = __atomic_fetch_add(&used, (size + 31) & ~(size_t)15, __ATOMIC_RELAXED);
  if (at + size + 16 > sizeof room) return 0;
  *(size_t *)(room + at) = size;
  return room + at + 16;
}
void free(void *p) {}
void *calloc(size_t n, size_t size) {
  if (size && n > sizeof room / size) return 0;
  return malloc(n * size);
}
void *realloc(void *old, size_t size) {
  void *new = malloc(size);
  if (new && old) {
    size_t have = *(size_t *)((char *)old - 16);
    memcpy(new, old, have < size ? have : size);
  }
  return new;
}
void *memalign(size_t align, size_t size) {
  uintptr_t p = (uintptr_t)malloc(size + align);
  return p ? (void *)((p + align - 1) & ~(align - 1)) : 0;
}
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void **p, size_t align, size_t size) { return (*p = memalign(align, size)) ? 0 : ENOMEM; }

__attribute__((noinline, noipa)) static int mine(int i) { return malloc(i) != 0; }

int main(int argc, char **argv) {
  int n = 0;
  for (int i = 0; i < 1000; i++) n += mine(i);
  printf("%d %s\n", n, used > 1000 * 16 ? "good" : "bad");
  return 0;
}

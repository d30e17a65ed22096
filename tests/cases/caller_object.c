//# about: what the loader says of code by its address: the object that holds it, its unwind table, and what comes next after its object
//# kinds: gcc-pie gcc-so clang-pie clang-nopie aarch64-gcc-so
//# flags: -fPIC
//# link: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char data = 1;
static int wrong;
static void *own_base;
__attribute__((noinline, noipa)) static void *where(void) { return __builtin_return_address(0); }
__attribute__((noinline, noipa)) static int looks(int i) {
  Dl_info info;
  struct dl_find_object object;
  void *here = where();
  wrong += !dladdr(here, &info) || info.dli_fbase != own_base;
  if (_dl_find_object(here, &object)) { wrong++; return i; }
  wrong += (char *)here < (char *)object.dlfo_map_start || (char *)here >= (char *)object.dlfo_map_end;
  wrong += (char *)&data < (char *)object.dlfo_map_start || (char *)&data >= (char *)object.dlfo_map_end;
  wrong += object.dlfo_eh_frame == 0 || *(unsigned char *)object.dlfo_eh_frame != 1;
  return i * 3;
}
static size_t (*next)(const char *);
// Found before the one of the C library.
__attribute__((noinline, noipa)) size_t strlen_of_ours(const char *text) { return next ? next(text) + 1 : 0; }
__attribute__((noinline, noipa)) static void *finds(const char *name) { return dlsym(RTLD_NEXT, name); }
int main(int argc, char **argv) {
  Dl_info info;
  if (!dladdr(&data, &info)) return 2;
  own_base = info.dli_fbase;
  int sum = 0;
  size_t length = 0;
  for (int i = 0; i < 300; i++) {
    sum += looks(i);
    next = finds("strlen");
    length += strlen_of_ours("abc");
    wrong += finds("strlen_of_ours") == (void *)strlen_of_ours;
  }
  printf("sum=%d length=%zu wrong=%d\n", sum, length, wrong);
  return wrong;
}

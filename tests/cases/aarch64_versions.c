//# about: AArch64: a library that exports two versions of one function, and hides the rest
//# kinds: aarch64-gcc-so aarch64-clang-so
//# link: -Wl,--version-script={cases}/support/versions.map
//# stdout: 2 1
//# moved: case_main
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

__attribute__((noinline, noipa, used)) int old_answer(void) { return 1; }
__attribute__((noinline, noipa, used)) int new_answer(void) { return 2; }
__asm__(".symver old_answer, answer@CASE_1\n.symver new_answer, answer@@CASE_2");

int main(int argc, char **argv) {
  void *self = dlopen("libcase.so", RTLD_NOW | RTLD_NOLOAD);
  if (!self) { printf("%s\n", dlerror()); return 1; }
  int (*current)(void) = (int (*)(void))dlsym(self, "answer");
  int (*old)(void) = (int (*)(void))dlvsym(self, "answer", "CASE_1");
  if (!current || !old) { printf("not found %d %d\n", !!current, !!old); return 1; }
  printf("%d %d\n", current(), old());
  return 0;
}

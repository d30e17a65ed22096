//# about: a library that exports two versions of one function, and hides the rest
//# kinds: so
//# link: -Wl,--version-script={cases}/support/versions.map
//# not clang: the assembler wants both versions in one object without the default's plain name
//# not aarch64: dlvsym does not find the library's versions there, plain or not
//# stdout: 2 1
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

__attribute__((noinline, noipa, used)) int old_answer(void) { return 1; }
__attribute__((noinline, noipa, used)) int new_answer(void) { return 2; }
__asm__(".symver old_answer, answer@CASE_1\n.symver new_answer, answer@@CASE_2");

int main(int argc, char **argv) {
  int (*current)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "answer");
  int (*old)(void) = (int (*)(void))dlvsym(RTLD_DEFAULT, "answer", "CASE_1");
  if (!current || !old) { printf("not found %d %d\n", !!current, !!old); return 1; }
  printf("%d %d\n", current(), old());
  return 0;
}

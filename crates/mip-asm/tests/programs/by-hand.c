#include <stdio.h>
int __llvm_dump_mip_profile_with_filename(const char *);
void __llvm_mip_profile_reset(void);
__attribute__((noinline)) int before(int n) { return n + 1; }
__attribute__((noinline)) int after(int n) { return n + 2; }
int main(int argc, char **argv) {
  int n = before(argc);
  __llvm_mip_profile_reset();
  n += after(n);
  n += after(n);
  return argc < 2 || n < 0 || __llvm_dump_mip_profile_with_filename(argv[1]);
}

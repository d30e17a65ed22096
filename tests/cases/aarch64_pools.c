//# about: AArch64: hand-written assembly: constants and addresses of functions in literal pools, strings and tables between functions, code behind data
//# kinds: aarch64-gcc-nopie aarch64-gcc-static aarch64-clang-nopie aarch64-clang-static
//# with: aarch64_pools_part.S
//# stdout: 123456789abcdef0 42 1042 two 3 13 400
//# moved: pool_target
#include <stdio.h>

long pool_constant(void);
long pool_call(long n);
const char *pool_string(long i);
long pool_table(long i);
long (*pool_pointer(void))(long);
long pool_behind(long n);
__attribute__((noinline, noipa)) long pool_target(long n) { return n + 42; }

int main(int argc, char **argv) {
    long sum = 0;
    for (long i = 0; i < 100; i++) sum += pool_table(i & 3) + pool_behind(i) + (pool_call(i) == i + 42);
    printf("%lx %ld %ld %s %ld %ld %ld\n", pool_constant(), pool_call(0), pool_pointer()(1000), pool_string(2), pool_table(2), pool_behind(12), sum - 5000);
    return pool_pointer() != pool_target;
}

//# about: AArch64: lld loses the symbol of relocations against unwind tables, by which start-up code of static programs registers theirs
//# kinds: aarch64-gcc-static
//# flags: -fuse-ld=lld -B/usr/lib/llvm-19/bin
//# build exit: -DEND=_exit
//# needs: ld.lld-19
//# stdout: 27100 100
//# count _Z7throweri: 300
#include <cstdio>
#include <stdexcept>
#include <unistd.h>

// So much text that one instruction does not reach the new table from the code that takes it back at the end; and that code may not even run.
asm(".pushsection .text.room, \"ax\", %progbits\n .zero 0x180000\n .popsection");
#ifndef END
#define END
#endif

struct Guard { long &n; ~Guard() { n++; } };
static long cleaned;

__attribute__((noinline)) long thrower(int i) {
    if (i % 3 == 0) {
        Guard g{cleaned};
        throw std::runtime_error("three");
    }
    return i;
}

int main(int argc, char **argv) {
    long sum = 0;
    for (int i = 0; i < 300; i++) {
        try { sum += thrower(i); } catch (const std::exception &e) { sum -= 30; sum += e.what()[0] == 't'; }
    }
    std::printf("%ld %ld\n", sum, cleaned);
    std::fflush(stdout);
    END(0);
}

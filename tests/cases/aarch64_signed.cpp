//# about: AArch64: return addresses that are signed, exceptions through such frames, landing pads of indirect branches, split code
//# kinds: aarch64-gcc-pie aarch64-gcc-static aarch64-gcc-so aarch64-clang-pie
//# flags: -mbranch-protection=standard
//# build leaf: -mbranch-protection=pac-ret+leaf
//# build pac: -mbranch-protection=pac-ret
//# build bti: -mbranch-protection=bti
//# build v83: -march=armv8.3-a -mbranch-protection=standard
//# count _Z7throweri: 300
//# count _Z4stepiPFliE: 300
//# stdout: 33300 300
#include <cstdio>
#include <stdexcept>
#include <string>

struct Guard {
    long &n;
    explicit Guard(long &n) : n(n) {}
    ~Guard() { n++; }
};

static long cleaned;

__attribute__((noinline)) long thrower(int i) {
    Guard g(cleaned);
    if (i % 3 == 0) throw std::runtime_error(std::to_string(i));
    if (i % 101 == 100) throw i;
    return i;
}

__attribute__((noinline)) long step(int i, long (*f)(int)) {
    try {
        return f(i);
    } catch (const std::exception &e) {
        return std::stol(e.what());
    } catch (int n) {
        return n;
    }
}

__attribute__((noinline)) long choose(unsigned k, long x) {
    switch (k % 23) {
    case 0: return x + 1; case 1: return x ^ 3; case 2: return std::printf("") + x; case 3: return x << 1; case 4: return -x;
    case 5: return x + 7; case 6: return x ^ 9; case 7: return x * 3; case 8: return x - 5; case 9: return ~x; case 10: return x / 3;
    case 11: return x + 2; case 12: return x ^ 1; case 13: return x * 5; case 14: return x - 1; case 15: return x | 1;
    case 16: return x & ~1l; case 17: return x % 1000; case 18: return x + 100; default: return x;
    }
}

int main(int argc, char **argv) {
    long sum = 0, mixed = argc;
    for (int i = 0; i < 300; i++) sum += step(i, thrower);
    for (int i = 0; i < 500; i++) mixed = choose(i, mixed) & 0xffffff;
    // All were added: 0 + 1 + … + 299.
    std::printf("%ld %ld\n", sum - 11550 + (mixed < 0), cleaned);
    return 0;
}

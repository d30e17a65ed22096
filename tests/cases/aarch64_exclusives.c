//# about: AArch64: loops of exclusive loads and stores, which counters must not stand in, and atomics of every kind
//# kinds: aarch64-gcc-pie aarch64-gcc-static aarch64-clang-nopie
//# flags: -pthread
//# build lse: -march=armv8.1-a
//# build inline: -mno-outline-atomics
//# count bump: 4000
//# stdout: 4000 4000 4000 1000
#include <pthread.h>
#include <stdio.h>

static long a, b, c, highest;

// A branch inside of the loop, and one out of it.
__attribute__((noinline, noipa)) void bump(long *p, long n) {
    __asm__ volatile("1: ldaxr x9, [%0]\n cmp x9, #0\n b.lt 2f\n add x9, x9, #1\n stlxr w10, x9, [%0]\n cbnz w10, 1b\n b 3f\n"
                     "2: clrex\n"
                     "3:\n" : : "r"(p) : "x9", "x10", "cc", "memory");
    long seen = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    while (seen < n && !__atomic_compare_exchange_n(&highest, &seen, n, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
}

static void *work(void *unused) {
    for (int i = 1; i <= 1000; i++) {
        bump(&a, i);
        __atomic_fetch_add(&b, 1, __ATOMIC_RELAXED);
        long old = __atomic_load_n(&c, __ATOMIC_ACQUIRE);
        while (!__atomic_compare_exchange_n(&c, &old, old + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {}
    }
    return unused;
}

int main(int argc, char **argv) {
    // One after the other: counters are not atomic unless that is asked for.
    for (int i = 0; i < 4; i++) {
        pthread_t t;
        pthread_create(&t, 0, work, 0);
        pthread_join(t, 0);
    }
    printf("%ld %ld %ld %ld\n", a, b, c, highest);
    return 0;
}

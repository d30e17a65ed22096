//# about: without kept relocations: a switch compares a number in memory and loads it again, while another thread writes it: the index is compared once more
//# not aarch64: without kept relocations only files for x86-64 are rewritten
//# link: -pthread
//# stdout: in range
#include <pthread.h>
#include <stdio.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

static volatile unsigned op;
static volatile int done;

static void *writer(void *unused) {
    for (int i = 0; i < 200000; i++) op = i % 7;
    done = 1;
    return unused;
}

__attribute__((noinline)) int step(volatile unsigned *at, int x) {
    if (*at > 6) return -1;
    /* Again: always below 7 here, which the compiler is told and nothing compares. */
    switch (*at) {
    case 0: return x + 1;
    case 1: return x ^ 3;
    case 2: return x - 1;
    case 3: return x | 1;
    case 4: return x & 0xffff;
    case 5: return x + 5;
    case 6: return x + 2;
    default: __builtin_unreachable();
    }
}

__attribute__((noinline)) int drive(void) {
    pthread_t thread;
    pthread_create(&thread, 0, writer, 0);
    int x = 0;
    while (!done) x = step(&op, x) & 0xfffff;
    pthread_join(thread, 0);
    printf(x >= 0 ? "in range\n" : "out of range\n");
    return 0;
}

int main(int argc, char **argv) {
    return drive();
}

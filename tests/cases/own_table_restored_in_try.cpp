//# about: without kept relocations: what reads a register that a jump through a table leaves with another value is in a function with a call-site table, which LLVM lets say something of every instruction
//# own tables: _Z5guardjPi
//# not aarch64: the code is x86-64's
//# stdout: 10 1 thrown 2 13 | 1
#include <cstdio>

__attribute__((noinline, noipa)) int deeper(int x) {
    if (x > 1)
        throw x;
    return x + 10;
}

struct Counts {
    int *ends;
    ~Counts() { ++*ends; }
};

/* The target's address is read at `one`. */
__attribute__((noinline, noipa)) int guard(unsigned op, int *ends) {
    int low;
    if (op > 3) {
        Counts counts{ends};
        return deeper(2);
    }
    asm goto("lea 9f(%%rip),%%rcx\n"
             "movslq (%%rcx,%q0,4),%%rax\n"
             "add %%rcx,%%rax\n"
             "jmp *%%rax\n"
             ".pushsection .rodata\n.p2align 2\n9: .long %l1-9b,%l2-9b,%l3-9b,%l4-9b\n.popsection"
             :
             : "r"((unsigned long)op)
             : "rax", "rcx", "cc", "memory"
             : zero, one, two, three);
    __builtin_unreachable();
zero: {
    Counts counts{ends};
    return deeper(0);
}
one:
    /* Calls here end no frame's scope. The register's own distance from the table, less what the table says. */
    asm volatile("sub %%rcx,%%rax\nmovslq 4(%%rcx),%%rcx\ncmp %%rcx,%%rax\nsete %%al\nmovzbl %%al,%0"
                 : "=r"(low)
                 :
                 : "rax", "rcx", "cc");
    return deeper(low) - 10;
two: {
    Counts counts{ends};
    return deeper(2);
}
three: {
    Counts counts{ends};
    return deeper(1) + 2;
}
}

int main(int argc, char **) {
    int ends = 0;
    for (int i = 0; i < 4; i++) {
        try {
            std::printf("%d ", guard(i * argc, &ends));
        } catch (int x) {
            std::printf("thrown %d ", x);
        }
    }
    std::printf("| %d\n", ends == 3);
    return 0;
}

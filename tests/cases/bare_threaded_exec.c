//# about: without kept relocations: addresses of labels are put into memory as code of an interpreter, and jumped to from there
//# in old code: run
//# not aarch64: without kept relocations only files for x86-64 are rewritten
//# falls back: jumps by addresses in memory lead to old labels where no relocations were kept
//# stdout: 4950 120
#include <stdio.h>
#include <stdlib.h>

/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");

enum { PUSH, ADD, MUL, DUP, LOOP, END };

__attribute__((noinline)) long run(const int *program, int length, long n) {
    static const void *const labels[] = {&&push, &&add, &&mul, &&dup, &&loop, &&end};
    const void **code = malloc((length + 1) * sizeof *code);
    for (int i = 0; i < length; i++) code[i] = labels[program[i]];
    const void **at = code;
    long stack[64], top = 0, count = n, result;
    stack[0] = n;
    goto **at++;
push: stack[++top] = count; goto **at++;
add: top--; stack[top] += stack[top + 1]; goto **at++;
mul: top--; stack[top] *= stack[top + 1]; goto **at++;
dup: top++; stack[top] = stack[top - 1]; goto **at++;
loop: if (--count > 0) at = code; goto **at++;
end: result = stack[0]; free(code); return result;
}

/* Away from there, other than main. */
__attribute__((noinline)) int drive(int argc) {
    const int sum[] = {LOOP, PUSH, ADD, LOOP, END};
    const int sums[] = {PUSH, ADD, LOOP, END};
    (void)sum;
    long a = run(sums, 4, 99) - 99;
    const int product[] = {PUSH, MUL, LOOP, END};
    long b = run(product, 4, 5) / 5;
    printf("%ld %ld\n", a, b);
    return 0;
}

int main(int argc, char **argv) {
    return drive(argc);
}

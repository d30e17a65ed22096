//# about: an interpreter stores the addresses of labels in the code that it runs, and jumps to what it reads from there; some labels are nearer to each other than a jump is long
//# in old code: run
//# stdout: 1000 3000 23
#include <stdio.h>
#include <stdlib.h>

/* A word of code is a label, or an operand. */
typedef union { const void *label; long number; } Word;

/* Without code it gives its labels; with it, what the code leaves. */
__attribute__((noinline)) long run(Word *code, const void *const **labels) {
    static const void *const all[] = {&&load, &&add, &&loop, &&twice, &&near, &&nearer, &&end};
    long a = 0, count = 0;
    if (!code) {
        *labels = all;
        return sizeof all / sizeof *all;
    }
#define NEXT goto *(code++)->label
    Word *start = code;
    NEXT;
load:
    count = (code++)->number;
    NEXT;
add:
    a += (code++)->number;
    NEXT;
loop:
    if (--count > 0)
        code = start + 2;
    NEXT;
twice:
    a *= 2;
    NEXT;
near:
    a++;
nearer:
    a++;
    NEXT;
end:
    return a;
}

enum { LOAD, ADD, LOOP, TWICE, NEAR, NEARER, END };

/* Operands follow what has some. */
static long interpret(const int *program, int length) {
    const void *const *labels;
    long n = run(0, &labels);
    Word *code = malloc(sizeof *code * length);
    for (int i = 0; i < length; i++) {
        int op = program[i];
        if (op < 0 || op >= n)
            abort();
        code[i].label = labels[op];
        if (op == LOAD || op == ADD) {
            code[i + 1].number = program[i + 1];
            i++;
        }
    }
    long result = run(code, 0);
    free(code);
    return result;
}

int main(int argc, char **argv) {
    int one[] = {LOAD, 1000 * argc, ADD, 1, LOOP, END};
    int two[] = {LOAD, 1000, NEAR, NEARER, LOOP, END};
    int three[] = {LOAD, 3, ADD, 1, TWICE, ADD, 1, LOOP, NEAR, END};
    printf("%ld %ld %ld\n", interpret(one, 6), interpret(two, 6), interpret(three, 10));
    return 0;
}

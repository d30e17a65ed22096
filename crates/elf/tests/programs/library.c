// A library with symbol versions: two of one function.
__attribute__((noinline, noclone, used)) int work(int x) {
    int sum = 1;
    for (int i = 0; i < x; i++)
        sum = sum * 31 + (i ^ x);
    return sum;
}

int old_twice(int x) { return 2 * work(x) + 1; }
int new_twice(int x) { return 2 * work(x); }
__asm__(".symver old_twice, twice@LIB_1");
__asm__(".symver new_twice, twice@@LIB_2");
static __thread int calls;
int count(void) { return ++calls; }

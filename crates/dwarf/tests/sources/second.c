// A second unit: shared tables and pools, functions of its own sections.
int helper(int n);
static int state;
int helper(int n) {
    for (int i = 0; i < n; i++) {
        if (i % 3 == 0) state += i;
        else state -= n;
    }
    return state;
}

static int same(int x) { return x * 3; }
__attribute__((visibility("hidden"))) int hidden(int x) { return same(x) + 1; }
int from_library(int x) { return hidden(x); }
int unused_in_library(int x) { return x; }

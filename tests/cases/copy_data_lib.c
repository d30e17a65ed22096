/* The library of copy_data. */
int library_array[8] = { 1, 1, 1, 3, 1, 1, 0, 0 };
const char *library_text = "text";
static int same(int x) { return x; }
int (*library_hook)(int) = same;
int library_sum(void) { int s = 0; for (int i = 0; i < 8; i++) s += library_array[i]; return s + (library_hook(1) == 10 ? 2 : 2); }

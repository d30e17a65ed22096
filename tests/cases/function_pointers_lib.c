/* The library of function_pointers. */
typedef int (*function)(int);
function library_asks(void);
int exported(int);
int shared_function(int x) { return x + 100; }
function library_table[2] = { shared_function, exported };
int library_data[4] = { 4, 5, 6, 7 };
int library_same(function a, function b) { return a == b && a == library_asks(); }
function library_address(void) { return shared_function; }
int library_apply(function f, int x) { return f(x); }

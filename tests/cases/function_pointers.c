//# about: a function has one address, seen from the program, from a library, from tables and through copies of data
//# lib: function_pointers_lib.c
//# not static: needs a shared library
//# not static-pie: needs a shared library
//# stdout: 1 1 1 1 1 1
//# stdout: 42 12 5
#include <stdio.h>

typedef int (*function)(int);
int shared_function(int);
int library_same(function a, function b);
function library_address(void);
int library_apply(function f, int x);
extern function library_table[2];
extern int library_data[4];

int exported(int x) { return x * 2; }
__attribute__((noinline, noipa)) static int local(int x) { return x + 7; }
static int middle(int x) { return x - 1; }
function table[] = { exported, local, shared_function, middle };
static const struct { int tag; function f; } constants[] = { { 1, local }, { 2, exported }, { 3, middle } };
function library_asks(void) { return exported; }

int main(int argc, char **argv) {
  printf("%d %d %d %d %d %d\n", shared_function == library_address(), table[2] == library_table[0], table[0] == constants[1].f,
         table[1] == constants[0].f, library_same(exported, table[0]), library_table[1] == exported);
  printf("%d %d %d\n", library_apply(exported, 21), library_apply(table[1], library_data[1]), table[3](library_data[2]));
  return 0;
}

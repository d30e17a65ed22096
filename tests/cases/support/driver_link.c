/* The program around a case that was built as a shared library: it is linked against it. */
#include "case_main.h"
int main(int argc, char **argv) { return case_main(argc, argv); }

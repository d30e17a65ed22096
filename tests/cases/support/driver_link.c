/* The program around a case that was built as a shared library: it is linked against it. */
int case_main(int argc, char **argv);
int main(int argc, char **argv) { return case_main(argc, argv); }

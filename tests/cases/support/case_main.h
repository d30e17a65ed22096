/* Included first when a case is built as a shared library, where main is renamed to case_main. */
#ifdef __cplusplus
extern "C"
#endif
int case_main(int argc, char **argv);

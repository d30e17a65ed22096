/* The library of weak. */
int in_library(void) { return 3; }

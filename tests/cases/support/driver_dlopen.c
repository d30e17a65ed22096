/* The program around a case that was built as a shared library: it is loaded, run, unloaded, and all of that again. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  char path[4096];
  size_t length = strlen(argv[0]);
  while (length && argv[0][length - 1] != '/') length--;
  snprintf(path, sizeof path, "%.*slibcase.so", (int)length, argv[0]);
  int code = 0;
  for (int round = 0; round < 2; round++) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) { printf("dlopen failed\n"); fprintf(stderr, "%s\n", dlerror()); return 90; }
    int (*case_main)(int, char **) = (int (*)(int, char **))dlsym(library, "case_main");
    if (!case_main) { printf("dlsym failed\n"); return 91; }
    code = case_main(argc, argv);
    if (dlclose(library)) { printf("dlclose failed\n"); return 92; }
  }
  return code;
}

// Uses the library linked, and once more through dlopen.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int twice(int);
int count(void);
int work(int);

int main(int argc, char **argv) {
    printf("%d %d %d\n", twice(5), count(), work(4));
    void *lib = dlopen("libtwice.so", RTLD_NOW);
    int (*first)(int) = (int (*)(int))dlvsym(lib, "twice", "LIB_1");
    int (*second)(int) = (int (*)(int))dlvsym(lib, "twice", "LIB_2");
    Dl_info info;
    int named = dladdr((void *)second, &info) && info.dli_sname;
    printf("%d %d %s\n", first(5), second(5), named ? info.dli_sname : "?");
    printf("%s\n", dlsym(lib, "old_twice") ? "exported" : "hidden");
    return 0;
}

//# about: an exception class and a thrower in another library, caught here; a callback here throws through it
//# lib: eh_library_lib.cpp
//# not static: needs a shared library
//# not static-pie: needs a shared library
//# count callback: 200
#include <cstdio>
#include "support/eh_library.h"

extern "C" __attribute__((noinline, noipa)) int callback(int x) {
  Counted counted;
  if (x % 3 == 0) throw LibraryError(x);
  if (x % 3 == 1) return library_throw(x);
  return x;
}

int main(int argc, char **argv) {
  int by_type = 0, by_base = 0, plain = 0;
  for (int i = 0; i < 200; i++) {
    try {
      plain += library_call(callback, i);
    } catch (const LibraryError &e) {
      by_type += e.code();
    } catch (const std::exception &) {
      by_base++;
    }
  }
  printf("%d %d %d live=%d\n", by_type, by_base, plain, Counted::live);
  return Counted::live;
}

/* The library of eh_library. */
#include "support/eh_library.h"

int Counted::live;
Counted::Counted() { ++live; }
Counted::~Counted() { --live; }
LibraryError::LibraryError(int c) : value(c) {}
LibraryError::~LibraryError() = default;
int LibraryError::code() const { return value; }
const char *LibraryError::what() const noexcept { return "library"; }

int library_throw(int x) {
  Counted counted;
  if (x & 1) throw LibraryError(x * 2);
  throw std::exception();
}
int library_call(int (*callback)(int), int x) {
  Counted counted;
  return callback(x) + 1;
}

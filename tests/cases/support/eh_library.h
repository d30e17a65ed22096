#pragma once
#include <exception>

struct Counted {
  static int live;
  Counted();
  ~Counted();
};
class LibraryError : public std::exception {
  int value;
 public:
  explicit LibraryError(int c);
  ~LibraryError() override;
  virtual int code() const;
  const char *what() const noexcept override;
};
int library_throw(int x);
int library_call(int (*callback)(int), int x);

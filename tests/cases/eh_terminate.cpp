//# about: an exception that meets noexcept ends in the terminate handler, with the frames above still there
//# exit: 3
//# stdout: guard
//# stdout: terminate: broken promise
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <unistd.h>

struct Loud { ~Loud() { printf("guard\n"); } };

__attribute__((noinline, noipa)) static void thrower(int x) {
  if (x > 3) throw std::runtime_error("broken promise");
}
__attribute__((noinline, noipa)) static void promise(int x) noexcept {
  for (int i = 0; i <= x; i++) {
    if (i == 4) { Loud loud; printf(""); }
    thrower(i);
  }
}
static void handler() {
  try {
    if (auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::exception &e) {
    printf("terminate: %s\n", e.what());
  }
  fflush(stdout);
  _exit(3);
}

int main(int argc, char **argv) {
  std::set_terminate(handler);
  promise(2);
  promise(9);
  return 0;
}

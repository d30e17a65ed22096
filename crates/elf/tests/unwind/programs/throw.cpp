// Exceptions in all the ways that tables have to tell: catches by type and by reference, catch-all, cleanups, rethrow,
// exceptions in cleanups, dynamic exception specifications, noexcept; frames with pushes, realignment, alloca and
// arguments on the stack. At each stop the frames are printed, with the distance between their frame addresses.
#include <alloca.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <unwind.h>
#include <vector>

__attribute__((section("spare_tables"), used)) extern const unsigned char spare_room[SPARE] = {1};

static char *main_address;
static unsigned long first_cfa, main_frame;
static int frames;

extern "C" int main(int, char **);

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *) {
  unsigned long ip = _Unwind_GetIP(context), cfa = _Unwind_GetCFA(context);
  if (frames++ == 0) first_cfa = cfa;
  long distance = (long)(ip - (unsigned long)main_address);
  // Start-up code is the end of the stack, whether its table says so or it has none.
  if (ip == 0) return _URC_END_OF_STACK;
  // Shared libraries and the frames from main on lie elsewhere in every run.
  if (distance > -(1L << 24) && distance < (1L << 24)) printf("  %ld +%lu\n", distance, cfa < main_frame ? cfa - first_cfa : 0);
  return frames > 40 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

extern "C" __attribute__((noinline)) void look_here(const char *where) {
  printf("at %s\n", where);
  frames = 0;
  _Unwind_Backtrace(frame, nullptr);
}

struct Guard {
  const char *name;
  explicit Guard(const char *n) : name(n) {}
  ~Guard() { printf("~%s\n", name); look_here(name); }
};

struct Base { virtual ~Base() {} int value = 1; };
struct Left : virtual Base {};
struct Right : virtual Base {};
struct Both : Left, Right {};

__attribute__((noinline)) static int thrower(int what) {
  Guard g("thrower");
  switch (what) {
  case 0: throw 42;
  case 1: throw std::runtime_error("one");
  case 2: throw Both();
  case 3: throw "text";
  case 4: { std::vector<int> v; return v.at(7); }
  case 5: throw std::string(100, 's');
  case 6: throw nullptr;
  case 7: return (int)strlen(std::to_string(what).c_str());
  }
  return what * 3;
}

__attribute__((noinline)) static int many(int a, int b, int c, int d, int e, int f, int g, int h, int i, int what) {
  Guard guard("many");
  int sum = 0;
  for (int k = 0; k < 3; k++) sum += thrower(what + (k == 2 ? 0 : 10)) * (a + b * c - d + e * f - g + h * i);
  return sum;
}

__attribute__((noinline)) static int wide(int what) {
  alignas(64) volatile char room[256];
  room[what & 255] = 1;
  Guard g("wide");
  char *more = (char *)alloca(what * 16 + 1);
  memset(more, what, what * 16 + 1);
  return many(1, 2, 3, 4, 5, 6, 7, 8, more[0], what) + room[what & 255];
}

static int checked(int what) throw(int, std::exception);
__attribute__((noinline)) static int checked(int what) throw(int, std::exception) {
  Guard g("checked");
  return wide(what);
}

__attribute__((noinline, cold)) static void rarely(int what) {
  Guard g("rarely");
  if (what == 1) throw std::logic_error("from the cold");
}

__attribute__((noinline)) static int early(int what, int depth) {
  if (what > 90) return what;
  std::unique_ptr<int[]> a(new int[depth + 1]);
  std::string s(depth, 'x');
  if (depth > 0) {
    try {
      return early(what, depth - 1) + (int)s.size() + a[0] * 0;
    } catch (std::exception &) {
      printf("passing on at %d\n", depth);
      if (depth == 2) rarely(what);
      throw;
    }
  }
  return what >= 100 ? 0 : checked(what);
}

__attribute__((noinline)) static int top(int what) {
  try {
    try {
      return early(what, 4);
    } catch (int n) {
      printf("int %d\n", n);
      return n;
    } catch (std::logic_error &e) {
      printf("logic_error %s\n", e.what());
      throw;
    }
  } catch (Right &r) {
    printf("right %d\n", r.value);
  } catch (std::exception &e) {
    printf("exception %s\n", e.what());
  } catch (const char *t) {
    printf("text %s\n", t);
  } catch (...) {
    Guard g("catch-all");
    printf("something\n");
    try { throw; } catch (std::string &s) { printf("string of %zu\n", s.size()); } catch (...) { printf("else\n"); }
  }
  return -1;
}

__attribute__((noinline)) static int must_not(int what) noexcept {
  int r = 0;
  for (int i = 0; i < 2; i++) r += early(what + i * 0, 1);
  return r;
}

[[noreturn]] static void instead() {
  printf("unexpected\n");
  look_here("unexpected");
  throw std::runtime_error("instead");
}

[[noreturn]] static void terminated() {
  printf("terminated\n");
  fflush(stdout);
  _Exit(7);
}

__attribute__((noinline)) static void go() {
  for (int what = 0; what < 9; what++) {
    printf("round %d\n", what);
    printf("= %d\n", top(what));
  }
}

int main(int, char **) {
  main_address = (char *)main;
  main_frame = (unsigned long)__builtin_frame_address(0);
#if __cplusplus < 201703L
  std::set_unexpected(instead);
#endif
  std::set_terminate(terminated);
  // How much a realigned frame takes depends on where it begins: let it be the same in every run.
  volatile char *room = (volatile char *)alloca(64 + (main_frame & 63));
  room[0] = 1;
  go();
  printf("end of main\n");
  // Ends in `terminated`.
  printf("= %d\n", must_not(room[0]));
  return 0;
}

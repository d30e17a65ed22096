//# about: exceptions out of functions that are called through pointers and virtual tables, or jumped to, from frames with cleanups
//# moved: call tail by_table
//# stdout: 190507 800
#include <cstdio>

#define APART __attribute__((noinline, noipa))

struct Guard {
  int *gone;
  ~Guard() { ++*gone; }
};

// More targets than a recorder has entries for.
APART static int odd(int k) {
  if (k % 2) throw k;
  return 1;
}
APART static int third(int k) {
  if (k % 3 == 0) throw (long)k;
  return 2;
}
APART static int three(int) { return 3; }
APART static int half(int) { throw 1.5; }
APART static int five(int) { return 5; }
static int (*volatile targets[])(int) = {odd, third, three, half, five};

struct Base {
  virtual int fails(int k) { throw k + 1; }
  virtual ~Base() {}
};
struct Derived : Base {
  int fails(int k) override { throw (long)k + 2; }
};
static Base *volatile objects[2] = {new Base, new Derived};

extern "C" APART int call(int k, int *gone) {
  Guard guard{gone};
  return targets[k % 5](k);
}
extern "C" APART int tail(int k) { return targets[k % 5](k); }
extern "C" APART int by_table(int k, int *gone) {
  Guard guard{gone};
  return objects[k & 1]->fails(k);
}

int main(int, char **) {
  long sum = 0;
  int gone = 0;
  for (int k = 0; k < 400; k++) {
    try {
      sum += call(k, &gone);
    } catch (int x) {
      sum += x;
    } catch (long x) {
      sum += 2 * x;
    } catch (...) {
      sum += 7;
    }
    try {
      sum += tail(k);
    } catch (int x) {
      sum += x;
    } catch (...) {
      sum += 3;
    }
    try {
      sum += by_table(k, &gone);
    } catch (int x) {
      sum += x;
    } catch (long x) {
      sum += x * 3;
    }
  }
  std::printf("%ld %d\n", sum, gone);
  return 0;
}

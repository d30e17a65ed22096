//# about: calls that pass arguments on the stack and throw: what the caller pushed is taken off before its landing pad, and nothing else
//# build O2: -O2
//# build O1: -O1 -fomit-frame-pointer
//# build noncall: -O2 -fnon-call-exceptions
//# count _Z4workiPi: 2000
#include <cstdio>
#include <stdexcept>

// Eight arguments in registers at most, the rest is pushed.
__attribute__((noinline, noipa)) int eight(int a, int b, int c, int d, int e, int f, int g, int h) {
  if ((a + h) % 5 == 0) throw a + b + c + d + e + f + g + h;
  return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h;
}

__attribute__((noinline, noipa)) int eleven(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k) {
  if ((a + k) % 7 == 3) throw std::runtime_error("eleven");
  return a + b - c + d - e + f - g + h - i + j - k;
}

struct Guard {
  int *n;
  ~Guard() { ++*n; }
};

__attribute__((noinline, noipa)) int work(int x, int *ended) {
  int total = 0;
  Guard outer{ended};
  for (int i = 0; i < 3; i++) {
    try {
      Guard inner{ended};
      total += eight(x, i, 3, 4, 5, 6, 7, x + i);
      if (__builtin_expect(x % 301 == 300, 0)) total += eleven(x, 1, 2, 3, 4, 5, 6, 7, 8, 9, i);
      total += eight(i, x, 1, 2, x, 6, 7, 1) + eleven(x, i, 2, 3, 4, x, 6, 7, 8, 9, x);
    } catch (int n) {
      total += n;
      if (n % 11 == 0) total += eight(1, 2, 3, 4, 5, 6, 7, 7);
    } catch (const std::exception &) {
      total -= 1;
    }
  }
  return total;
}

int main(int, char **) {
  unsigned long sum = 0;
  int ended = 0;
  for (int x = 0; x < 2000; x++) sum = sum * 31 + (unsigned)work(x, &ended);
  std::printf("%lu, %d ended\n", sum, ended);
  return 0;
}

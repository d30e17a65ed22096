//# about: an entry of a table of absolute addresses that leads to the first byte of a part that the compiler split off: a label of the function, not another function
//# kinds: gcc-nopie gcc-static gcc-pie clang-nopie
//# count deep: 200
//# moved: deep
#include <cstdio>
unsigned long H = 5;
extern "C" __attribute__((noinline)) void mix(unsigned long v) { H = (H ^ v) * 1099511628211ul; }
struct G {
  int i;
  G(int i) : i(i) {}
  ~G() { mix(i); }
};
struct X {
  int c;
  __attribute__((noinline)) X(int c) : c(c) {}
};
struct Y : virtual X {
  Y(int c) : X(c + 100) {}
};
extern "C" __attribute__((noinline)) int deep(int d, int w) {
  G g(d);
  if (d == 0) {
    switch (w % 6) {
    case 0: throw X(w);
    case 1: throw w;
    case 2: throw 2.5;
    case 3: throw Y(w);
    case 4: return w;
    default: throw &H;
    }
  }
  return deep(d - 1, w) + 1;
}
int main(int argc, char **argv) {
  for (int w = 0; w < 40; w++) try {
      mix(deep(4, w));
    } catch (const X &e) {
      mix(e.c);
    } catch (int i) {
      mix(i);
    } catch (...) {
      mix(77);
    }
  printf("%lx\n", H);
  return 0;
}

//# about: clang lists the places that a tracer patches by distances, the first of them at entries: who patches them must find them there, and what is patched must run
//# kinds: clang-pie clang-nopie
//# flags: -fxray-instrument -fxray-instruction-threshold=1 -fno-xray-link-deps
//# pinned: listed
//# moved: free_to_move
//# count free_to_move: 100
//# stdout: 14850 1
#include <stdio.h>

struct sled {
  long address, function;
  unsigned char rest[16];
};
extern const struct sled __start_xray_instr_map[], __stop_xray_instr_map[];

__attribute__((noinline, xray_always_instrument)) int listed(int x) {
  if (x & 1) return x * 3;
  return x - 1;
}
__attribute__((noinline, xray_never_instrument)) int free_to_move(int x) {
  for (int i = 0; i < x % 5; i++) x ^= i;
  return x;
}

__attribute__((xray_never_instrument)) int main(int argc, char **argv) {
  int sum = 0, found = 0;
  for (int i = 0; i < 100; i++) sum += listed(i) + free_to_move(i);
  for (const struct sled *s = __start_xray_instr_map; s < __stop_xray_instr_map; s++)
    found |= (const char *)&s->address + s->address == (const char *)listed;
  printf("%d %d\n", sum, found);
  return 0;
}

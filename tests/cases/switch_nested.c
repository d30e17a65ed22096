//# about: switches in switches and in loops, several tables in one function, cases that fall through and jump out
//# build cet: -fcf-protection=full
//# build O3: -O3 -funroll-loops
//# build Os: -Os
//# moved: machine
//# count machine: 500
#include <stdio.h>

__attribute__((noinline, noipa)) static unsigned machine(const unsigned char *code, unsigned n) {
  unsigned a = n, b = 1, i = 0, steps = 0;
  for (;;) {
    if (steps++ > 200) goto out;
    switch (code[i++ & 31] & 15) {
    case 0: a += b; break;
    case 1: b ^= a; /* fall through */
    case 2: a = a * 5 + 1; break;
    case 3:
      switch (a & 7) {
      case 0: b += 3; break;
      case 1: b -= 5; continue;
      case 2: a >>= 1; break;
      case 3: goto restart;
      case 4: b = ~b; break;
      case 5: a ^= 0xffff; /* fall through */
      case 6: b++; break;
      case 7: if (b & 1) goto out; break;
      }
      break;
    case 4: if (a & 1) continue; b += a; break;
    case 5: i += a & 3; break;
    case 6: a = (a << 3) | (a >> 29); break;
    case 7: if (steps > 150) goto out; break;
    case 8: case 9: b += code[b & 31]; break;
    case 10: restart: a += 0x9e3779b9u; break;
    case 12: switch (b % 6) { case 0: a++; break; case 1: a += 2; break; case 2: a += 4; break; case 3: a += 8; break; case 4: a += 16; break; default: a--; } break;
    default: b *= 3;
    }
  }
out:
  return a ^ (b << 7) ^ steps;
}

int main(int argc, char **argv) {
  unsigned char code[32];
  unsigned h = 1, x = 12345;
  for (unsigned round = 0; round < 500; round++) {
    for (int i = 0; i < 32; i++) { x = x * 1103515245u + 12345u; code[i] = x >> 16; }
    h = h * 31 + machine(code, round);
  }
  printf("%u\n", h);
  return 0;
}

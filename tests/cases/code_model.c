//# about: the large code model adds distances to an address of the function itself, which must be the old one
//# build large: -mcmodel=large

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned table[256];
__attribute__((noinline, noipa)) static unsigned crc(const unsigned char *p, int n) {
  unsigned c = ~0u;
  while (n--) c = table[(c ^ *p++) & 255] ^ (c >> 8);
  return ~c;
}
__attribute__((noinline, noipa)) static int words(const char *text, int kind) {
  int n = 0, inside = 0;
  for (; *text; text++) {
    int here;
    switch (kind) {
    case 0: here = isalpha((unsigned char)*text); break;
    case 1: here = isdigit((unsigned char)*text); break;
    case 2: here = *text == 'x'; break;
    case 3: here = !isspace((unsigned char)*text); break;
    case 4: here = *text > 'm'; break;
    default: here = 1; break;
    }
    if (here && !inside) n++;
    inside = here;
  }
  return n;
}

int main(int argc, char **argv) {
  for (unsigned i = 0; i < 256; i++) {
    unsigned c = i;
    for (int k = 0; k < 8; k++) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  char *text = malloc(4000);
  unsigned sum = 0;
  for (int i = 0; i < 300; i++) {
    int n = snprintf(text, 4000, "%d xx %s %x mnop%d 12 34", i, i & 1 ? "odd one" : "even", i * 77, i);
    sum = sum * 5 + crc((unsigned char *)text, n) + words(text, i % 6);
  }
  free(text);
  printf("%08x\n", sum);
  return 0;
}

// Runs SQL from the standard input in memory and prints rows: a driver that is the same for every release of sqlite.
#include <stdio.h>
#include <stdlib.h>
#include "sqlite3.h"

static int row(void *unused, int columns, char **values, char **names) {
  (void)unused;
  (void)names;
  for (int i = 0; i < columns; i++)
    printf("%s%s", i ? "|" : "", values[i] ? values[i] : "");
  putchar('\n');
  return 0;
}

int main(void) {
  size_t used = 0, size = 1 << 16;
  char *text = malloc(size);
  for (size_t more; (more = fread(text + used, 1, size - used - 1, stdin)) > 0;) {
    used += more;
    if (used + 1 == size && !(text = realloc(text, size *= 2)))
      return 1;
  }
  text[used] = 0;
  sqlite3 *base;
  char *why = 0;
  if (sqlite3_open(":memory:", &base) || sqlite3_exec(base, text, row, 0, &why)) {
    fprintf(stderr, "%s\n", why ? why : sqlite3_errmsg(base));
    return 1;
  }
  return sqlite3_close(base);
}

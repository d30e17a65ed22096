/* Exact counts of what a program executes, for comparison with profiles: a plugin for qemu-user (TCG plugin interface, version 1).
 *
 *   cc -O2 -shared -fPIC trace.c -o trace.so
 *   qemu-aarch64 -plugin ./trace.so,out=FILE PROGRAM ARGS
 *
 * It writes, all numbers in hexadecimal:
 *
 *   insns N              instructions executed, in the program and in its libraries
 *   start A              run-time address of the program's first executable segment
 *   run A N C            C times the N instructions from A on, in the program
 *   jump A B C           C times from the instruction at A to B, where B does not follow A, from or to the program
 *
 * qemu translates straight pieces of code; a piece that was left early (by a signal) is counted whole. One thread only.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

struct jump {
  uint64_t to, count;
};

struct piece {
  uint64_t start, last, end, insns, count;
  struct jump *jumps;
  size_t used, room;
  struct piece *next;
};

static struct piece *pieces, *before;
static const char *path = "trace.out";

static void executed(unsigned cpu, void *data) {
  struct piece *p = data, *b = before;
  (void)cpu;
  p->count++;
  before = p;
  if (!b || b->end == p->start) return;
  for (size_t i = 0; i < b->used; i++)
    if (b->jumps[i].to == p->start) {
      b->jumps[i].count++;
      return;
    }
  if (b->used == b->room) {
    b->room = b->room ? 2 * b->room : 4;
    b->jumps = realloc(b->jumps, b->room * sizeof *b->jumps);
    if (!b->jumps) abort();
  }
  b->jumps[b->used++] = (struct jump){p->start, 1};
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  size_t n = qemu_plugin_tb_n_insns(tb);
  struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, n - 1);
  struct piece *p = calloc(1, sizeof *p);
  (void)id;
  if (!p) abort();
  p->start = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
  p->last = qemu_plugin_insn_vaddr(last);
  p->end = p->last + qemu_plugin_insn_size(last);
  p->insns = n;
  p->next = pieces;
  pieces = p;
  qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, 0, p);
}

static void finished(qemu_plugin_id_t id, void *unused) {
  uint64_t from = qemu_plugin_start_code(), to = qemu_plugin_end_code(), all = 0;
  FILE *out = fopen(path, "w");
  (void)id, (void)unused;
  if (!out) {
    perror(path);
    return;
  }
#define X(v) ((unsigned long long)(v))
  for (struct piece *p = pieces; p; p = p->next) all += p->insns * p->count;
  fprintf(out, "insns %llx\nstart %llx\n", X(all), X(from));
  for (struct piece *p = pieces; p; p = p->next) {
    bool inside = from <= p->start && p->start < to;
    if (p->count && inside) fprintf(out, "run %llx %llx %llx\n", X(p->start), X(p->insns), X(p->count));
    for (size_t i = 0; i < p->used; i++)
      if (inside || (from <= p->jumps[i].to && p->jumps[i].to < to))
        fprintf(out, "jump %llx %llx %llx\n", X(p->last), X(p->jumps[i].to), X(p->jumps[i].count));
  }
  fclose(out);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
  (void)info;
  for (int i = 0; i < argc; i++)
    if (!strncmp(argv[i], "out=", 4)) path = strdup(argv[i] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, finished, NULL);
  return 0;
}

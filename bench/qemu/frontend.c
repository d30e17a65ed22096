/* A model of a processor's front end that repeats exactly: a plugin for qemu-user (TCG plugin interface, version 1).
 *
 *   cc -O2 -shared -fPIC frontend.c -o frontend.so
 *   qemu-x86_64 -plugin ./frontend.so,out=FILE[,ranges=FILE][,moved=NAME] PROGRAM ARGS
 *
 * | part                        | model                                                        |
 * |-----------------------------|--------------------------------------------------------------|
 * | instruction cache           | 32 KiB, 8 ways, lines of 64 bytes, least recently used       |
 * | second-level caches         | 1 MiB and 2 MiB, 16 ways, of code alone, likewise            |
 * | translation buffer of code  | 64 entries, 8 ways, pages of 4 KiB                           |
 * | its second level            | 1,536 entries, 12 ways                                       |
 *
 * Nothing is fetched ahead and nothing is guessed: lines are fetched in the order in which the program executes
 * them, so a run with the same input gives the same figures. The file that is written has a line for each figure:
 * its name and a decimal number. "range" lines say, for each range that was given, how many misses of the
 * instruction cache fetched a line in it, and how many lines and pages of it were ever executed:
 *
 *   range NAME MISSES LINES PAGES
 *
 * Ranges are given as lines "START END NAME" with run-time addresses less that of the first executable segment, in
 * hexadecimal. What is in none of them is called "elsewhere": libraries and the loader.
 *
 * With "moved" the instruction cache is there 16 times more: in number K, counted from 0, lines of the range with that
 * name are in sets as if it began 4 K lines later, everything else is where it is. The misses are in lines
 * "moved-misses-K". Which of its sets a layout shares with libraries nobody chose; this says what that is worth.
 *
 * A piece of code that a signal ends early is counted whole. One thread only.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

enum { LINE = 6, PAGE = 12, MOST_WAYS = 16, MOST_RANGES = 32 };

/* A cache of sets, the most recently used entry of each first. */
struct cache {
  unsigned sets, ways;
  uint64_t *entries, misses;
};

static struct cache icache = {64, 8}, l2 = {1024, 16}, l2_2m = {2048, 16}, itlb = {8, 8}, stlb = {128, 12};

static bool misses(struct cache *c, uint64_t key) {
  uint64_t *set = c->entries + key % c->sets * c->ways, tag = key + 1, last = set[0];
  if (last == tag) return false;
  for (unsigned i = 1; i < c->ways; i++) {
    uint64_t here = set[i];
    set[i] = last;
    if (here == tag) {
      set[0] = tag;
      return false;
    }
    last = here;
  }
  set[0] = tag;
  c->misses++;
  return true;
}

/* A set of numbers, none of which is 0. */
struct set {
  uint64_t *slots;
  size_t used, room;
};

static bool add(struct set *s, uint64_t key) {
  if (s->used * 2 >= s->room) {
    struct set larger = {calloc(s->room ? 2 * s->room : 1024, sizeof *s->slots), 0, s->room ? 2 * s->room : 1024};
    if (!larger.slots) abort();
    for (size_t i = 0; i < s->room; i++)
      if (s->slots[i]) add(&larger, s->slots[i]);
    free(s->slots);
    *s = larger;
  }
  size_t i = key * 0x9e3779b97f4a7c15u >> 20 & (s->room - 1);
  while (s->slots[i] && s->slots[i] != key) i = (i + 1) & (s->room - 1);
  if (s->slots[i]) return false;
  s->slots[i] = key;
  s->used++;
  return true;
}

static struct range {
  uint64_t start, end, misses, lines, pages;
  char name[40];
} ranges[MOST_RANGES] = {{0, UINT64_MAX, 0, 0, 0, "elsewhere"}};
static unsigned range_count = 1;
static struct set lines_seen, pages_seen;

struct piece {
  uint64_t start, end, insns, count;
  struct piece *next;
};

static struct piece *pieces, *before;
static uint64_t taken, fetched, last_line;
static const char *path = "frontend.out", *ranges_path;

/* The last of the ranges that have an address: they are looked up backwards, "elsewhere" is the first. */
static struct range *range_of(uint64_t at) {
  unsigned i = range_count - 1;
  while (i > 0 && !(ranges[i].start <= at && at < ranges[i].end)) i--;
  return &ranges[i];
}

/* The instruction cache with a range at other places. */
enum { STARTS = 16, APART = 4 };
static struct cache moved[STARTS];
static const char *moved_name;
static uint64_t moved_start, moved_end;

static void fetch_moved(uint64_t line) {
  /* Far from all other lines, in the same set. */
  uint64_t far = moved_start <= line && line < moved_end ? line + (UINT64_C(1) << 50) : line;
  for (unsigned k = 0; k < STARTS; k++) misses(&moved[k], far == line ? line : far + k * APART);
}

static void fetch(uint64_t line) {
  fetched++;
  if (moved_end) fetch_moved(line);
  if (misses(&itlb, line >> (PAGE - LINE))) misses(&stlb, line >> (PAGE - LINE));
  if (!misses(&icache, line)) return;
  range_of(line << LINE)->misses++;
  misses(&l2, line);
  misses(&l2_2m, line);
}

static void executed(unsigned cpu, void *data) {
  struct piece *p = data;
  (void)cpu;
  p->count++;
  if (before && before->end != p->start) taken++;
  before = p;
  for (uint64_t line = p->start >> LINE; line <= (p->end - 1) >> LINE; line++)
    if (line != last_line) {
      last_line = line;
      fetch(line);
    }
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  size_t n = qemu_plugin_tb_n_insns(tb);
  struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, n - 1);
  struct piece *p = calloc(1, sizeof *p);
  (void)id;
  if (!p) abort();
  p->start = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
  p->end = qemu_plugin_insn_vaddr(last) + qemu_plugin_insn_size(last);
  p->insns = n;
  p->next = pieces;
  pieces = p;
  qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, 0, p);
}

/* Ranges are relative to the program's first executable segment, whose address is known once it is loaded. */
static void read_ranges(void) {
  FILE *in = ranges_path ? fopen(ranges_path, "r") : NULL;
  uint64_t base = qemu_plugin_start_code();
  unsigned long long start, end;
  struct range *r = &ranges[1];
  while (in && range_count < MOST_RANGES && fscanf(in, "%llx %llx %39s", &start, &end, r->name) == 3) {
    r->start = base + start;
    r->end = base + end;
    if (moved_name && !strcmp(r->name, moved_name)) {
      moved_start = r->start >> LINE;
      moved_end = ((r->end - 1) >> LINE) + 1;
    }
    r++, range_count++;
  }
  if (in) fclose(in);
}

static void first(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  static bool ready;
  if (!ready) read_ranges();
  ready = true;
  translated(id, tb);
}

static void finished(qemu_plugin_id_t id, void *unused) {
  FILE *out = fopen(path, "w");
  uint64_t insns = 0;
  (void)id, (void)unused;
  if (!out) {
    perror(path);
    return;
  }
#define X(v) ((unsigned long long)(v))
  for (struct piece *p = pieces; p; p = p->next) {
    insns += p->insns * p->count;
    if (!p->count) continue;
    for (uint64_t line = p->start >> LINE; line <= (p->end - 1) >> LINE; line++) {
      struct range *r = range_of(line << LINE);
      if (add(&lines_seen, line)) r->lines++;
      if (add(&pages_seen, line >> (PAGE - LINE))) r->pages++;
    }
  }
  fprintf(out, "instructions %llu\nlines-fetched %llu\ntaken %llu\n", X(insns), X(fetched), X(taken));
  fprintf(out, "icache-misses %llu\nl2-1m-misses %llu\nl2-2m-misses %llu\n", X(icache.misses), X(l2.misses), X(l2_2m.misses));
  fprintf(out, "itlb-misses %llu\nstlb-misses %llu\n", X(itlb.misses), X(stlb.misses));
  fprintf(out, "lines %llu\npages %llu\n", X(lines_seen.used), X(pages_seen.used));
  for (unsigned k = 0; moved_end && k < STARTS; k++) fprintf(out, "moved-misses-%u %llu\n", k, X(moved[k].misses));
  for (unsigned i = 0; i < range_count; i++)
    fprintf(out, "range %s %llu %llu %llu\n", ranges[i].name, X(ranges[i].misses), X(ranges[i].lines), X(ranges[i].pages));
  fclose(out);
}

static void prepare(struct cache *c) {
  c->entries = calloc((size_t)c->sets * c->ways, sizeof *c->entries);
  if (!c->entries) abort();
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
  (void)info;
  for (int i = 0; i < argc; i++) {
    if (!strncmp(argv[i], "out=", 4)) path = strdup(argv[i] + 4);
    if (!strncmp(argv[i], "ranges=", 7)) ranges_path = strdup(argv[i] + 7);
    if (!strncmp(argv[i], "moved=", 6)) moved_name = strdup(argv[i] + 6);
  }
  for (unsigned k = 0; k < STARTS; k++) moved[k] = icache, prepare(&moved[k]);
  prepare(&icache), prepare(&l2), prepare(&l2_2m), prepare(&itlb), prepare(&stlb);
  qemu_plugin_register_vcpu_tb_trans_cb(id, first);
  qemu_plugin_register_atexit_cb(id, finished, NULL);
  return 0;
}

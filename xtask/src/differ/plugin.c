/* Tells what a program does to its registers and memory: a plugin for qemu-user (TCG plugin interface, version 1).
 *
 *   cc -O2 -shared -fPIC plugin.c -o plugin.so
 *   LD_PRELOAD=plugin.so qemu-x86_64 -U LD_PRELOAD -plugin plugin.so,out=FILE,tail=FILE,module=MAJOR:MINOR:INODE,inserted=A-Z,skipped=A-Z,ready=FILE,own=FILE PROGRAM ARGS
 *
 * It writes records of 64-bit words in the machine's order. The first word of each is: kind (low 8 bits), number of words that follow (next 16),
 * a value (high 32).
 *
 *   kind       value               words
 *   1 start    instruction set     stack pointer, 16 random bytes that the process was given, then the stack up to the end of the auxiliary vector
 *   2 module   0                   where the module's first segment is mapped
 *   3 event    how control came    address of the last instruction before, address behind that, address of the next, registers
 *   4 write    bytes, 1 to 8 (*)   address of the instruction, address of the memory, value
 *   5 system   number              address behind the instruction, six arguments, and what it opens: 1 for /proc/self/maps, 2 for the module's file
 *   6 result   number              result
 *   7 thread   0                   (a second thread began)
 *   8 end      0
 *   9 load     bytes, 1 to 8 (*)   as of a write
 *  10 stack    0                   stack pointer, where control comes to an inserted part by no event: by a direct jump, or by a signal within the module
 *  11 left     0                   lowest stack pointer in a skipped part, and that at its first instruction
 *  12 highest  0                   in front of an event: the highest stack pointer of the module since the last one, if it is above those of both
 *
 * (*) and 256 if it is of a vector register, on AArch64; 512 if it is by an indirect call or jump, of its target; 1024 if it is by an atomic instruction.
 *
 * Events are calls (1), returns (2), indirect jumps (3) and others (4: signals, the start), out of the module, into it, or inside. "inserted" are parts of
 * the module, as hexadecimal distances from its start, end exclusive; control that leaves them in any way is an event, kind 4 if by a direct jump.
 * "skipped" are parts of which coming into them is an event of kind 4 too. Of their loads and stores nothing is told, and of what happens until the stack
 * pointer is back where it was only the system calls. Other loads are told of with "loads=1".
 * When the module is found, the file "ready" is made. Only the first thread is told of, and no child of fork.
 *
 * Registers. Version 1 of the interface cannot read them. But generated code keeps a pointer to the processor's state in a host register that
 * nobody else uses, and at the start of a translated block every guest register is in that state: so an entry in assembly fetches the pointer. The general
 * registers have been the first field of the state ever since, of x86-64, and the second of AArch64. Whether it is so is checked at the first instruction
 * of the process: there the stack pointer leads to argc and argv.
 *
 * Memory. A callback behind each store has its address; the guest's memory is this process's, at the same address, so the value is read there.
 *
 * The same file is preloaded into the emulator, to make each run equal: the functions at the end replace those of libc by which the emulator
 * learns time, random bytes and what files are, and that by which it writes lists.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The part of qemu-plugin.h that is used here. */
typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
  const char *target_name;
  struct {
    int min, cur;
  } version;
  bool system_emulation;
  union {
    struct {
      int smp_vcpus, max_vcpus;
    } system;
  };
} qemu_info_t;
/* Weak: as a preloaded library this file is loaded before there is a plugin interface. */
#define QEMU __attribute__((weak))
QEMU void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned));
QEMU void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
QEMU void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int flags, void *);
QEMU void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *), int flags, int rw, void *);
QEMU void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
QEMU void qemu_plugin_register_vcpu_syscall_ret_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned, int64_t, int64_t));
QEMU void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
QEMU size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
QEMU struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
QEMU const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
QEMU size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
QEMU uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
QEMU unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);
QEMU bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
enum { READS_REGISTERS = 1, LOADS = 1, WRITES = 2 };

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;

enum { START = 1, MODULE, EVENT, WRITE, SYSTEM, RESULT, THREAD, END, LOAD, STACK, LEFT, HIGHEST };
enum { PLAIN, CALL, RETURN, JUMP, OTHER };

struct block {
  uint64_t start, last, end;
  int kind;
  bool inside, inserted, skipped;
};

static bool is_aarch64, active, with_loads;
static const char *ready, *module_file;
static unsigned long module_inode, module_major, module_minor;
static uint64_t module_low, module_high;
enum { PARTS = 4096 };
struct parts {
  size_t count;
  struct {
    uint64_t start, end;
  } part[PARTS];
};
static struct parts inserted, skipped;

static bool is_in(const struct parts *parts, uint64_t pc) {
  for (size_t i = 0; i < parts->count; i++)
    if (pc - module_low >= parts->part[i].start && pc - module_low < parts->part[i].end) return true;
  return false;
}

static void add_part(struct parts *parts, uint64_t start, uint64_t end) {
  if (parts->count == PARTS) return;
  parts->part[parts->count].start = start;
  parts->part[parts->count++].end = end;
}
static struct block *before;
/* What inserted routines have mapped, and the length that one asks for. */
enum { OWN = 64 };
static struct { uint64_t low, high; } own[OWN];
static unsigned own_count;
static uint64_t own_length;
/* In a skipped part, or what that calls: the stack pointer when control came there, and the lowest one since. */
static uint64_t entered, lowest;
/* The highest stack pointer since the last event, and that of the event: a function gives up its frame and goes on to another by a direct jump. */
static uint64_t highest, of_event;
static int out = -1;

/* Records wait in a file that is mapped: when the process is killed, the reader finds there what was not written to the pipe. */
enum { ROOM = 1 << 16 };
static struct {
  uint64_t used;
  uint64_t words[ROOM];
} *buffer;

static void flush(void) {
  const char *p = (const char *)buffer->words;
  size_t left = buffer->used * 8;
  buffer->used = 0;
  while (left > 0) {
    ssize_t n = write(out, p, left);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) { /* nobody listens any more: there is nothing left to do */
      active = false;
      _exit(0);
    }
    p += n, left -= n;
  }
}

static uint64_t *record(int kind, uint64_t value, size_t words) {
  if (buffer->used + 1 + words > ROOM) flush();
  uint64_t *at = buffer->words + buffer->used;
  buffer->used += 1 + words;
  *at = (uint64_t)kind | words << 8 | value << 32;
  return at + 1;
}

static int kind_x86(const uint8_t *p, size_t n) {
  size_t i = 0;
  while (i < n && (p[i] == 0x66 || p[i] == 0x67 || p[i] == 0xf2 || p[i] == 0xf3 || p[i] == 0x2e || p[i] == 0x3e || p[i] == 0x64 || p[i] == 0x65)) i++;
  if (i < n && (p[i] & 0xf0) == 0x40) i++;
  if (i >= n) return PLAIN;
  if (p[i] == 0xe8) return CALL;
  if (p[i] == 0xc3 || p[i] == 0xc2) return RETURN;
  if (p[i] == 0xff && i + 1 < n) {
    int reg = p[i + 1] >> 3 & 7;
    return reg == 2 ? CALL : reg == 4 ? JUMP : PLAIN;
  }
  return PLAIN;
}

/* A store of ten bytes, whose second part the emulator reports with twice its size. */
static bool is_long_double_store(const uint8_t *p, size_t n) {
  size_t i = 0;
  while (i < n && (p[i] == 0x64 || p[i] == 0x65 || p[i] == 0x67 || (p[i] & 0xf0) == 0x40)) i++;
  return i + 1 < n && p[i] == 0xdb && (p[i + 1] >> 3 & 7) == 7 && p[i + 1] >> 6 != 3;
}

/* Loads and stores of SIMD and floating point registers. */
static bool is_vector_access(const uint8_t *p) {
  uint32_t w;
  memcpy(&w, p, 4);
  return (w & 0x0e000000) == 0x0c000000;
}

/* Instructions that read and write at once. Whether the emulator tells of the load as well depends on whether it takes other threads to be there, which it
 * does as soon as something is mapped shared: as the counters of the one program are, and nothing of the other. */
static bool is_atomic(const uint8_t *p, size_t n) {
  if (is_aarch64) {
    uint32_t w;
    memcpy(&w, p, 4);
    return (w & 0x3f400000) == 0x08000000 || (w & 0x3fa07c00) == 0x08a07c00 || (w & 0x3fa07c00) == 0x08207c00 || (w & 0x3f200c00) == 0x38200000;
  }
  size_t i = 0;
  while (i < n && (p[i] == 0x66 || p[i] == 0xf2 || p[i] == 0xf3 || p[i] == 0x64 || p[i] == 0x65 || p[i] == 0x67)) i++;
  if (i < n && p[i] == 0xf0) return true;
  if (i < n && (p[i] & 0xf0) == 0x40) i++;
  return i < n && (p[i] == 0x86 || p[i] == 0x87);
}

static int kind_aarch64(const uint8_t *p) {
  uint32_t w;
  memcpy(&w, p, 4);
  if (w >> 26 == 0x25) return CALL;
  if ((w & 0xfe000000) == 0xd6000000) switch (w >> 21 & 7) {
      case 0: return JUMP;
      case 1: return CALL;
      case 2: return RETURN;
    }
  return PLAIN;
}

/* Mappings with other code, so that the list is not read for each block of the loader. What maps memory makes them unknown. */
#define OTHERS 16
static struct { uint64_t low, high; } others[OTHERS];
static unsigned others_count;

static bool maps_memory(int64_t number) {
  return is_aarch64 ? number == 215 || number == 216 || number == 222 : number == 9 || number == 11 || number == 25;
}

/* Where the module is, if it is there by now: its mappings follow each other in the list of this process. */
static void look_for_module(uint64_t pc) {
  for (unsigned i = 0; i < others_count; i++)
    if (pc >= others[i].low && pc < others[i].high) return;
  uint64_t other_low = 0, other_high = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  if (!maps) return;
  char line[4200];
  uint64_t low = 0, high = 0;
  while (fgets(line, sizeof line, maps)) {
    unsigned long a, z, major, minor, inode;
    if (sscanf(line, "%lx-%lx %*s %*s %lx:%lx %lu", &a, &z, &major, &minor, &inode) < 5) continue;
    if (pc >= a && pc < z) other_low = a, other_high = z;
    /* By its inode, as its name may change while it runs. Memory without a file in between is the module's .bss, or room that the emulator left. */
    if (inode == module_inode && major == module_major && minor == module_minor) {
      if (!low) low = a;
      high = z;
    }
  }
  fclose(maps);
  if (low && pc >= low && pc < high) {
    module_low = low, module_high = high;
    record(MODULE, 0, 1)[0] = low;
    if (ready) close(open(ready, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  } else if (other_high && others_count < OTHERS) {
    others[others_count].low = other_low, others[others_count++].high = other_high;
  }
}

static void start(const uint64_t *registers) {
  uint64_t sp = registers[is_aarch64 ? 31 : 4];
  const uint64_t *stack = (const uint64_t *)sp, *p = stack;
  /* mincore would say whether it is mapped; a write to the pipe says it without a fault as well. */
  int probe[2];
  bool good = sp % 16 == 0 && !pipe(probe) && write(probe[1], stack, 64) == 64;
  if (good) {
    uint64_t argc = *p;
    good = argc > 0 && argc < 100000 && p[1] && p[1 + argc] == 0;
  }
  if (!good) {
    fprintf(stderr, "plugin: this version of qemu keeps registers elsewhere, or memory not at its own address\n");
    _exit(97);
  }
  close(probe[0]), close(probe[1]);
  p += 2 + *p;
  while (*p) p++;
  p++;
  const void *random = NULL;
  for (; *p; p += 2)
    if (*p == 25) random = (const void *)p[1]; /* AT_RANDOM */
  size_t words = p + 2 - stack;
  if (words > 60000) _exit(98);
  uint64_t *to = record(START, is_aarch64, 3 + words);
  to[0] = sp, to[1] = to[2] = 0;
  if (random) memcpy(to + 1, random, 16);
  memcpy(to + 3, stack, words * 8);
  flush();
}

/* Whether control is where nothing is told: what is below the stack pointer when a skipped part is entered is nobody's. */
static bool is_quiet(const struct block *now, uint64_t sp) {
  if (!entered) return false;
  if (sp < lowest) lowest = sp;
  if (sp < entered) return true;
  if (!now->skipped) {
    /* Blocks push more than there was at their start, and x86-64 has a red zone. */
    uint64_t *to = record(LEFT, 0, 2);
    to[0] = lowest - 512, to[1] = entered;
    entered = 0;
  }
  return false;
}

__attribute__((used)) static void execute(unsigned cpu, struct block *now, const char *state) {
  if (!active || cpu != 0) return;
  const uint64_t *registers = (const uint64_t *)(state + (is_aarch64 ? 64 : 0));
  struct block *old = before;
  before = now;
  uint64_t sp = registers[is_aarch64 ? 31 : 4];
  if (!old)
    start(registers);
  else if (is_quiet(now, sp) || (!now->inside && !old->inside)) return;
  if (sp > highest) highest = sp;
  int kind = OTHER;
  if (old && old->kind != PLAIN) {
    kind = old->kind;
    /* A block that crosses a page is begun again when it has been translated anew, before its jump. */
    if (kind == JUMP && now->start == old->last) return;
    /* A signal can come before the block's end; then there was no call. */
    if (kind == CALL && (is_aarch64 ? registers[30] : *(const uint64_t *)registers[4]) != old->end) {
      kind = OTHER;
      if (now->start >= old->start && now->start < old->end) return;
    }
  } else if (old && old->inside == now->inside && !(old->inserted && !now->inserted) && !(now->skipped && !old->skipped)) {
    if (now->inserted && !old->inserted) record(STACK, 0, 1)[0] = sp;
    return;
  }
  if (!now->inside && (!old || !old->inside)) return;
  if (now->skipped && !entered && kind != RETURN) entered = lowest = sp;
  if (highest > sp && highest > of_event) record(HIGHEST, 0, 1)[0] = highest;
  highest = of_event = sp;
  int words = is_aarch64 ? 32 : 16;
  uint64_t *to = record(EVENT, kind, 3 + words);
  to[0] = old ? old->last : 0, to[1] = old ? old->end : 0, to[2] = now->start;
  memcpy(to + 3, registers, words * 8);
}

void execute_entry(unsigned cpu, void *block);
#if defined __x86_64__
__asm__(".text\n.globl execute_entry\n.hidden execute_entry\nexecute_entry:\n  movq %rbp, %rdx\n  jmp execute\n");
#elif defined __aarch64__
__asm__(".text\n.globl execute_entry\n.hidden execute_entry\nexecute_entry:\n  mov x2, x19\n  b execute\n");
#else
#error "which host register holds the processor's state?"
#endif

static const uint64_t LONG_DOUBLE = 1ull << 63, VECTOR = 1ull << 62, TARGET = 1ull << 61, ATOMIC = 1ull << 60;

static void stored(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn) {
  uint64_t pc = (uint64_t)insn & ~(LONG_DOUBLE | VECTOR | TARGET | ATOMIC);
  /* Loads come here as well where an instruction is translated by a helper, and those and stores of code outside the module after such an
   * instruction: the emulator forgets to take the callback back. */
  bool is_store = qemu_plugin_mem_is_store(info);
  if (!active || cpu != 0 || (!is_store && (!with_loads || (uint64_t)insn & ATOMIC))) return;
  if (!before || pc < before->start || pc >= before->end || entered) return;
  size_t bytes = (size_t)1 << qemu_plugin_mem_size_shift(info);
  if ((uint64_t)insn & LONG_DOUBLE && bytes == 4) bytes = 2;
  for (size_t done = 0; done < bytes; done += 8) {
    size_t size = bytes - done < 8 ? bytes - done : 8;
    uint64_t *to = record(is_store ? WRITE : LOAD, size | ((uint64_t)insn & VECTOR ? 256 : 0) | ((uint64_t)insn & TARGET ? 512 : 0) | ((uint64_t)insn & ATOMIC ? 1024 : 0), 3), value = 0;
    memcpy(&value, (const void *)(address + done), size);
    to[0] = pc, to[1] = address + done, to[2] = value;
  }
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  size_t n = qemu_plugin_tb_n_insns(tb);
  struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, n - 1);
  struct block *block = malloc(sizeof *block);
  block->start = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
  block->last = qemu_plugin_insn_vaddr(last);
  block->end = block->last + qemu_plugin_insn_size(last);
  block->kind = is_aarch64 ? kind_aarch64(qemu_plugin_insn_data(last)) : kind_x86(qemu_plugin_insn_data(last), qemu_plugin_insn_size(last));
  if (!module_low) look_for_module(block->start);
  block->inside = block->start >= module_low && block->start < module_high;
  block->inserted = block->inside && is_in(&inserted, block->start);
  block->skipped = block->inside && is_in(&skipped, block->start);
  qemu_plugin_register_vcpu_tb_exec_cb(tb, execute_entry, READS_REGISTERS, block);
  /* Nobody asks what is done to memory where nobody looks. */
  if (!block->inside || block->skipped) return;
  for (size_t i = 0; i < n; i++) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
    uint64_t what = qemu_plugin_insn_vaddr(insn);
    if (!is_aarch64 && is_long_double_store(qemu_plugin_insn_data(insn), qemu_plugin_insn_size(insn))) what |= LONG_DOUBLE;
    if (is_aarch64 && is_vector_access(qemu_plugin_insn_data(insn))) what |= VECTOR;
    if (insn == last && (block->kind == CALL || block->kind == JUMP)) what |= TARGET;
    bool atomic = is_atomic(qemu_plugin_insn_data(insn), qemu_plugin_insn_size(insn));
    bool loads = with_loads && !atomic;
    if (atomic) what |= ATOMIC;
    qemu_plugin_register_vcpu_mem_cb(insn, stored, 0, loads ? LOADS | WRITES : WRITES, (void *)what);
  }
}

/* A string that is not mapped names nothing. */
static bool is_string(const char *at, const char *name) {
  size_t size = strlen(name) + 1;
  int probe[2];
  if (pipe(probe)) return false;
  bool same = write(probe[1], at, size) == (ssize_t)size && !memcmp(at, name, size);
  close(probe[0]), close(probe[1]);
  return same;
}

/* 1: the list of mappings, which says more of the output, as that has more segments; 2: the module's own file. */
static int opens(int64_t number, uint64_t a, uint64_t b) {
  bool at = number == (is_aarch64 ? 56 : 257);
  if (!module_low || (!at && (is_aarch64 || number != 2))) return 0;
  const char *path = (const char *)(at ? b : a);
  if (is_string(path, "/proc/self/maps")) return 1;
  return is_string(path, "/proc/self/exe") || (module_file && is_string(path, module_file)) ? 2 : 0;
}

static void system_call(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
  if (maps_memory(number)) others_count = 0;
  if (!active || cpu != 0) return;
  own_length = number == (is_aarch64 ? 222 : 9) && before && before->inserted ? b : 0;
  uint64_t *to = record(SYSTEM, number, 8);
  to[0] = before ? before->end : 0;
  to[1] = a, to[2] = b, to[3] = c, to[4] = d, to[5] = e, to[6] = f;
  to[7] = opens(number, a, b);
}

static void system_result(qemu_plugin_id_t id, unsigned cpu, int64_t number, int64_t result) {
  if (!active || cpu != 0) return;
  if (own_length && result > 0 && own_count < OWN) {
    own[own_count].low = result;
    own[own_count++].high = result + own_length;
  }
  own_length = 0;
  record(RESULT, number, 1)[0] = result;
}

static void new_cpu(qemu_plugin_id_t id, unsigned cpu) {
  if (active && cpu != 0) record(THREAD, 0, 0);
}

static void child(void) { active = false; }

static void finish(qemu_plugin_id_t id, void *nothing) {
  if (!active) return;
  record(END, 0, 0);
  flush();
  active = false;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
  is_aarch64 = !strcmp(info->target_name, "aarch64");
  for (int i = 0; i < argc; i++) {
    if (!strncmp(argv[i], "out=", 4)) out = open(argv[i] + 4, O_WRONLY | O_CLOEXEC);
    if (!strncmp(argv[i], "tail=", 5)) {
      int tail = open(argv[i] + 5, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      void *map = ftruncate(tail, sizeof *buffer) ? MAP_FAILED : mmap(NULL, sizeof *buffer, PROT_READ | PROT_WRITE, MAP_SHARED, tail, 0);
      if (map != MAP_FAILED) buffer = map;
      close(tail);
    }
    if (!strncmp(argv[i], "ready=", 6)) ready = strdup(argv[i] + 6);
    if (!strncmp(argv[i], "own=", 4)) module_file = strdup(argv[i] + 4);
    sscanf(argv[i], "module=%lx:%lx:%lu", &module_major, &module_minor, &module_inode);
    unsigned long a, z;
    if (sscanf(argv[i], "inserted=%lx-%lx", &a, &z) == 2) add_part(&inserted, a, z);
    if (sscanf(argv[i], "skipped=%lx-%lx", &a, &z) == 2) add_part(&skipped, a, z);
    if (!strcmp(argv[i], "loads=1")) with_loads = true;
  }
  if (out < 0 || !module_inode || !buffer) {
    fprintf(stderr, "plugin: out=FILE, tail=FILE and module=MAJOR:MINOR:INODE are needed\n");
    return -1;
  }
  active = true;
  pthread_atfork(NULL, NULL, child);
  qemu_plugin_register_vcpu_init_cb(id, new_cpu);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
  qemu_plugin_register_vcpu_syscall_cb(id, system_call);
  qemu_plugin_register_vcpu_syscall_ret_cb(id, system_result);
  qemu_plugin_register_atexit_cb(id, finish, NULL);
  return 0;
}

/* What differs from run to run. Each answer of a clock is later than the one before, so that who waits for a time gets there. */

static long raw(long number, long a, long b, long c, long d, long e, long f) {
#if defined __x86_64__
  long result;
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return result;
#else
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#endif
}

static uint64_t now_ns(void) {
  static uint64_t now = 1600000000ull * 1000000000;
  /* Other threads of the emulator ask at times of their own. */
  if (raw(SYS_gettid, 0, 0, 0, 0, 0, 0) != raw(SYS_getpid, 0, 0, 0, 0, 0, 0)) return now;
  return now += 10000;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *at) {
  uint64_t now = now_ns();
  at->tv_sec = now / 1000000000, at->tv_nsec = now % 1000000000;
  return 0;
}

EXPORT int gettimeofday(struct timeval *at, void *zone) {
  uint64_t now = now_ns();
  at->tv_sec = now / 1000000000, at->tv_usec = now % 1000000000 / 1000;
  return 0;
}

EXPORT time_t time(time_t *at) {
  time_t now = now_ns() / 1000000000;
  if (at) *at = now;
  return now;
}

/* Of files: when something was done with them, and the numbers of those without a name, as the emulator makes them for lists of /proc. They are on the
 * stack long after the call. (Lists of /proc have no size.) */
static int same_each_time(long result, struct stat64 *file) {
  if (result < 0) {
    errno = -result;
    return -1;
  }
  file->st_atim = file->st_mtim = file->st_ctim = (struct timespec){.tv_sec = 1600000000};
  if (file->st_nlink == 0) file->st_dev = file->st_ino = file->st_size = file->st_blocks = 0;
  return 0;
}

EXPORT int fstatat64(int folder, const char *path, struct stat64 *file, int flags) {
  return same_each_time(raw(SYS_newfstatat, folder, (long)path, (long)file, flags, 0, 0), file);
}

EXPORT int fstat64(int number, struct stat64 *file) { return same_each_time(raw(SYS_fstat, number, (long)file, 0, 0, 0, 0), file); }

EXPORT int stat64(const char *path, struct stat64 *file) { return fstatat64(AT_FDCWD, path, file, 0); }

EXPORT int lstat64(const char *path, struct stat64 *file) { return fstatat64(AT_FDCWD, path, file, AT_SYMLINK_NOFOLLOW); }

static bool is_own(uint64_t low) {
  for (unsigned i = 0; i < own_count; i++)
    if (low >= own[i].low && low < own[i].high) return true;
  return false;
}

/* The emulator writes the list of mappings so, for each the places and what is there, and then its name. The output has more segments than the input and
 * is another file, so the lines of the module, with the memory behind it, are left out, and those of what inserted routines have mapped: whatever is read
 * of the others is the same then. */
EXPORT int __dprintf_chk(int file, int flag, const char *format, ...) {
  static _Thread_local bool hidden;
  static _Thread_local uint64_t hidden_end;
  char text[8192];
  va_list list;
  va_start(list, format);
  int length = vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (length < 0 || length >= (int)sizeof text) return -1;
  unsigned long low, high, major, minor, inode;
  if (sscanf(text, "%lx-%lx %*s %*s %lx:%lx %lu", &low, &high, &major, &minor, &inode) == 5) {
    bool of_module = module_low && low >= module_low && low < module_high, behind = low == hidden_end;
    hidden = of_module || is_own(low) || (behind && inode == 0);
    if (hidden && (of_module || behind)) hidden_end = high;
  }
  if (hidden) {
    hidden = !strchr(text, '\n');
    return length;
  }
  return write(file, text, length);
}

static void random_bytes(uint8_t *to, size_t size) {
  static uint64_t state = 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < size; i++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    to[i] = state >> 32;
  }
}

/* The emulator asks for random bytes by number. */
EXPORT long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long), d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
  va_end(list);
  if (number == SYS_getrandom) {
    random_bytes((uint8_t *)a, b);
    return b;
  }
  if (number == SYS_statx) {
    long done = raw(number, a, b, c, d, e, f);
    struct statx *of = (struct statx *)e;
    if (done == 0) {
      of->stx_atime = of->stx_mtime = of->stx_ctime = of->stx_btime = (struct statx_timestamp){.tv_sec = 1600000000};
      if (of->stx_nlink == 0) of->stx_dev_major = of->stx_dev_minor = of->stx_ino = of->stx_size = of->stx_blocks = 0;
      return 0;
    }
    errno = -done;
    return -1;
  }
  long result = raw(number, a, b, c, d, e, f);
  if (result < 0 && result > -4096) {
    errno = -result;
    return -1;
  }
  return result;
}

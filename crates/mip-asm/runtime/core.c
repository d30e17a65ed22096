/* The run-time of machine IR profiles: maps a program's counters onto the profile's file, so that whatever is counted is in the file at
 * once. Nothing happens at exit, so nothing is lost by _exit, abort or SIGKILL.
 *
 * Compiled for each kind of program or library that is linked, with these macros:
 *
 *   MIP_PAGE     what counters are aligned to
 *   MIP_SLOTS    number of slots for sampled return addresses; 0: none
 *   MIP_MANUAL   only the functions of api.c write profiles
 *
 * The counters lie between __llvm_mip_start (in the first instrumented object; room for the header) and __llvm_mip_end (here, since this
 * comes last), in a section that takes no room in the file. The last of them are the slots; behind them the next page begins, so that
 * there is nothing else in the pages that are mapped.
 *
 * On Linux it makes its system calls itself: it runs before anything is set up, and should not need imports. Elsewhere it uses libc. */

#define HIDDEN __attribute__((visibility("hidden")))
#define WEAK __attribute__((weak))

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long word;

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__) || defined(__arm__))

#define ONE_BY_ONE __attribute__((noinline))
#if defined(__x86_64__)
enum { SYS_write = 1, SYS_close = 3, SYS_mmap = 9, SYS_getpid = 39, SYS_open = 257, SYS_rename = 264, SYS_read = 0 };
static ONE_BY_ONE long call4(long a, long b, long c, long d, long n) {
  register long r10 __asm__("r10") = d;
  __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
  return n;
}
static long map6(long a, long b, long c, long d, long e, long f) {
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long n = SYS_mmap;
  __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return n;
}
#elif defined(__aarch64__)
enum { SYS_write = 64, SYS_close = 57, SYS_mmap = 222, SYS_getpid = 172, SYS_open = 56, SYS_rename = 38, SYS_read = 63 };
static long call6(long n, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = n;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
#else
enum { SYS_write = 4, SYS_close = 6, SYS_mmap = 192, SYS_getpid = 20, SYS_open = 322, SYS_rename = 329, SYS_read = 3 };
static long call6(long n, long a, long b, long c, long d, long e, long f) {
  register long r0 __asm__("r0") = a;
  register long r1 __asm__("r1") = b;
  register long r2 __asm__("r2") = c;
  register long r3 __asm__("r3") = d;
  register long r4 __asm__("r4") = e;
  register long r5 __asm__("r5") = f;
  /* r7 may be the frame pointer: saved by hand. */
  __asm__ volatile("push {r7}\n\tmov r7, %1\n\tsvc 0\n\tpop {r7}"
                   : "+r"(r0) : "r"(n), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory", "lr");
  return r0;
}
#endif
#if !defined(__x86_64__)
static ONE_BY_ONE long call4(long a, long b, long c, long d, long n) { return call6(n, a, b, c, d, 0, 0); }
static long map6(long a, long b, long c, long d, long e, long f) { return call6(SYS_mmap, a, b, c, d, e, f); }
#endif
enum { AT_CWD = -100, READ_ONLY = 0, CREATE = 02 | 0100 | 01000 | 02000000 };
static long sys_open(const char *path, int flags) { return call4(AT_CWD, (long)path, flags, 0666, SYS_open); }
static long sys_read(long file, void *to, word n) { return call4(file, (long)to, (long)n, 0, SYS_read); }
static long sys_write(long file, const void *from, word n) { return call4(file, (long)from, (long)n, 0, SYS_write); }
static void sys_close(long file) { call4(file, 0, 0, 0, SYS_close); }
static int sys_getpid(void) { return (int)call4(0, 0, 0, 0, SYS_getpid); }
static long sys_rename(const char *from, const char *to) { return call4(AT_CWD, (long)from, AT_CWD, (long)to, SYS_rename); }
/* Shared, in place of what is there. An address may look like a small negative number nowhere: errors are -4095 to -1. */
static long sys_map(void *at, word n, long file) {
  word got = (word)map6((long)at, (long)n, 3, 0x11, file, 0);
  return got > (word)-4096 ? (long)got : 0;
}

#else /* any other system */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
enum { READ_ONLY = O_RDONLY, CREATE = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC };
static long result(long value) { return value < 0 ? -errno : value; }
static long sys_open(const char *path, int flags) { return result(open(path, flags, 0666)); }
static long sys_read(long file, void *to, word n) { return result(read((int)file, to, n)); }
static long sys_write(long file, const void *from, word n) { return result(write((int)file, from, n)); }
static void sys_close(long file) { close((int)file); }
static int sys_getpid(void) { return getpid(); }
static long sys_rename(const char *from, const char *to) { return result(rename(from, to)); }
static long sys_map(void *at, word n, long file) {
  return mmap(at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)file, 0) == MAP_FAILED ? -errno : 0;
}
#endif

/* What is instrumented has these; a program without instrumented code does not. */
#if defined(__APPLE__)
extern u8 start_of_section[] __asm("section$start$__DATA$__llvm_mipraw");
extern u8 end_of_section[] __asm("section$end$__DATA$__llvm_mipraw");
#define START start_of_section
#define END end_of_section
#define MAPPED_END END
#define IS_THERE (START != END)
#else
extern u8 __llvm_mip_start[] WEAK HIDDEN;
/* Of no size: a compiler takes long arrays to be aligned. */
extern const u8 __llvm_mip_header[] WEAK HIDDEN;
extern u8 __llvm_mip_end[] HIDDEN, __llvm_mip_slots[] HIDDEN, __llvm_mip_page_end[] HIDDEN;
#define MAPPED_END __llvm_mip_page_end
#define START __llvm_mip_start
#define END __llvm_mip_end
#define IS_THERE (START != 0)
#if defined(__arm__)
#define TYPE "%nobits"
#else
#define TYPE "@nobits"
#endif
#define STRING(x) #x
#define TEXT(x) STRING(x)
__asm__("\t.section __llvm_mipraw,\"aw\"," TYPE "\n"
#if MIP_SLOTS
        "\t.balign 16\n"
#endif
        "\t.globl __llvm_mip_slots\n\t.hidden __llvm_mip_slots\n__llvm_mip_slots:\n"
#if MIP_SLOTS
        "\t.zero 16*" TEXT(MIP_SLOTS) "\n"
#endif
        "\t.globl __llvm_mip_end\n\t.hidden __llvm_mip_end\n__llvm_mip_end:\n"
        /* A section of its own, though of the same name: so the end above is where the counters end. */
        "\t.section __llvm_mipraw,\"awG\"," TYPE ",__llvm_mip_page_end,comdat\n\t.balign " TEXT(MIP_PAGE) "\n"
        "\t.globl __llvm_mip_page_end\n\t.hidden __llvm_mip_page_end\n__llvm_mip_page_end:\n\t.zero 1\n"
        "\t.text\n");
#endif

/* To force the linking of this file from an archive, as the proposal's driver did. */
int __llvm_mip_runtime HIDDEN;

static void put(const char *text) {
  word length = 0;
  while (text[length]) length++;
  sys_write(2, text, length);
}

static void say(const char *what, const char *path, long error) {
  char number[8];
  char *to = number + sizeof number;
  *--to = 0;
  *--to = '\n';
  error = -error;
  do *--to = (char)('0' + error % 10);
  while ((error /= 10) && to > number);
  put("[MIPRuntime]: Failed to ");
  put(what);
  put(path);
  put(": error ");
  put(to);
}

/* Writes counters as they are now. Gives the open file, or minus the error's number. */
HIDDEN long __llvm_mip_write(const char *path) {
  long file = sys_open(path, CREATE);
  const u8 *from = START;
  if (file < 0) {
    say("open ", path, file);
    return file;
  }
  while (from < END) {
    long done = sys_write(file, from, (word)(END - from));
    if (done == -4) continue; /* interrupted */
    if (done <= 0) {
      say("write to ", path, done);
      sys_close(file);
      return done ? done : -5;
    }
    from += done;
  }
  return file;
}

enum { LONGEST = 1024 };

static char *put_hash(char *to) {
  u32 hash = START[12] | (u32)START[13] << 8;
  int shift;
  for (shift = 12; shift >= 0; shift -= 4) *to++ = "0123456789abcdef"[hash >> shift & 15];
  return to;
}

/* The file's name: %h is the module's hash, %p the process. If own, the hash is put in front of the extension, unless it is there. */
static void name_file(char *to, const char *pattern, int own) {
  char *end = to + LONGEST - 24;
  const char *dot = 0, *at;
  for (at = pattern; own && *at; at++) {
    if (*at == '.') dot = at;
    if (*at == '/') dot = 0;
    if (at[0] == '%' && at[1] == 'h') own = 0;
  }
  if (!dot) dot = at;
  for (;; pattern++) {
    int special = *pattern == '%' ? pattern[1] : 0;
    if (own && pattern == dot) {
      *to++ = '.';
      to = put_hash(to);
    }
    if (!*pattern || to >= end) break;
    if (special == 'h') {
      to = put_hash(to);
      pattern++;
    } else if (special == 'p') {
      char digits[20];
      u32 pid = (u32)sys_getpid();
      int n = 0;
      do digits[n++] = (char)('0' + pid % 10);
      while (pid /= 10);
      while (n) *to++ = digits[--n];
      pattern++;
    } else {
      *to++ = *pattern;
    }
  }
  *to = 0;
}

/* What the libraries of a process agree on, and its children after a fork, but no other program: the kernel's random number for it. Nothing else can be
 * told from the sum of its four parts. */
static u32 stamp;

static void find_stamp(char **vector) {
#if defined(__APPLE__)
  (void)vector;
  stamp = (u32)sys_getpid();
#else
  word *auxiliary;
  while (*vector) vector++;
  for (auxiliary = (word *)(void *)(vector + 1); *auxiliary; auxiliary += 2)
    if (*auxiliary == 25) { /* AT_RANDOM */
      const u32 *random = (const u32 *)auxiliary[1];
      stamp = random[0] + random[1] + random[2] + random[3];
    }
#endif
}

/* Whether this process has made a file of that name: another of its libraries has. */
static int is_taken(const char *path) {
  u32 head[6];
  long file = sys_open(path, READ_ONLY);
  head[4] = ~stamp;
  sys_read(file, head, 24);
  sys_close(file);
  return head[4] == stamp && !~head[5];
}

/* The name in the environment, or the default. */
static const char *pattern_of(char **environment) {
  static const char name[] = "LLVM_MIP_PROFILE_FILENAME=";
  for (; environment && *environment; environment++) {
    const char *entry = *environment;
    word i = 0;
    while (name[i] && entry[i] == name[i]) i++;
    if (!name[i] && entry[i]) return entry + i;
  }
  return "default.mipraw";
}

#if defined(__has_include)
#if __has_include(<features.h>)
#include <features.h>
#endif
#endif
#if defined(__APPLE__)
#include <crt_externs.h>
#define environ (*_NSGetEnviron())
#elif !defined(__GLIBC__)
extern char **environ;
#endif

static char **environment;
static u8 is_mapped;

/* A device stays what it is, and is not read: that could take for ever. /dev/shm has files like any other. */
static int is_device(const char *path) {
  static const char devices[] = "/dev/", files[] = "shm/";
  word i;
  for (i = 0; devices[i]; i++)
    if (path[i] != devices[i]) return 0;
  path += i;
  for (i = 0; files[i]; i++)
    if (path[i] != files[i]) return 1;
  return 0;
}

/* Found out when the name is asked for the first time: later the file is there, and it is our own. */
static u8 is_known, with_hash;

HIDDEN void __llvm_mip_name(char *to) {
  const char *pattern = pattern_of(environment);
  name_file(to, pattern, with_hash);
  if (!is_known && !is_device(to) && is_taken(to)) {
    with_hash = 1;
    name_file(to, pattern, 1);
  }
  is_known = 1;
}

/* Before the program's own constructors. glibc hands over the environment here. */
static void begin(int argc, char **argv, char **given) {
  volatile u8 *counter; /* or it becomes a call of memset */
  (void)argc;
  (void)counter;
#if defined(__GLIBC__)
  environment = given;
  argv += argc + 1; /* where the environment was at first, with what follows it */
#else
  (void)given;
  environment = argv = environ;
#endif
  if (!IS_THERE) return;
  find_stamp(argv);
#if !defined(__APPLE__)
  /* Counters that begin as all ones. */
  if (!(__llvm_mip_header[8] & 0x20))
    for (counter = START + 32; counter < __llvm_mip_slots; counter++) *counter = 0xff;
  for (counter = START; counter < START + 32; counter++) *counter = __llvm_mip_header[counter - START];
#if MIP_SLOTS
  START[4] = 9; /* the version that has slots */
  *(u32 *)(void *)(START + 24) = MIP_SLOTS;
#endif
#endif
#if !defined(MIP_MANUAL)
  {
    char path[LONGEST], temporary[LONGEST + 16];
    char *to = temporary;
    const char *from = path;
    long file, error;
    __llvm_mip_name(path);
    if (is_device(path)) return; /* written at exit */
    /* Under another name until it is complete: the old file may be mapped by a process that still runs. */
    while (*from) *to++ = *from++;
    name_file(to, ".%p~", 0);
    /* Who made the file: all ones where others have the rest of a build's identity. */
    ((u32 *)(void *)START)[4] = stamp;
    ((u32 *)(void *)START)[5] = ~(u32)0;
    file = __llvm_mip_write(temporary);
    if (file < 0) return;
    is_mapped = sys_map(START, (word)(MAPPED_END - START), file) == 0;
    sys_close(file);
    error = sys_rename(temporary, path);
    if (error < 0) say("open ", path, error);
  }
#endif
}

#if !defined(MIP_MANUAL)
/* Pages larger than what counters are aligned to, a file system that cannot share pages, a device: then they are written at exit. */
static void finish(void) {
  char path[LONGEST];
  long file;
  if (!IS_THERE || is_mapped) return;
  __llvm_mip_name(path);
  file = __llvm_mip_write(path);
  if (file >= 0) sys_close(file);
}
#endif

#if defined(__APPLE__)
__attribute__((constructor)) static void at_begin(int argc, char **argv, char **given) { begin(argc, argv, given); }
#if !defined(MIP_MANUAL)
__attribute__((destructor)) static void at_finish(void) { finish(); }
#endif
#else
__attribute__((section(".init_array.00000"), used)) static void (*at_begin)(int, char **, char **) = begin;
#if !defined(MIP_MANUAL)
__attribute__((section(".fini_array.00000"), used)) static void (*at_finish)(void) = finish;
#endif
#endif

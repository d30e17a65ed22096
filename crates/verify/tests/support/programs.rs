//! Programs to move.

/// Programs to move: (name, source, compiler, flags, arguments).
pub const PROGRAMS: &[(&str, &str, &str, &[&str], &[&str])] = &[
    (
        "switch_pie",
        SWITCH,
        "gcc",
        &["-Wl,-q", "-pie", "-fPIE"],
        &["a", "bb", "ccc"],
    ),
    (
        "switch_cet",
        SWITCH,
        "gcc",
        &["-Wl,-q", "-pie", "-fPIE", "-fcf-protection"],
        &["x"],
    ),
    (
        "pointers_relr",
        POINTERS,
        "gcc",
        &[
            "-Wl,-q",
            "-pie",
            "-fPIE",
            "-Wl,-z,pack-relative-relocs",
            "-rdynamic",
        ],
        &["1", "2"],
    ),
    (
        "pointers_pie",
        POINTERS,
        "gcc",
        &["-Wl,-q", "-pie", "-fPIE", "-rdynamic"],
        &["1", "2"],
    ),
    (
        "throws_pie",
        THROWS,
        "g++",
        &["-Wl,-q", "-pie", "-fPIE"],
        &["a", "b", "c", "d"],
    ),
    (
        "throws_fixed",
        THROWS,
        "g++",
        &["-Wl,-q", "-no-pie", "-fno-pie"],
        &["a", "b", "c", "d"],
    ),
    (
        "tagged_pie",
        TAGGED,
        "gcc",
        &["-pie", "-fPIE", "-Wl,-q"],
        &[],
    ),
    (
        "tagged_fixed",
        TAGGED,
        "gcc",
        &["-no-pie", "-fno-pie", "-Wl,-q"],
        &[],
    ),
    (
        "a64_tagged",
        TAGGED,
        "aarch64-linux-gnu-gcc",
        &["-pie", "-fPIE", "-Wl,-q"],
        &[],
    ),
    (
        "a64_switch",
        A64,
        "aarch64-linux-gnu-gcc",
        &["-Wl,-q", "-pie", "-fPIE", TABLES],
        &["a", "bb", "ccc"],
    ),
    (
        "a64_switch_fixed",
        A64,
        "aarch64-linux-gnu-gcc",
        &["-no-pie", "-fno-pie", "-Wl,-q", TABLES],
        &["a"],
    ),
    (
        "a64_guarded",
        A64,
        "aarch64-linux-gnu-gcc",
        &[
            "-Wl,-q",
            "-pie",
            "-fPIE",
            "-mbranch-protection=standard",
            "-Wl,-z,force-bti",
            TABLES,
        ],
        &["x"],
    ),
    (
        "a64_pointers",
        POINTERS,
        "aarch64-linux-gnu-gcc",
        &["-Wl,-q", "-pie", "-fPIE", "-rdynamic"],
        &["1", "2"],
    ),
    (
        "a64_throws",
        THROWS,
        "aarch64-linux-gnu-g++",
        &["-Wl,-q", "-pie", "-fPIE"],
        &["a", "b", "c", "d"],
    ),
    (
        "a64_throws_signed",
        THROWS,
        "aarch64-linux-gnu-g++",
        &["-Wl,-q", "-pie", "-fPIE", "-mbranch-protection=standard"],
        &["a", "b", "c", "d"],
    ),
];

/// Tables for small switches too.
const TABLES: &str = "--param=case-values-threshold=4";

const A64: &str = r#"
#include <stdio.h>
#include <string.h>
__attribute__((noinline)) int choose(int a, int b) {
    switch (a) {
    case 0: return b * 3; case 1: return b - 7; case 2: return printf("two %d\n", b);
    case 3: return b ^ 0x55; case 4: return (int)strlen("four") + b; case 5: return b << 3;
    case 6: return printf("six\n"); case 7: return -b; default: return 99;
    }
}
#define BIG(n) case n: x = x * 31 + n; if (x & 1) x ^= 0x1234567 * n; else x += (x << 7) ^ n; if (x % 7 == n % 7) printf("%d %u\n", n, x); break;
__attribute__((noinline)) unsigned wide(unsigned x, unsigned k) {
        switch (k) {
            BIG(0) BIG(1) BIG(2) BIG(3) BIG(4) BIG(5) BIG(6) BIG(7) BIG(8) BIG(9) BIG(10) BIG(11) BIG(12) BIG(13) BIG(14) BIG(15)
        default: x += 5; }
    return x;
}
__attribute__((noinline)) long bits(long n) {
    long s = 0;
    for (long i = 0; i < n; i++) { if (i & 4) s += i; if (!(i & (1L << 33))) s ^= i << 2; if (s == 0) s -= 1; }
    return s;
}
static long shared; __thread long cell __attribute__((used)) = 4;
__attribute__((noinline)) long literal(long n) {
    long r, t, w;
    __asm__ volatile("ldr %0, 1f\n ldrsw %1, 1f\n adr %2, 1f\n ldr %w2, [%2, #4]\n b 2f\n .p2align 3\n1: .quad 0x123456789abcdef0\n2:\n"
                     "3: ldxr x9, %3\n add x9, x9, %4\n stxr w10, x9, %3\n cbnz w10, 3b"
                     : "=r"(r), "=r"(t), "=r"(w), "+Q"(shared) : "r"(n) : "x9", "x10", "memory");
    return r ^ t ^ w ^ shared ^ cell;
}
typedef int (*op)(int, int);
__attribute__((noinline)) op pick(int i) { return i & 1 ? choose : (op)wide; }
int main(int argc, char **argv) {
    int t = 0;
    unsigned x = argc;
    for (int i = 0; i < 12; i++) t += choose(i, argc + i);
    for (int i = 0; i < 40; i++) x = wide(x, i % 19);
    printf("%d %u %ld %ld %s\n", t, x, bits(100 * argc), literal(5), argv[argc - 1]);
    return (t + pick(argc)(3, 4) + (pick(1) == choose)) & 63;
}
"#;

/// Data are in front of a function.
const TAGGED: &str = r#"
#include <stdio.h>
#ifdef __x86_64__
#define CODE(n) "leal " #n "(%rdi),%eax\n ret\n"
#else
#define CODE(n) "add w0, w0, #" #n "\n ret\n"
#endif
asm(".text\n.p2align 4\n.globl before\n.type before,%function\nbefore:\n.cfi_startproc\n" CODE(3) ".cfi_endproc\n.size before,.-before\n"
    ".p2align 4\n.quad 0x1122334455667788\n.quad 15\n"
    ".globl tagged\n.type tagged,%function\ntagged:\n.cfi_startproc\n" CODE(1) ".cfi_endproc\n.size tagged,.-tagged\n");
extern int tagged(int), before(int);
__attribute__((noinline)) int last(int x) { return x * 5 - 2; }
int (*volatile way)(int) = tagged;
int (*volatile other)(int) = before;
int main(int argc, char **argv) { printf("%d %d %d %lld\n", way(argc), other(argc), last(argc), ((long long *)way)[-1]); return 0; }
"#;

const SWITCH: &str = r#"
#include <stdio.h>
#include <string.h>
__attribute__((noinline)) int choose(int a, int b) {
    switch (a) {
    case 0: return b * 3; case 1: return b - 7; case 2: return printf("two %d\n", b);
    case 3: return b ^ 0x55; case 4: return (int)strlen("four") + b; case 5: return b << 3;
    case 6: return printf("six\n"); case 7: return -b; default: return 99;
    }
}
__attribute__((noinline)) long loop(long n) {
    long s = 0;
    for (long i = 0; i < n; i++) { if (i % 3 == 0) s += i; else if (i % 5 == 1) s ^= i << 2; else s -= 1; }
    return s;
}
static long shared; __thread long cell __attribute__((used)) = 4;
__attribute__((noinline)) long counted(long n) {
    long r = 0;
    char room[16]; void *to = room;
    __asm__ volatile("1: add $3, %0\n loop 1b\n jrcxz 2f\n ud2\n2:\n mov $16, %%ecx\n rep stosb\n lock addq $1, %2\n addq $2, %%fs:cell@tpoff"
                     : "+r"(r), "+c"(n), "+m"(shared), "+D"(to) : "a"(0) : "memory");
    r += cell + shared;
    return r;
}
__attribute__((noinline)) double mixed(double x, int k) {
    static const double table[] = {1.5, 2.5, 3.5, 4.5};
    double y = x;
    while (k-- > 0) { y = y * table[k & 3] + 1.0; if (y > 1e6) y /= 1024.0; }
    return y;
}
int main(int argc, char **argv) {
    int t = 0;
    for (int i = 0; i < 12; i++) t += choose(i, argc + i);
    printf("%d %ld %ld %.3f %s\n", t, loop(1000 * argc), counted(5), mixed(argc, 17), argv[argc - 1]);
    return t & 63;
}
"#;

const POINTERS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
typedef int (*op)(int);
int one(int x) { if (x > 100) return x / 2; return x + 1; }
int two(int x) { for (int i = 0; i < x % 7; i++) x += i * (x & 3); return x; }
int three(int x) { return x > 4 ? one(x) * 2 : two(x) - 3; }
static op const table[] = {one, two, three, 0, three, one};
op volatile chosen = two;
__attribute__((constructor)) static void first(void) { if (getenv("FIRST")) puts("first"); chosen = three; }
__attribute__((constructor)) static void second(void) { if (chosen == three) puts("second"); }
__attribute__((destructor)) static void last(void) { puts("last"); }
__attribute__((noinline)) op pick(int i) { return i & 1 ? one : table[i % 6] ? table[i % 6] : two; }
static int compare(const void *a, const void *b) { int x = *(const int *)a, y = *(const int *)b; return x < y ? -1 : x > y; }
int main(int argc, char **argv) {
    int v[20], s = 0;
    for (int i = 0; i < 20; i++) v[i] = pick(i)(i * 37 % 23 + argc);
    qsort(v, 20, sizeof *v, compare);
    for (int i = 0; i < 20; i++) s = s * 31 + v[i];
    printf("%d %d %d\n", s, chosen(argc), pick(1) == one);
    return s & 31;
}
"#;

const THROWS: &str = r#"
#include <stdexcept>
#include <cstdio>
#include <string>
#include <cstring>
struct Noisy { const char *n; Noisy(const char *n) : n(n) {} ~Noisy() { std::printf("~%s\n", n); } };
struct Base { virtual ~Base() {} virtual int go(int x) { return x; } };
struct Derived : Base { int go(int x) override { Noisy n("go"); if (x == 3) throw std::out_of_range("three"); return x * 2; } };
__attribute__((noinline)) int thrower(int k, const char *s) {
    Noisy a("a");
    if (k == 1) throw std::runtime_error(s);
    Noisy b("b");
    if (k == 2) throw 42;
    if (k > 5) throw std::string("long");
    return k + (int)std::strlen(s);
}
__attribute__((noinline, noipa)) int wide(int a, int b, int c, int d, int e, int f, int g, int h, int k) {
    if (k == 7) throw a + b * c + d * e + f * g * h;
    return k & 1;
}
__attribute__((noinline)) int catcher(int k, const char *s, Base *o) {
    try { return thrower(k, s) + o->go(k) + wide(1, 2, 3, 4, 5, 6, 7, k, k); }
    catch (const std::out_of_range &e) { std::printf("range %s\n", e.what()); return -3; }
    catch (const std::runtime_error &e) { std::printf("runtime %s\n", e.what()); return -1; }
    catch (int i) { try { if (k) throw; } catch (int j) { return i + j; } return i; }
    catch (...) { return -9; }
}
__attribute__((noinline)) void quiet(int k) noexcept { if (k > 1000) throw k; std::puts("quiet"); }
int main(int argc, char **argv) {
    Derived d; Base *o = &d; int t = 0;
    for (int k = 0; k < 8; k++) t += catcher(k, argv[argc - 1], o);
    quiet(argc);
    std::printf("%d\n", t);
    return t & 31;
}
"#;

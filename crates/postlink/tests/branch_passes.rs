//! Passes that change calls and branches: programs do what they did, unwinding too, and faults in what was changed are
//! found.

mod support;

use std::process::Command;

use postlink_verify::mutate::Kind;
use postlink_verify::{ChangeKind, Options, Report, verify};
use support::done;
use support::faults::{changed, spoil};
use support::folder::Folder;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// Calls by pointers in registers and in memory, of one function and of several, virtual ones with exceptions through
/// them, `std::function`, `qsort`, and a pointer that changes while it is called through.
const CALLS: &str = r#"
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>
struct Shape {
  virtual ~Shape() {}
  virtual long area(long k) const = 0;
  virtual void fail(int n) { if (n % 7 == 0) throw std::runtime_error("seven"); }
};
struct Square : Shape {
  long s;
  Square(long s) : s(s) {}
  long area(long k) const override { return s * s + k; }
};
struct Circle : Shape {
  long r;
  Circle(long r) : r(r) {}
  long area(long k) const override { return 3 * r * r - k; }
  void fail(int n) override { if (n % 5 == 0) throw n; }
};
static int by_value(const void *a, const void *b) {
  long x = *(const long *)a, y = *(const long *)b;
  return x < y ? -1 : x > y;
}
typedef long (*Operation)(long, long);
static long add(long a, long b) { return a + b; }
static long sub(long a, long b) { return a - b; }
static long mul(long a, long b) { return a * b % 1000003; }
Operation table[3] = {add, sub, mul};
Operation volatile current = add;
struct Machine { long state; Operation step[4]; };
__attribute__((noinline)) long run(Operation f, long n) {
  long s = 0;
  for (long i = 0; i < n; i++) s = f(s, i);
  return s;
}
__attribute__((noinline)) long by_slot(long n) {
  long s = 1;
  for (long i = 0; i < n; i++) {
    if (i == n - 3) current = mul;
    s = current(s, i);
  }
  current = add;
  return s;
}
__attribute__((noinline)) long by_field(Machine *m, long n) {
  for (long i = 0; i < n; i++) m->state = m->step[i % 8 == 7](m->state, i);
  return m->state;
}
int main(int count, char **) {
  long n = 500 * count, total = 0;
  int caught = 0;
  std::vector<std::unique_ptr<Shape>> shapes;
  for (long i = 0; i < n; i++) {
    if (i % 10) shapes.emplace_back(new Square(i));
    else shapes.emplace_back(new Circle(i));
  }
  for (int k = 0; k < 20; k++) for (auto &s : shapes) total += s->area(k);
  for (long i = 0; i < n; i++) {
    try {
      shapes[i]->fail(i);
    } catch (const std::exception &) {
      caught++;
    } catch (int x) {
      caught += x;
    }
  }
  std::function<long(long)> f = [total](long x) { return total ^ x; };
  for (long i = 0; i < n; i++) total += f(i) & 15;
  std::vector<long> values(n);
  for (long i = 0; i < n; i++) values[i] = (i * 7919) % 1009;
  qsort(values.data(), n, sizeof(long), by_value);
  for (int k = 0; k < 30; k++) total += run(table[k % 13 == 0 ? 2 : k % 9 == 0 ? 1 : 0], n);
  for (int k = 0; k < 5; k++) total += by_slot(n);
  Machine m = {1, {add, sub, mul, add}};
  total += by_field(&m, n);
  printf("%ld %d %ld %ld\n", total, caught, values[0], values[n - 1]);
}
"#;

/// Builds `app` from C++. False where there is no compiler for this machine's kind.
fn build(folder: &Folder, source: &str, flags: &[&str]) -> bool {
    if !cfg!(target_arch = "x86_64") || Command::new("g++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: g++ for x86-64 is not installed");
        return false;
    }
    std::fs::write(folder.path("app.cc"), source).expect("the folder is ours");
    let mut compile = Command::new("g++");
    compile
        .args(["-O2", "-g", "-o", "app", "app.cc"])
        .args(flags);
    done(compile.current_dir(folder.dir()));
    true
}

fn run(folder: &Folder, program: &str) -> Vec<u8> {
    let mut command = Command::new(folder.path(program));
    command.env("POSTLINK_PROFILE", folder.path("profile"));
    done(command.current_dir(folder.dir())).stdout
}

fn postlink(folder: &Folder, arguments: &[&str]) {
    done(
        Command::new(POSTLINK)
            .args(arguments)
            .current_dir(folder.dir()),
    );
}

/// Trains `app`, optimises it, compares what is printed, and verifies. Gives input, output and the certificate.
fn optimized(folder: &Folder, options: &[&str]) -> (Vec<u8>, Vec<u8>, Report) {
    let plain = run(folder, "app");
    postlink(folder, &["instrument", "app", "-o", "counting"]);
    assert_eq!(run(folder, "counting"), plain);
    let arguments = ["optimize", "app", "-p", "profile", "-o", "fast"];
    postlink(folder, &[&arguments[..], options].concat());
    assert_eq!(run(folder, "fast"), plain, "{options:?}");
    let read = |name| std::fs::read(folder.path(name)).expect("it was made");
    let (input, output) = (read("app"), read("fast"));
    let report = verify(&input, &output, &Options::default()).expect("both files can be read");
    let failures: Vec<String> = report
        .failures()
        .map(|(f, why)| format!("{}: {why}", f.name))
        .collect();
    assert!(report.is_proved(), "{failures:?}");
    (input, output, report)
}

#[test]
fn promoted_calls_do_what_indirect_ones_did() {
    for (flags, kinds) in [
        (&["-Wl,-q"][..], 5),
        (&["-Wl,-q", "-no-pie"], 4),
        (&["-O3", "-fno-plt"], 5),
        (&["-no-pie", "-fcf-protection=full"], 4),
    ] {
        let folder = Folder::new();
        if !build(&folder, CALLS, flags) {
            return;
        }
        let options = [
            "--indirect-call-promotion=calls",
            "--icp-top-callsites=0",
            "--enable-bat",
        ];
        let (input, output, report) = optimized(&folder, &options);
        assert!(
            changed(&report, ChangeKind::PromotedCall) >= 7,
            "{flags:?}: {:?}",
            report.changes
        );
        assert!(report.assumptions.iter().any(|a| a.id == "A11"));
        let faults = [
            Kind::PromotedNumber,
            Kind::PromotedRegister,
            Kind::PromotionTurned,
            Kind::PromotionLiveRegister,
            Kind::PromotedCallElsewhere,
        ];
        let applied = spoil(&input, &output, &faults);
        assert!(applied.len() >= kinds, "{flags:?}: {applied:?}");
        // What other code may have, too: rows and call sites of both calls.
        let others = [
            Kind::CallToWrongFunction,
            Kind::BranchOffByOne,
            Kind::DroppedInstruction,
            Kind::RowBeginsLate,
            Kind::CallSiteTooShort,
            Kind::LandingPadDropped,
        ];
        spoil(&input, &output, &others);
    }
}

/// Conditional tail calls with and without a frame before them, jumps to jumps, and one branch that must not become a
/// tail call: the frame at the jump is another one.
const BRANCHES: &str = r#"
#include <cstdio>
extern "C" long left(long a, long b);
extern "C" long right(long a, long b);
extern "C" long choose(long a, long b);
extern "C" long framed(long a, long b);
extern "C" long hops(long a, long b);
extern "C" long other_frame(long a, long b);
extern "C" __attribute__((noinline)) long left(long a, long b) { return a - b; }
extern "C" __attribute__((noinline)) long right(long a, long b) { return a * b; }
asm(R"(
    .text
    .p2align 4
    .type choose,@function
    .globl choose
choose:
    .cfi_startproc
    cmp %rsi, %rdi
    jl 1f
    cmp $100, %rdi
    je 2f
    lea 1(%rdi,%rsi), %rax
    ret
1:  jmp left
2:  jmp right
    .cfi_endproc
    .size choose,.-choose

    .p2align 4
    .type framed,@function
    .globl framed
framed:
    .cfi_startproc
    push %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    mov %rdi, %rbx
    call left
    pop %rbx
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbx
    mov %rax, %rsi
    test $1, %al
    jne 3f
    ret
3:  jmp right
    .cfi_endproc
    .size framed,.-framed

    .p2align 4
    .type other_frame,@function
    .globl other_frame
other_frame:
    .cfi_startproc
    test %rdi, %rdi
    jne 9f
    ret
9:  .cfi_def_cfa_offset 16
    jmp right
    .cfi_endproc
    .size other_frame,.-other_frame

    .p2align 4
    .type hops,@function
    .globl hops
hops:
    .cfi_startproc
    xor %eax, %eax
4:  add %rdi, %rax
    test $1, %sil
    je 5f
    add $3, %rax
5:  jmp 7f
6:  dec %rsi
    jne 4b
    ret
7:  test %rsi, %rsi
    jne 8f
    ret
8:  jmp 6b
    .cfi_endproc
    .size hops,.-hops
)");
int main(int count, char **) {
  long total = 0;
  for (long i = 0; i < 300 * count; i++) {
    total = total * 3 + choose(i % 150, i % 7 * 20) + framed(i, 2 * i + 1) + hops(i, i % 5 + 1) + other_frame(i + 1, 2);
    total %= 1000000007;
  }
  printf("%ld\n", total);
}
"#;

const TAIL_CALLS: &[&str] = &[
    "--simplify-conditional-tail-calls",
    "--peepholes=double-jumps",
    "--enable-bat",
];

#[test]
fn branches_past_jumps_do_what_branches_to_them_did() {
    for flags in [&["-Wl,-q"][..], &["-no-pie"], &[]] {
        let folder = Folder::new();
        if !build(&folder, BRANCHES, flags) {
            return;
        }
        let (input, output, report) = optimized(&folder, TAIL_CALLS);
        assert_eq!(
            changed(&report, ChangeKind::ConditionalTailCall),
            3,
            "{flags:?}"
        );
        let faults = [
            Kind::InvertedCondition,
            Kind::BranchOffByOne,
            Kind::BranchToWrongBlock,
            Kind::TailCallToWrongFunction,
        ];
        assert_eq!(
            spoil(&input, &output, &faults).len(),
            faults.len(),
            "{flags:?}"
        );
        let placed = Options {
            placement_only: true,
            ..Options::default()
        };
        let report = verify(&input, &output, &placed).expect("both files can be read");
        assert_eq!(report.failed, 2, "{flags:?}");
    }
}

/// Functions of a few instructions: what they read, write and calculate; with a landing pad of indirect branches; and
/// some that must be called: they look at the stack, form an address, call, branch, or are too long.
const TINY: &str = r#"
#include <cstdio>
#include <stdexcept>
#define OWN __attribute__((noinline, noclone, noipa))
struct Point { long x, y; double w; short s; };
static Point origin = {3, 4, 0.5, -2};
static long counter;
OWN long get_y(const Point *p) { return p->y; }
OWN void set_x(Point *p, long x) { p->x = x; }
OWN double weight(const Point *p) { return p->w; }
OWN int narrow(const Point *p) { return p->s; }
OWN long next() { return ++counter; }
OWN long largest(long a, long b) { return a > b ? a : b; }
OWN const long *address(long i) { return &origin.x + i; }
OWN bool is_odd(long a) { return a & 1; }
OWN long many(long a, long b, long c) { return (a * b + c) * (a - b) * (b ^ c) + (a & c) + (b | c); }
OWN long guarded(long a) { if (a % 97 == 0) throw std::out_of_range("97"); return a; }
OWN long (*chosen(long i))(long) { return i & 1 ? guarded : nullptr; }
extern "C" long on_stack(long, long, long, long, long, long, long seventh);
asm(R"(
    .text
    .type on_stack,@function
    .globl on_stack
on_stack:
    .cfi_startproc
    mov 8(%rsp), %rax
    add %rdi, %rax
    ret
    .cfi_endproc
    .size on_stack,.-on_stack
)");
int main(int count, char **) {
  long total = 0;
  double sum = 0;
  for (long i = 0; i < 400 * count; i++) {
    set_x(&origin, largest(i, 20));
    total += get_y(&origin) + narrow(&origin) * next() + *address(i & 1) + is_odd(i);
    total ^= many(i, total & 255, next()) + on_stack(i, 2, 3, 4, 5, 6, i * 7);
    try {
      total += guarded(i) + get_y(&origin) + (chosen(i) ? 1 : 2);
    } catch (const std::exception &) {
      total -= largest(i, 50);
    }
    sum += weight(&origin);
  }
  printf("%ld %f %ld\n", total, sum, counter);
}
"#;

#[test]
fn tiny_functions_in_place_do_what_calls_of_them_did() {
    for (flags, least) in [
        (&["-Wl,-q"][..], 10),
        (&["-no-pie", "-Wl,-q"], 8),
        (&["-fcf-protection=full"], 10),
        (&["-no-pie", "-O1"], 8),
    ] {
        let folder = Folder::new();
        if !build(&folder, TINY, flags) {
            return;
        }
        let options = ["--inline-small-functions", "--enable-bat"];
        let (input, output, report) = optimized(&folder, &options);
        let sites = changed(&report, ChangeKind::InlinedCall);
        assert!((least..=14).contains(&sites), "{flags:?}: {sites}");
        assert!(report.assumptions.iter().any(|a| a.id == "A12"));
        let faults = [
            Kind::ChangedOpcode,
            Kind::ChangedRegister,
            Kind::DroppedInstruction,
            Kind::OperandOffByEight,
            Kind::RowBeginsLate,
            Kind::CallSiteTooShort,
            Kind::LandingPadDropped,
        ];
        assert!(spoil(&input, &output, &faults).len() >= 6, "{flags:?}");
    }
}

//! Static programs of the GNU tools as distributions ship them: at a fixed address, stripped, without kept relocations,
//! and with an unwind table that no program header tells of, as their start-up code registers it. A header is added,
//! and exceptions and backtraces go on; and what becomes of those in which nobody looks for one, or that have no table.

use std::path::Path;
use std::process::Command;

use postlink_verify::mutate::Kind;
use postlink_verify::{Basis, Options, Report, verify};

mod support;
use support::faults::spoil;
use support::folder::Folder;
use support::{done, is_installed};

/// The number of the header's type, `PT_GNU_EH_FRAME`.
const NUMBER: [u8; 4] = [0x50, 0xe5, 0x74, 0x64];

/// Throws through frames with cleanups, unwinds a thread that is cancelled, counts frames, leaves others by `longjmp`.
const SOURCE: &str = r#"
#include <csetjmp>
#include <cstdio>
#include <execinfo.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#define N __attribute__((noinline, noipa))
static int gone;
struct Gone { int by; ~Gone() { gone += by; } };
N int fails(int k) {
  Gone g{k};
  if (k % 3 == 0) throw std::out_of_range("three");
  if (k % 5 == 0) throw std::string("five");
  return k;
}
N int outer(int k) { Gone g{1}; try { return fails(k) + 1; } catch (std::string &s) { return (int)s.size() * 100; } }
N int frames(int depth) {
  void *list[64];
  int n = depth ? frames(depth - 1) : backtrace(list, 64);
  __asm__ volatile("");
  return n;
}
static std::jmp_buf place;
N void leaves(int k) { if (k % 7 == 0) std::longjmp(place, k + 1); }
static void cleaned(void *p) { ++*(int *)p; }
static void *waits(void *p) {
  pthread_cleanup_push(cleaned, p);
  for (;;) pthread_testcancel();
  pthread_cleanup_pop(0);
  return nullptr;
}
int main() {
  long sum = 0, caught = 0;
  int cleanups = 0;
  for (int k = 1; k < 3000; k++) {
    try { sum += outer(k); } catch (std::exception &e) { caught++; }
    if (volatile int back = setjmp(place)) sum += back; else leaves(k);
  }
  pthread_t thread;
  pthread_create(&thread, nullptr, waits, &cleanups);
  pthread_cancel(thread);
  pthread_join(thread, nullptr);
  std::printf("%ld %ld %d %d %d\n", sum, caught, gone, cleanups, frames(20) - frames(10));
}
"#;

/// Neither start files nor libraries.
const ALONE: &str = r#"
static long call(long n, long a, const void *b, long c) {
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
}
#define N __attribute__((noinline, noipa))
N unsigned mix(unsigned h, unsigned k) { return (h ^ k) * 16777619u + (h >> 7); }
N unsigned fold(unsigned n) { unsigned h = 7; for (unsigned k = 0; k < n; k++) h = mix(h, k); return h; }
N void print(unsigned h) {
  char text[9];
  for (int i = 0; i < 8; i++) text[i] = 'a' + (h >> 4 * i & 15);
  text[8] = 10;
  call(1, 1, text, 9);
}
void begins(void) { print(fold(4000)); call(60, 0, 0, 0); }
__asm__(".text\n.globl _start\n.type _start,@function\n_start:\nxor %ebp,%ebp\nand $-16,%rsp\ncall begins\nhlt\n"
  ".size _start,.-_start\n");
"#;

/// What names a personality routine.
const HANDLES: &str = r#"
void personality(void) {}
__asm__(".text\n.type handled,@function\nhandled:\n.cfi_startproc\n"
  ".cfi_personality 3,personality\nret\n.cfi_endproc\n.size handled,.-handled\n");
"#;

fn checked(folder: &Folder, input: &str, output: &str) -> (Vec<u8>, Vec<u8>, Report) {
    let read = |name: &str| std::fs::read(folder.path(name)).expect("it was written");
    let (input, output) = (read(input), read(output));
    let report = verify(&input, &output, &Options::default()).expect("both can be read");
    (input, output, report)
}

fn program(folder: &Folder, compiler: &str, source: &str, flags: &[&str]) {
    std::fs::write(folder.path("app.cpp"), source).expect("the folder is ours");
    let mut compile = Command::new(compiler);
    compile.args(["-O2", "-w", "-static"]).args(flags).arg("-o");
    done(compile.arg(folder.path("app")).arg(folder.path("app.cpp")));
}

/// Whether the file has the program header.
fn has_header(program: &Path) -> bool {
    let data = std::fs::read(program).expect("it is there");
    let word = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
    let first = u64::from_le_bytes(data[32..40].try_into().expect("eight bytes")) as usize;
    (0..usize::from(word(56))).any(|i| data[first + 56 * i..].starts_with(&NUMBER))
}

/// Counts, optimises, and proves a program that needs no arguments; everything prints the same.
fn comes_out_right(folder: &Folder, runner: &[&str]) {
    let app = folder.path("app");
    let run = |program: &Path| {
        let Some((first, rest)) = runner.split_first() else {
            return folder.run(program, &[]);
        };
        let program = program.to_str().expect("a path in UTF-8");
        folder.run(first, &[rest, &[program]].concat())
    };
    assert!(!has_header(&app));
    let plain = run(&app);
    folder.postlink(&["inspect", "app"]);
    for counters in ["atomic", "plain"] {
        let counting = [
            "instrument",
            "app",
            "-o",
            "app.inst",
            "--counters",
            counters,
        ];
        folder.postlink(&[&counting[..], &["--profile", "run.plraw"]].concat());
        assert_eq!(run(&folder.path("app.inst")), plain, "{counters}");
    }
    for preset in ["safe", "fast", "max"] {
        let optimize = ["optimize", "app", "-p", "run.plraw", "-o", "app.opt"];
        folder.postlink(&[&optimize[..], &["--preset", preset, "--move-all"]].concat());
        assert!(has_header(&folder.path("app.opt")));
        assert_eq!(run(&folder.path("app.opt")), plain, "{preset}");
    }
    let stress = ["optimize", "app", "-p", "run.plraw", "-o", "app.stress"];
    folder.postlink(&[&stress[..], &["--stress", "3"]].concat());
    assert_eq!(run(&folder.path("app.stress")), plain);
}

/// The output of the program that throws is proved, and not without its new header, nor if no code looks for one.
fn header_is_demanded(folder: &Folder, number: &[u8]) {
    let (input, output, report) = checked(folder, "app", "app.opt");
    assert!(report.is_proved() && report.basis == Basis::None);
    assert!(report.functions.len() > 100);
    let applied = spoil(&input, &output, Kind::HEADER_ADDED);
    assert!(applied.get(&Kind::UnwindHeaderLost) > Some(&0));
    // As if no code looked for a header, in both files.
    let twin = |image: &[u8]| {
        let mut image = image.to_vec();
        let mut changed = 0;
        for at in 64 + 56 * 20..image.len() - number.len() {
            if image[at..].starts_with(number) {
                image[at] ^= 0x20;
                changed += 1;
            }
        }
        assert!(changed > 0);
        image
    };
    let twins = (twin(&input), twin(&output));
    let report = verify(&twins.0, &twins.1, &Options::default()).expect("both can be read");
    let said: Vec<String> = report
        .file_failures
        .iter()
        .map(ToString::to_string)
        .collect();
    let why = "no code of it looks for one";
    assert!(said.iter().any(|text| text.contains(why)), "{said:?}");
    std::fs::write(folder.path("twin"), &twins.0).expect("the folder is ours");
    let why = "nor is there code that looks for one, so exceptions would not find what moved";
    let said = folder.refused(&["instrument", "twin", "-o", "twin.inst"]);
    assert!(said.contains(why), "{said}");
}

#[test]
fn exceptions_of_static_programs_find_new_code_by_a_header_that_is_added() {
    if !is_installed("g++") {
        return;
    }
    let folder = Folder::new();
    program(&folder, "g++", SOURCE, &["-no-pie", "-fno-pie", "-s"]);
    comes_out_right(&folder, &[]);
    header_is_demanded(&folder, &NUMBER);
}

/// Kept relocations, which name what is registered: the header is demanded where registration does not follow.
#[test]
fn a_header_that_is_added_is_demanded_with_kept_relocations_too() {
    if !is_installed("g++") {
        return;
    }
    let folder = Folder::new();
    program(&folder, "g++", SOURCE, &["-no-pie", "-fno-pie", "-Wl,-q"]);
    folder.count_run("app", "run.plraw", &[]);
    folder.postlink(&["optimize", "app", "-p", "run.plraw", "-o", "app.opt"]);
    let (input, output, report) = checked(&folder, "app", "app.opt");
    assert!(report.is_proved() && report.basis == Basis::Kept);
    let applied = spoil(&input, &output, Kind::HEADER_ADDED);
    assert!(applied.get(&Kind::UnwindHeaderLost) > Some(&0));
}

#[test]
fn exceptions_of_static_programs_for_aarch64_find_new_code_by_a_header_that_is_added() {
    let gxx = "aarch64-linux-gnu-g++";
    if ![gxx, "qemu-aarch64"].into_iter().all(is_installed) {
        return;
    }
    let folder = Folder::new();
    program(&folder, gxx, SOURCE, &["-no-pie", "-fno-pie", "-s"]);
    comes_out_right(&folder, &["qemu-aarch64"]);
    let (input, output, report) = checked(&folder, "app", "app.opt");
    assert!(report.is_proved() && report.basis == Basis::None);
    let applied = spoil(&input, &output, Kind::HEADER_ADDED);
    assert!(applied.get(&Kind::UnwindHeaderLost) > Some(&0));
}

/// Debian's busybox: sections of equal names are sorted by alignment, so what start-up code takes for the list's
/// beginning is its end. Nothing is registered.
#[test]
fn a_static_program_that_registers_an_empty_list_is_optimised() {
    if !is_installed("gcc") {
        return;
    }
    let source = ALONE.split("void begins").next().expect("a part");
    let source = source.to_owned() + "int main(void) { print(fold(4000)); return 0; }";
    let folder = Folder::new();
    let flags = [
        "-xc",
        "-no-pie",
        "-fno-pie",
        "-s",
        "-Wl,--sort-section,alignment",
    ];
    program(&folder, "gcc", &source, &flags);
    comes_out_right(&folder, &[]);
}

/// Of a program without libraries: no code looks for program headers. Where nothing can be thrown, nothing needs them.
#[test]
fn what_throws_nothing_needs_nobody_who_looks_for_headers() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let flags = [
        "-xc",
        "-no-pie",
        "-fno-pie",
        "-nostdlib",
        "-ffreestanding",
        "-fno-stack-protector",
    ];
    let moves = |flags: &[&str]| {
        let optimize = ["optimize", "app", "-p", "app.fdata", "-o", "app.opt"];
        folder.postlink(&[&optimize[..], &["--move-all"]].concat());
        assert_eq!(
            folder.run(folder.path("app.opt"), &[]),
            folder.run(folder.path("app"), &[]),
            "{flags:?}"
        );
        let (_, _, report) = checked(&folder, "app", "app.opt");
        assert!(report.is_proved() && report.basis == Basis::None);
        let names: Vec<String> = report.functions.iter().map(|f| f.name.clone()).collect();
        assert!(
            names.iter().any(|n| n == "fold") && names.iter().any(|n| n == "mix"),
            "{names:?}"
        );
    };
    let profile = "1 fold 10 1 fold 8 0 4000\n1 fold 8 1 mix 0 0 4000\n1 begins 4 1 fold 0 0 1\n";
    std::fs::write(folder.path("app.fdata"), profile).expect("the folder is ours");
    let with_table = [&flags[..], &["-fasynchronous-unwind-tables"]].concat();
    program(&folder, "gcc", ALONE, &with_table);
    moves(&with_table);
    // Somebody might catch something, by means that nothing is known of.
    program(&folder, "gcc", &(ALONE.to_owned() + HANDLES), &with_table);
    let said = folder.refused(&["optimize", "app", "-p", "app.fdata", "-o", "app.opt"]);
    assert!(
        said.contains("nor is there code that looks for one"),
        "{said}"
    );
    // No table at all: functions are known by symbols, or not.
    let without = [
        &flags[..],
        &["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"],
    ]
    .concat();
    program(&folder, "gcc", ALONE, &without);
    moves(&without);
    done(Command::new("strip").arg(folder.path("app")));
    let said = folder.refused(&["optimize", "app", "-p", "app.fdata", "-o", "app.opt"]);
    assert!(
        said.contains("neither unwind entries nor symbols of functions"),
        "{said}"
    );
}

/// Of musl's C library: nothing is thrown, and no unwinder is there.
#[test]
fn a_static_program_of_musl_is_optimised() {
    if !is_installed("musl-gcc") {
        return;
    }
    let source = ALONE.split("void begins").next().expect("a part");
    let source = source.to_owned() + "int main(void) { print(fold(4000)); return 0; }";
    let folder = Folder::new();
    program(
        &folder,
        "musl-gcc",
        &source,
        &["-xc", "-no-pie", "-fno-pie", "-s"],
    );
    comes_out_right(&folder, &[]);
}

/// A library has no header if its linker was told so. Nobody is known who finds its entries.
#[test]
fn what_is_not_static_and_has_no_header_is_refused() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let source = "int f(int x) { return x * 3; } int main(int n, char **a) { return f(n); }";
    folder.compile("app", source, &["-fPIE", "-pie", "-Wl,--no-eh-frame-hdr"]);
    let said = folder.refused(&["instrument", "app", "-o", "app.inst"]);
    assert!(
        said.contains("no program header (PT_GNU_EH_FRAME) locates"),
        "{said}"
    );
}

//! Changes of instructions: programs do what they did, the certificate counts what was changed, and faults in what was
//! changed are found.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use postlink_verify::mutate::Kind;
use postlink_verify::{ChangeKind, Check, Options, Report, Verdict, verify};
use support::faults::{changed, spoil};
use support::folder::Folder;
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// Calls of imported functions: from straight code, with a landing pad (C++), as tail calls, and lazily bound.
const SOURCE: &str = r#"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdexcept>
#include <string>
static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
__attribute__((noinline)) size_t last_of_all(const char *s) { return strlen(s + 1); }
__attribute__((noinline)) int caught(int i) {
  try {
    std::string s(static_cast<size_t>(i % 50), 'x');
    return static_cast<int>(s.at(7));
  } catch (const std::out_of_range &) {
    return -1;
  }
}
int main(int count, char **) {
  const char *names[] = {"x", "yy", "abc", "q"};
  qsort(names, 4, sizeof *names, by_name);
  double sum = 0;
  for (int i = 0; i < 300; i++) {
    char digits[32];
    snprintf(digits, sizeof digits, "%d", i * count);
    sum += sin(i * count) + static_cast<double>(last_of_all(digits)) + caught(i);
  }
  for (const char *name : names) puts(name);
  printf("%.6f\n", sum);
}
"#;

/// A machine that programs are built for.
struct Machine {
    compiler: &'static str,
    flags: &'static [&'static str],
    /// What runs its programs, if it is another than this.
    emulator: &'static [&'static str],
}

const X86_64: Machine = Machine {
    compiler: "g++",
    flags: &[],
    emulator: &[],
};

const AARCH64: Machine = Machine {
    compiler: "aarch64-linux-gnu-g++",
    flags: &[],
    emulator: &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
};

impl Machine {
    /// Builds the program; `None` where that is not possible.
    fn build(&self, folder: &Folder, source: &str, flags: &[&str]) -> Option<PathBuf> {
        let tools = [Some(&self.compiler), self.emulator.first()];
        for tool in tools.into_iter().flatten() {
            if Command::new(tool).arg("--version").output().is_err() {
                eprintln!("SKIPPED: {tool} is not installed");
                return None;
            }
        }
        std::fs::write(folder.path("app.cc"), source).expect("the folder is ours");
        let mut compile = Command::new(self.compiler);
        compile.args([
            "-O2",
            "-g",
            "-fno-builtin",
            "-Wl,-q,-z,lazy",
            "-o",
            "app",
            "app.cc",
        ]);
        done(
            compile
                .args(self.flags)
                .args(flags)
                .current_dir(folder.dir()),
        );
        Some(folder.path("app"))
    }

    fn run(&self, folder: &Folder, program: &str) -> Vec<u8> {
        let path = folder.path(program);
        let mut command = match self.emulator {
            [] => Command::new(&path),
            [tool, arguments @ ..] => {
                let mut command = Command::new(tool);
                command.args(arguments).arg(&path);
                command
            }
        };
        command.env("POSTLINK_PROFILE", folder.path("profile"));
        done(command.current_dir(folder.dir())).stdout
    }
}

fn postlink(folder: &Folder, arguments: &[&str]) -> Output {
    done(
        Command::new(POSTLINK)
            .args(arguments)
            .current_dir(folder.dir()),
    )
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Builds, optimises with `options`, compares what is printed, and verifies. Gives the files and the certificate.
fn optimized(
    machine: &Machine,
    folder: &Folder,
    source: &str,
    flags: &[&str],
    options: &[&str],
) -> Option<(Vec<u8>, Vec<u8>, Report)> {
    machine.build(folder, source, flags)?;
    let plain = machine.run(folder, "app");
    postlink(folder, &["instrument", "app", "-o", "counting"]);
    assert_eq!(machine.run(folder, "counting"), plain);
    let arguments = ["optimize", "app", "-p", "profile", "-o", "fast"];
    postlink(folder, &[&arguments[..], options].concat());
    assert_eq!(machine.run(folder, "fast"), plain, "{options:?}");
    let (input, output) = (read(&folder.path("app")), read(&folder.path("fast")));
    let report = verify(&input, &output, &Options::default()).expect("both files can be read");
    assert!(report.is_proved());
    Some((input, output, report))
}

/// Code may only be placed: what was changed is refused, and nothing else.
fn placement_alone_is_refused(input: &[u8], output: &[u8]) {
    let options = Options {
        placement_only: true,
        ..Options::default()
    };
    let report = verify(input, output, &options).expect("both files can be read");
    assert!(report.failed > 0 && report.file_failure_count == 0);
    for f in &report.functions {
        if let Verdict::Failed(failure) = &f.verdict {
            assert_eq!(failure.check, Check::Changes, "{failure}");
        }
    }
}

#[test]
fn calls_through_slots_do_what_calls_through_stubs_did() {
    for flags in [
        &[][..],
        &["-fcf-protection=full", "-Wl,-z,ibtplt"],
        &["-no-pie", "-Wl,-z,now"],
    ] {
        let folder = Folder::new();
        let Some((input, output, report)) =
            optimized(&X86_64, &folder, SOURCE, flags, &["--plt=all"])
        else {
            return;
        };
        assert!(changed(&report, ChangeKind::SlotCall) >= 10, "{flags:?}");
        placement_alone_is_refused(&input, &output);
        let kinds = [Kind::WrongSlot, Kind::SlotCallTurned];
        assert_eq!(spoil(&input, &output, &kinds).len(), 2, "{flags:?}");
    }
}

#[test]
fn calls_through_slots_leave_the_loader_what_it_needs_on_aarch64() {
    let folder = Folder::new();
    let Some((input, output, report)) = optimized(
        &AARCH64,
        &folder,
        SOURCE,
        &[],
        &["--plt=hot", "--enable-bat"],
    ) else {
        return;
    };
    assert!(changed(&report, ChangeKind::SlotCall) >= 5);
    placement_alone_is_refused(&input, &output);
    let kinds = [Kind::WrongSlot, Kind::SlotCallTurned, Kind::SlotAddressLost];
    assert_eq!(spoil(&input, &output, &kinds).len(), 3);
}

#[test]
fn presets_that_place_change_nothing() {
    for preset in ["safe", "fast", "size"] {
        let folder = Folder::new();
        let Some((_, _, report)) = optimized(&X86_64, &folder, SOURCE, &[], &["--preset", preset])
        else {
            return;
        };
        assert!(report.changes.is_empty(), "{preset}: {:?}", report.changes);
    }
}

/// Loads of constants that a compiler does not see through: of all widths, with and without sign, in calculations.
const CONSTANTS: &str = r#"
#include <stdio.h>
extern const unsigned char constant_8;
extern const signed char signed_8;
extern const unsigned short constant_16;
extern const short signed_16;
extern const int constant_32;
extern const int minus;
extern const long long constant_64, small_64, minus_64;
extern int variable;
extern const int *const volatile relocated;
__attribute__((noinline)) long long sum(long long x) {
  long long all = constant_8 + 3 * signed_8 + 5 * constant_16 + 7 * signed_16;
  all ^= x + constant_32;
  all += small_64 - minus_64;
  if (x == constant_64) all++;
  if (static_cast<int>(x) < minus) all--;
  return all * variable + *relocated + (x & small_64);
}
int main(int count, char **) {
  long long all = 0;
  for (int i = 0; i < 300; i++) all += sum(i * count - 20);
  variable = 5;
  printf("%lld\n", all + sum(constant_64));
}
"#;

const VALUES: &str = r#"
extern const unsigned char constant_8 = 200;
extern const signed char signed_8 = -7;
extern const unsigned short constant_16 = 40000;
extern const short signed_16 = -300;
extern const int constant_32 = 77;
extern const int minus = -3;
extern const long long constant_64 = 0x123456789abcdefll, small_64 = 1000, minus_64 = -9;
int variable = 3;
extern const int *const volatile relocated = &minus;
"#;

/// The constants are in a file of their own, so that the compiler does not know them.
fn constants(machine: &Machine, flags: &[&str]) -> Option<(Vec<u8>, Vec<u8>, Report)> {
    let folder = Folder::new();
    std::fs::write(folder.path("values.cc"), VALUES).expect("the folder is ours");
    let flags = [&["values.cc", "-fPIE"], flags].concat();
    let options = ["--simplify-rodata-loads", "--enable-bat"];
    optimized(machine, &folder, CONSTANTS, &flags, &options)
}

#[test]
fn loads_of_constants_become_immediates() {
    for flags in [&["-pie"][..], &["-no-pie"], &["-pie", "-O3"]] {
        let Some((input, output, report)) = constants(&X86_64, flags) else {
            return;
        };
        assert!(
            changed(&report, ChangeKind::Constant) >= 6,
            "{flags:?}: {:?}",
            report.changes
        );
        assert!(report.assumptions.iter().any(|a| a.id == "A10"));
        placement_alone_is_refused(&input, &output);
        let kinds = [Kind::WrongConstant, Kind::ConstantElsewhere];
        assert_eq!(spoil(&input, &output, &kinds).len(), 2, "{flags:?}");
    }
}

#[test]
fn loads_of_constants_become_immediates_on_aarch64() {
    let Some((input, output, report)) = constants(&AARCH64, &["-no-pie", "-fno-pie"]) else {
        return;
    };
    assert!(
        changed(&report, ChangeKind::Constant) >= 4,
        "{:?}",
        report.changes
    );
    placement_alone_is_refused(&input, &output);
    let kinds = [Kind::WrongConstant, Kind::ConstantElsewhere];
    assert_eq!(spoil(&input, &output, &kinds).len(), 2);
}

/// In front of what is there anyway nothing may run but what asks for huge pages.
fn spoilt_start_up_is_found(input: &[u8], output: &[u8]) {
    let kinds = [
        Kind::OtherAdvice,
        Kind::AdviceElsewhere,
        Kind::StartsElsewhere,
    ];
    assert_eq!(spoil(input, output, &kinds).len(), 3);
}

/// The address and the offset of `.text.hot`.
fn hot_section(output: &[u8]) -> (u64, u64) {
    let elf = postlink_elf::elf::Elf::parse(output).expect("it was proved");
    let (_, hot) = elf.section(".text.hot").expect("functions moved");
    (hot.addr, hot.offset)
}

#[test]
fn programs_ask_for_huge_pages() {
    let options = ["--hugify", "--preset", "max"];
    for (machine, flags) in [
        (&X86_64, &["-pie"][..]),
        (&X86_64, &["-no-pie"]),
        (&X86_64, &["-static"]),
        (&AARCH64, &["-pie"]),
    ] {
        let folder = Folder::new();
        let Some((input, output, report)) = optimized(machine, &folder, SOURCE, flags, &options)
        else {
            continue;
        };
        assert!(report.asks_for_huge_pages, "{flags:?}");
        let (address, offset) = hot_section(&output);
        assert_eq!(
            (address % (2 << 20), offset % (2 << 20)),
            (0, 0),
            "{flags:?}"
        );
        spoilt_start_up_is_found(&input, &output);
    }
}

const LIBRARY: &str = r#"
#include <cstdio>
#include <cstring>
static int begun;
__attribute__((constructor)) static void begin() { begun = 7; }
extern "C" __attribute__((noinline)) int of_library(int n, const char *s) {
  int all = begun;
  for (int i = 0; i < n; i++) all = all * 31 + s[static_cast<size_t>(i) % strlen(s)];
  return all;
}
"#;

const USES_LIBRARY: &str = r#"
#include <cstdio>
extern "C" int of_library(int n, const char *s);
int main() { std::printf("%d\n", of_library(1000, "abcdef")); }
"#;

#[test]
fn libraries_ask_for_huge_pages() {
    // With DT_INIT, and with DT_INIT_ARRAY alone.
    for flags in [&[][..], &["-nostartfiles"]] {
        let folder = Folder::new();
        std::fs::write(folder.path("lib.cc"), LIBRARY).expect("the folder is ours");
        let build = [
            "-O2", "-fPIC", "-shared", "-Wl,-q", "-o", "lib.so", "lib.cc",
        ];
        done(
            Command::new("g++")
                .args(build)
                .args(flags)
                .current_dir(folder.dir()),
        );
        let flags = ["./lib.so", "-Wl,-rpath,$ORIGIN"];
        let Some(_) = X86_64.build(&folder, USES_LIBRARY, &flags) else {
            return;
        };
        let plain = X86_64.run(&folder, "app");
        let input = read(&folder.path("lib.so"));
        postlink(&folder, &["instrument", "lib.so", "-o", "counting.so"]);
        std::fs::rename(folder.path("counting.so"), folder.path("lib.so")).expect("it is there");
        assert_eq!(X86_64.run(&folder, "app"), plain);
        std::fs::write(folder.path("plain.so"), &input).expect("the folder is ours");
        let arguments = [
            "optimize", "plain.so", "-p", "profile", "-o", "lib.so", "--hugify",
        ];
        postlink(&folder, &arguments);
        assert_eq!(X86_64.run(&folder, "app"), plain);
        let output = read(&folder.path("lib.so"));
        let report = verify(&input, &output, &Options::default()).expect("both can be read");
        assert!(report.is_proved() && report.asks_for_huge_pages);
        spoilt_start_up_is_found(&input, &output);
    }
}

/// Calls that must not throw have no call site, and are between two with the same one.
const BETWEEN_CALL_SITES: &str = r#"
#include <cstdio>
__attribute__((noinline)) void may_throw(int n) { if (n % 7 == 0) throw n; }
static inline __attribute__((always_inline)) void must_not_throw() noexcept { fputs("", stdout); }
__attribute__((noinline)) int twice(int n) {
  try {
    may_throw(n);
    must_not_throw();
    may_throw(n + 1);
    must_not_throw();
    may_throw(n + 2);
  } catch (int x) {
    return x;
  }
  return 1;
}
int main() {
  long all = 0;
  for (int i = 0; i < 500; i++) all += twice(i);
  std::printf("%ld\n", all);
}
"#;

#[test]
fn changed_calls_without_a_call_site_do_not_get_their_neighbours() {
    for machine in [&X86_64, &AARCH64] {
        let folder = Folder::new();
        let Some((_, _, report)) =
            optimized(machine, &folder, BETWEEN_CALL_SITES, &[], &["--plt=all"])
        else {
            continue;
        };
        let moved = report.functions.iter().filter(|f| f.name.contains("twice"));
        assert_eq!(moved.count(), 1, "it was taken back");
        assert!(changed(&report, ChangeKind::SlotCall) >= 2);
    }
}

/// A load from the file's header must stay a load: the output has another header.
#[test]
fn constants_that_the_output_has_not_are_refused() {
    if !cfg!(target_arch = "x86_64") || !is_installed("gcc") {
        return;
    }
    const PROGRAM: &str = r#"
#include <stdio.h>
static const unsigned number __attribute__((used)) = 0x5eed1234;
__attribute__((noipa)) unsigned get(unsigned x) {
  unsigned loaded;
  __asm__ volatile(".byte 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90\n mov number(%%rip), %0" : "=a"(loaded));
  return loaded ^ x;
}
int main(void) {
  unsigned s = 0;
  for (unsigned i = 0; i < 100; i++) s = s * 3 + get(i);
  printf("%u\n", s);
  return 0;
}
"#;
    let folder = Folder::new();
    folder.compile("app", PROGRAM, &["-fpie", "-pie", "-Wl,-q,--build-id=none"]);
    folder.postlink(&["instrument", "app", "-o", "counting"]);
    let mut counting = folder.command(folder.path("counting"), &[]);
    done(counting.env("POSTLINK_PROFILE", folder.path("run.plraw")));
    let options = [
        "optimize",
        "app",
        "-p",
        "run.plraw",
        "-o",
        "opt",
        "--simplify-rodata-loads",
    ];
    folder.postlink(&options);
    let read = |name: &str| std::fs::read(folder.path(name)).expect("written above");
    let (mut input, mut output) = (read("app"), read("opt"));
    let proved = |input: &[u8], output: &[u8]| {
        let report = postlink_verify::verify(input, output, &postlink_verify::Options::default());
        report.expect("both can be read").is_proved()
    };
    assert!(proved(&input, &output));

    // Now the old code, which both files have, loads where the header says where the sections are, and the new
    // code has the number of the input.
    let mut load = [0x90u8; 10];
    load[8..].copy_from_slice(&[0x8b, 0x05]);
    let find = |file: &[u8], what: &[u8]| {
        let all = file.windows(what.len());
        all.enumerate()
            .filter(|w| w.1 == what)
            .map(|w| w.0)
            .collect::<Vec<usize>>()
    };
    let at = find(&input, &load);
    assert_eq!(at.len(), 1);
    let field = at[0] + load.len();
    // The jump at the old entry is in front of it.
    assert_eq!(output[field - 2..field + 4], input[field - 2..field + 4]);
    // Offsets in the file are addresses, as far as code is concerned.
    let distance = (0x28 - (field as i64 + 4)) as i32;
    for file in [&mut input, &mut output] {
        file[field..field + 4].copy_from_slice(&distance.to_le_bytes());
    }
    let immediate = find(&output, &[0xb8, 0x34, 0x12, 0xed, 0x5e]);
    assert_eq!(immediate.len(), 1, "mov $0x5eed1234, %eax");
    let number: [u8; 4] = input[0x28..0x2c].try_into().expect("four bytes");
    assert_ne!(
        number,
        output[0x28..0x2c],
        "the sections' headers are elsewhere"
    );
    output[immediate[0] + 1..immediate[0] + 5].copy_from_slice(&number);
    assert!(
        !proved(&input, &output),
        "the number of the input's header was accepted"
    );
}

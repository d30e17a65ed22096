//! AArch64 programs, cross-compiled, instrumented and optimised on any host, and run (in an emulator, if need be).
//!
//! The start-up routine is tested here too: in x86-64's own tests it runs in programs made by hand, here in real ones.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use postlink_elf::elf::Elf;
use postlink_rewrite::counts::counts;
use postlink_rewrite::{
    Counters, InstrumentOptions, OptimizeOptions, Phases, instrument, optimize,
};

const COMPILER: &str = "aarch64-linux-gnu-gcc";
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// A switch with a table, calls through pointers, and loops; `work` is called 900 times.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int add1(int x) { return x + 1; }
static int mul3(int x) { return x * 3 % 1000; }
static int (*const volatile table[])(int) = {add1, mul3};
__attribute__((noinline)) int work(int k, int x) {
  switch (k) {
    case 0: return x + 5; case 1: return x * 7 % 999; case 2: return x - 9; case 3: return x ^ 0x55; case 4: return x << 1 & 1023;
    case 5: return x | 3; case 6: return x / 3; case 7: return x % 11; case 8: return table[x & 1](x); default: return x;
  }
}
int main(int argc, char **argv) {
  int s = 0;
  for (int i = 0; i < 900; i++) s = work(i % 11, s + i);
  printf("%d %d\n", s, argc);
  fflush(stdout);
  _exit(argc > 1);
}
"#;

struct Case {
    directory: tempfile::TempDir,
}

impl Case {
    /// A program built with some options, or nothing if there is no compiler.
    fn build(source: &str, options: &[&str]) -> Option<Case> {
        let case = Case {
            directory: tempfile::tempdir().unwrap(),
        };
        fs::write(case.path("source.c"), source).unwrap();
        let built = Command::new(COMPILER)
            .args(["-O2", "-Wl,-q", "-o", "program", "source.c"])
            .args(options)
            .current_dir(case.directory.path())
            .status();
        let emulated = cfg!(target_arch = "aarch64")
            || Command::new("qemu-aarch64")
                .arg("--version")
                .output()
                .is_ok();
        if !emulated || !built.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: {COMPILER} with its libc, or qemu-aarch64, is missing");
            return None;
        }
        Some(case)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, name: &str, profile: &str) -> Output {
        let mut command = if cfg!(target_arch = "aarch64") {
            Command::new(self.path(name))
        } else {
            let mut command = Command::new("qemu-aarch64");
            command.args(["-L", SYSROOT]).arg(self.path(name));
            command
        };
        support::run(
            command
                .current_dir(self.directory.path())
                .env("POSTLINK_PROFILE", profile),
        )
    }

    fn instrument(&self, options: &InstrumentOptions) {
        let data = fs::read(self.path("program")).unwrap();
        let elf = Elf::parse(&data).unwrap();
        instrument(
            &elf,
            options,
            &self.path("inst"),
            0o755,
            &mut Phases::default(),
        )
        .unwrap();
    }

    fn calls_of_work(&self, profile: &str) -> u64 {
        let data = fs::read(self.path("program")).unwrap();
        let elf = Elf::parse(&data).unwrap();
        let counts = counts(&elf, &read(&self.path(profile)), &mut Phases::default()).unwrap();
        counts
            .functions
            .iter()
            .find(|f| f.name == "work")
            .map_or(0, |f| f.entries)
    }
}

fn read(path: &Path) -> postlink_profile::Profile {
    postlink_profile::open(path).unwrap().read().unwrap()
}

#[test]
fn programs_of_every_kind_print_the_same_instrumented_and_optimised() {
    let kinds: [&[&str]; 5] = [
        &["-fPIE", "-pie"],
        &["-fno-pie", "-no-pie"],
        &["-static"],
        &["-fPIE", "-static-pie"],
        &["-fPIE", "-pie", "-mbranch-protection=standard"],
    ];
    for options in kinds {
        let Some(case) = Case::build(PROGRAM, options) else {
            return;
        };
        let plain = case.run("program", "");
        assert!(plain.status.success(), "{plain:?}");
        for counters in [Counters::Plain, Counters::Atomic] {
            case.instrument(&InstrumentOptions {
                counters,
                ..InstrumentOptions::default()
            });
            let _ = fs::remove_file(case.path("out"));
            let counted = case.run("inst", "out");
            assert_eq!(
                (&counted.stdout, &counted.stderr),
                (&plain.stdout, &plain.stderr),
                "{options:?}"
            );
            assert_eq!(case.calls_of_work("out"), 900, "{options:?}");
        }
        // The same file again: counts are added.
        case.run("inst", "out");
        assert_eq!(case.calls_of_work("out"), 1800);
        let data = fs::read(case.path("program")).unwrap();
        let elf = Elf::parse(&data).unwrap();
        let profile = read(&case.path("out"));
        let report = optimize(
            &elf,
            &profile,
            &OptimizeOptions::default(),
            &case.path("opt"),
            0o755,
            &mut Phases::default(),
        )
        .unwrap();
        assert!(report.moved >= 4, "{report:?}");
        assert!(report.score_after > report.score_before);
        let optimised = case.run("opt", "");
        assert_eq!(
            (&optimised.stdout, &optimised.status),
            (&plain.stdout, &plain.status),
            "{options:?}"
        );
    }
}

#[test]
fn the_start_up_routine_says_why_a_run_is_not_recorded() {
    let Some(case) = Case::build(PROGRAM, &["-static"]) else {
        return;
    };
    case.instrument(&InstrumentOptions {
        pattern: "default.%b.plraw".into(),
        ..InstrumentOptions::default()
    });
    let said = |profile: &str| {
        let output = case.run("inst", profile);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    // Without a name the pattern counts.
    assert_eq!(said(""), "");
    let named = |suffix: &str| {
        let names = fs::read_dir(case.directory.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n.ends_with(suffix)).count()
    };
    assert_eq!(named(".plraw"), 1);
    assert_eq!(said("run-%p-%%.own"), "");
    assert_eq!(named("-%.own"), 1);
    assert_eq!(
        said("missing/out"),
        "postlink: cannot open profile missing/out: errno 2 (No such file or directory); this run is not recorded\n"
    );
    fs::write(case.path("other"), "something else").unwrap();
    let belongs = "belongs to another program or build (%b in its name keeps them apart); this run is not recorded\n";
    assert_eq!(said("other"), format!("postlink: profile other {belongs}"));
    assert_eq!(fs::read(case.path("other")).unwrap(), b"something else");
    // The right size, but another header.
    assert_eq!(said("again"), "");
    let mut changed = fs::read(case.path("again")).unwrap();
    changed[60] ^= 1;
    fs::write(case.path("again"), &changed).unwrap();
    assert_eq!(said("again"), format!("postlink: profile again {belongs}"));
    assert_eq!(
        said("/dev/null"),
        "postlink: profile /dev/null is not a regular file; this run is not recorded\n"
    );
    assert!(said(&"x".repeat(5000)).contains("the name of the profile has 4096 bytes or more"));
}

#[test]
fn a_library_counts_from_its_initialiser_on() {
    let library = "static int state; __attribute__((constructor)) static void begin(void) { state = 7; }\n\
        int work(int k) { switch (k % 7) { case 0: return 1; case 1: return state; case 2: return k * 3; case 3: return k - 4; \
        case 4: return k << 2; case 5: return k ^ 9; default: return -k; } }\n";
    let Some(case) = Case::build(library, &["-fPIC", "-shared", "-Wl,-soname,libwork.so"]) else {
        return;
    };
    let host = "#include <stdio.h>\nint work(int); int main() { long s = 0; for (int i = 0; i < 700; i++) s += work(i); printf(\"%ld\\n\", s); }\n";
    fs::write(case.path("host.c"), host).unwrap();
    let linked = Command::new(COMPILER)
        .args([
            "-O2",
            "host.c",
            "-o",
            "host",
            "./program",
            "-Wl,-rpath,$ORIGIN",
        ])
        .current_dir(case.directory.path())
        .status();
    assert!(linked.unwrap().success());
    let load = |name: &str| fs::copy(case.path(name), case.path("libwork.so")).unwrap();
    load("program");
    let plain = case.run("host", "");
    assert!(plain.status.success(), "{plain:?}");
    case.instrument(&InstrumentOptions::default());
    load("inst");
    let counted = case.run("host", "out");
    assert_eq!(
        (&counted.stdout, &counted.stderr),
        (&plain.stdout, &plain.stderr)
    );
    assert_eq!(case.calls_of_work("out"), 700);
    let data = fs::read(case.path("program")).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let profile = read(&case.path("out"));
    optimize(
        &elf,
        &profile,
        &OptimizeOptions::default(),
        &case.path("opt"),
        0o755,
        &mut Phases::default(),
    )
    .unwrap();
    load("opt");
    assert_eq!(case.run("host", "").stdout, plain.stdout);
}

#[test]
fn counters_leave_exclusive_pairs_alone() {
    let program = "#include <stdio.h>\n#include <stdatomic.h>\n\
        static atomic_long total;\n\
        int main() { long failed = 0; for (long i = 0; i < 500; i++) { atomic_fetch_add(&total, i & 3); long e = i; \
        failed += !atomic_compare_exchange_weak(&total, &e, i + 1); } printf(\"%ld %ld\\n\", atomic_load(&total), failed); }\n";
    let Some(case) = Case::build(program, &["-mno-outline-atomics", "-fPIE", "-pie"]) else {
        return;
    };
    let plain = case.run("program", "");
    for counters in [Counters::Plain, Counters::Atomic] {
        case.instrument(&InstrumentOptions {
            counters,
            ..InstrumentOptions::default()
        });
        let counted = case.run("inst", "out");
        assert!(counted.status.success(), "{counted:?}");
        assert_eq!(counted.stdout, plain.stdout);
    }
}

//! Functions that data know by distances: an output in which pointers to them lead elsewhere must be refused.
//!
//! The real rewriter makes no such output. So the relocations of a program's data are taken away before it is
//! rewritten: then nothing tells of the distances, and pointers are moved. Of the program without these relocations
//! the output is proved; of the program with them it must not be.

mod support;

use std::path::Path;
use std::process::Command;

use postlink_verify::{Check, Options, Report};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const SOURCE: &str = r#"
#include <stdio.h>
typedef int (*op)(int);
__attribute__((noinline, noipa)) int apart(int x) { return x * x; }
__attribute__((noinline, noipa)) int known(int x) { return x > 100 ? x / 2 : x * 3 + 1; }
asm(".pushsection .rodata\n.balign 4\nword: .long known - .\n.popsection\n");
extern const int word __attribute__((visibility("hidden")));
static op volatile pointer = known;
int main(int argc, char **argv) {
  int sum = apart(argc);
  for (int i = 0; i < 200; i++) sum += pointer(i);
  printf("%d %d\n", sum, (const char *)&word + word == (const char *)pointer);
  return 0;
}
"#;

fn u64_at(d: &[u8], at: usize) -> usize {
    u64::from_le_bytes(d[at..at + 8].try_into().expect("eight bytes")) as usize
}

fn u32_at(d: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(d[at..at + 4].try_into().expect("four bytes"))
}

/// Makes the kept relocations of a type relocations of nothing, outside of code; says how many.
fn forget(file: &mut [u8], kind: u32) -> usize {
    const RELA: u32 = 4;
    const EXECUTED: usize = 4;
    let (table, count) = (u64_at(file, 40), u32_at(file, 60) as usize & 0xffff);
    let mut forgotten = 0;
    for i in 0..count {
        let header = table + 64 * i;
        let (at, size, about) = (
            u64_at(file, header + 24),
            u64_at(file, header + 32),
            u32_at(file, header + 44) as usize,
        );
        let of_code = || u64_at(file, table + 64 * about + 8) & EXECUTED != 0;
        // What is loaded is the loader's.
        if u32_at(file, header + 4) != RELA
            || u64_at(file, header + 8) & 2 != 0
            || about == 0
            || of_code()
        {
            continue;
        }
        for entry in (at..at + size).step_by(24) {
            if u32_at(file, entry + 8) == kind {
                file[entry + 8..entry + 12].fill(0);
                forgotten += 1;
            }
        }
    }
    forgotten
}

fn done(command: &mut Command) -> Vec<u8> {
    support::done(command).stdout
}

fn is_refused_for_identity(report: &Report) -> bool {
    let of_file = report.file_failures.iter().map(|f| f.check);
    let all = report.failures().map(|(_, f)| f.check).chain(of_file);
    all.into_iter().any(|check| check == Check::Identity)
}

/// Compiles, forgets, rewrites and checks against both; `kind`: the relocation's type.
fn check(compiler: &str, runner: Option<&str>, flags: &[&str], kind: u32) {
    for tool in [Some(compiler), runner].into_iter().flatten() {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("SKIPPED: {tool} not installed");
            return;
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("a.c"), SOURCE).expect("a file");
    let mut compile = Command::new(compiler);
    done(
        compile
            .args(["-O2", "-Wl,-q", "-fno-toplevel-reorder"])
            .args(flags)
            .arg("-o")
            .arg(at("with"))
            .arg(at("a.c")),
    );
    let read = |name: &str| std::fs::read(at(name)).expect("a program");
    let mut without = read("with");
    assert!(
        forget(&mut without, kind) > 0,
        "{compiler} {flags:?}: nothing to forget"
    );
    std::fs::copy(at("with"), at("without")).expect("a copy");
    std::fs::write(at("without"), &without).expect("a program");
    let run = |path: &Path| {
        let mut command = match runner {
            Some(runner) => Command::new(runner),
            None => Command::new("env"),
        };
        let profile = at("profile");
        done(
            command
                .arg(path)
                .env("POSTLINK_PROFILE", profile)
                .env("LLVM_MIP_PROFILE_FILENAME", at("mip")),
        )
    };
    let postlink = |command: &str, input: &str, options: &[&str], output: &str| {
        let mut postlink = Command::new(POSTLINK);
        done(
            postlink
                .arg(command)
                .arg(at(input))
                .args(options)
                .arg("-o")
                .arg(at(output)),
        );
    };
    postlink("instrument", "without", &[], "counting");
    run(&at("counting"));
    let profile = at("profile");
    let profile = profile.to_str().expect("a path of letters");
    postlink("optimize", "without", &["-p", profile], "optimised");
    postlink(
        "instrument",
        "without",
        &["--mode", "function-coverage"],
        "covering",
    );
    let with = read("with");
    for name in ["optimised", "covering"] {
        let output = read(name);
        let verify = |input: &[u8]| {
            postlink_verify::verify(input, &output, &Options::default()).expect("both can be read")
        };
        assert!(verify(&without).is_proved(), "{compiler} {flags:?} {name}");
        // AArch64 programs that count at entries keep their pointers.
        if runner.is_some() && name == "covering" {
            continue;
        }
        assert!(
            is_refused_for_identity(&verify(&with)),
            "{compiler} {flags:?} {name} is proved"
        );
    }
}

#[test]
fn pointers_that_part_from_distances_are_found() {
    const PC32: u32 = 2;
    check("gcc", None, &["-no-pie", "-fno-pie"], PC32);
    check("gcc", None, &["-pie", "-fPIE"], PC32);
}

#[test]
fn pointers_that_part_from_distances_are_found_on_aarch64() {
    const PREL32: u32 = 261;
    let flags = ["-static", "-fno-pie"];
    check(
        "aarch64-linux-gnu-gcc",
        Some("qemu-aarch64"),
        &flags,
        PREL32,
    );
}

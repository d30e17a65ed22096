//! Flat profiles beside those of `llvm-profgen`, from the same raw profile, on a program built here.
//!
//! The counters are made up, but where they are is not: runs between instructions of one function, branches
//! from instructions to entries and to anything else. Both tools must come to the same text, by probes and by
//! lines, and `llvm-profdata` must read the binary form as it reads the text.

use std::path::Path;
use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_profgen::dwarf::Lines;
use postlink_profgen::{Counters, EXTERNAL, Format, Input, Options, Program, generate};

mod common;
use common::{build, have};

/// Numbers that look random and are always the same.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// A raw profile with runs in the program's functions.
fn made_up(elf: &Elf<'_>) -> Vec<u8> {
    let lines = Lines::load(elf).unwrap();
    let program = Program::new(elf, &lines);
    let (mut counters, mut numbers) = (Counters::default(), Numbers(1));
    let ranges = program.ranges();
    for _ in 0..300 {
        let range = &ranges[numbers.below(ranges.len())];
        let code: Vec<u64> = program.between(range.start, range.end - 1).collect();
        let first = numbers.below(code.len());
        let last = first + numbers.below((code.len() - first).min(12));
        counters.run(code[first], code[last], numbers.below(1000) as u64);
        let target = match numbers.below(3) {
            0 => code[first],
            _ => ranges[numbers.below(ranges.len())].start,
        };
        let calls: Vec<u64> = code
            .iter()
            .copied()
            .filter(|at| program.is_call(*at))
            .collect();
        let from = match (numbers.below(10), calls.len()) {
            (0, _) => EXTERNAL,
            (1..8, 1..) => calls[numbers.below(calls.len())],
            _ => code[last],
        };
        counters.branch(from, target, numbers.below(500) as u64);
    }
    let mut raw = Vec::new();
    counters.write(0, "", &mut raw).unwrap();
    raw
}

fn ours(elf: &Elf<'_>, raw: &[u8], by_lines: bool, format: Format) -> Vec<u8> {
    let options = Options {
        by_lines,
        format,
        use_offset: false,
        ..Options::default()
    };
    let mut out = Vec::new();
    let lines = Lines::load(elf).unwrap();
    generate(elf, &lines, Input::Raw(raw), &options, &mut out).unwrap();
    out
}

fn theirs(program: &Path, raw: &Path, by_lines: bool) -> String {
    let out = program.with_extension("theirs");
    let status = Command::new("llvm-profgen-19")
        .args(["--format=text", "--use-offset=0"])
        .arg(format!("--binary={}", program.display()))
        .arg(format!("--unsymbolized-profile={}", raw.display()))
        .arg(format!("--output={}", out.display()))
        .args(by_lines.then_some("--use-dwarf-correlation"))
        .output()
        .unwrap();
    assert!(
        status.status.success(),
        "{}",
        String::from_utf8_lossy(&status.stderr)
    );
    std::fs::read_to_string(out).unwrap()
}

#[test]
fn flat_profiles_are_those_of_the_llvm_tool() {
    if !have("clang++-19") || !have("llvm-profgen-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for flags in [
        &["-O2", "-fuse-ld=lld", "-no-pie"][..],
        &["-O3", "-fuse-ld=bfd", "-fPIE", "-pie"],
        &[
            "-O2",
            "--target=aarch64-linux-gnu",
            "-fuse-ld=lld",
            "-no-pie",
        ],
    ] {
        if flags[1].contains("aarch64") && !have("aarch64-linux-gnu-g++") {
            continue;
        }
        let program = build(dir.path(), flags);
        let data = std::fs::read(&program).unwrap();
        let elf = Elf::parse(&data).unwrap();
        let raw = made_up(&elf);
        let raw_path = dir.path().join("raw");
        std::fs::write(&raw_path, &raw).unwrap();
        for by_lines in [false, true] {
            let theirs = theirs(&program, &raw_path, by_lines);
            let ours = String::from_utf8(ours(&elf, &raw, by_lines, Format::Text)).unwrap();
            assert!(
                theirs.lines().count() > 200,
                "{flags:?}: hardly anything to compare"
            );
            for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
                assert_eq!(
                    ours,
                    theirs,
                    "{flags:?}, by lines {by_lines}: line {}",
                    number + 1
                );
            }
            assert_eq!(ours.lines().count(), theirs.lines().count());
        }
    }
}

#[test]
fn the_compiler_and_llvm_profdata_take_both_forms() {
    if !have("clang++-19") || !have("llvm-profdata-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-O2", "-fuse-ld=lld", "-no-pie"]);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let raw = made_up(&elf);
    for by_lines in [false, true] {
        let [text, binary] = [Format::Text, Format::ExtBinary].map(|format| {
            let path = dir.path().join(format!("{format:?}"));
            std::fs::write(&path, ours(&elf, &raw, by_lines, format)).unwrap();
            let shown = Command::new("llvm-profdata-19")
                .args(["merge", "--sample", "--text"])
                .arg(&path)
                .output()
                .unwrap();
            assert!(
                shown.status.success(),
                "{}",
                String::from_utf8_lossy(&shown.stderr)
            );
            let mut compiler = Command::new("clang++-19");
            compiler
                .current_dir(dir.path())
                .args(["-O2", "-g", "-c", "main.cpp", "-o", "main.o"]);
            compiler.args((!by_lines).then_some("-fpseudo-probe-for-profiling"));
            compiler.arg(format!("-fprofile-sample-use={}", path.display()));
            let compiled = compiler.output().unwrap();
            assert!(
                compiled.status.success(),
                "{}",
                String::from_utf8_lossy(&compiled.stderr)
            );
            String::from_utf8(shown.stdout).unwrap()
        });
        assert!(text.lines().count() > 200);
        assert_eq!(text, binary);
    }
}

//! Listings beside those of `llvm-profgen --show-disassembly-only --show-pseudo-probe`, on programs built here.
//!
//! Everything but the text of instructions must be the same to the byte: descriptors, headers, addresses, probe lines and their order. Of the
//! text at least 99 lines in a hundred must be the same too. Without clang-19 and llvm-profgen-19 there is nothing to compare with.

use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_correlate::disasm::Listing;
use postlink_correlate::{dwarf, probe};
use postlink_image::elf::Elf;
use postlink_isa::x86_64::text::Syntax;

const MAIN: &str = r#"
#include <algorithm>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>
template <class T> struct Acc {
  T total{};
  void add(const T &t) { if (t > 3) total += t; else total -= t; }
};
static int helper(int x) { if (x & 1) return x * 3; for (int i = 0; i < x; i++) x ^= i; return x; }
__attribute__((noinline)) static int loc(int x) { return x % 7 ? helper(x) : -x; }
int other(int);
static int (*table[])(int) = {helper, loc, other};
std::map<std::string, int> counts;
int main(int argc, char **argv) {
  Acc<int> a; std::vector<int> v;
  for (int i = 0; i < 100000; i++) { v.push_back(loc(i)); a.add(table[i % 3](i)); }
  std::sort(v.begin(), v.end());
  try { counts["x"] += v.at(argc * 10); if (argc > 5) throw std::runtime_error("x"); }
  catch (std::exception &e) { puts(e.what()); }
  printf("%d %d\n", a.total, counts["x"]);
}
"#;
const OTHER: &str = r#"
__attribute__((noinline)) static int loc(int x) { if (x > 50) return x * 5; return x / 3; }
int other(int x) { int s = 0; for (int i = 0; i < 10; i++) s += loc(x + i); return s; }
"#;

fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        eprintln!("nothing is compared: {tool} is not installed");
    }
    found
}

fn build(dir: &Path, flags: &[&str]) -> PathBuf {
    std::fs::write(dir.join("main.cpp"), MAIN).unwrap();
    std::fs::write(dir.join("other.cpp"), OTHER).unwrap();
    let status = Command::new("clang++-19")
        .current_dir(dir)
        .args([
            "-g",
            "-fpseudo-probe-for-profiling",
            "main.cpp",
            "other.cpp",
            "-o",
            "program",
        ])
        .args(flags)
        .status()
        .unwrap();
    assert!(status.success(), "clang++-19 {flags:?}");
    dir.join("program")
}

/// A listing by postlink and by the LLVM tool.
fn listings(program: &Path, probes: bool, lines: bool, intel: bool) -> [String; 2] {
    let data = std::fs::read(program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let loaded = probe::load(&elf).unwrap().unwrap();
    let known = dwarf::Lines::load(&elf).unwrap();
    let name = program.to_str().unwrap();
    let mut ours = Vec::new();
    let listing = Listing {
        elf: &elf,
        name,
        probes: probes.then_some(&loaded),
        lines: lines.then_some(&known),
        syntax: if intel { Syntax::Intel } else { Syntax::Att },
        canonical: false,
        only: None,
    };
    listing.write(&mut ours).unwrap();
    let mut command = Command::new("llvm-profgen-19");
    command.args(["--output=/dev/null", "--show-disassembly-only"]);
    command.arg(format!("--binary={name}"));
    command.args(probes.then_some("--show-pseudo-probe"));
    command.args(lines.then_some("--show-source-locations"));
    command.args(intel.then_some("--x86-asm-syntax=intel"));
    let theirs = command.output().unwrap();
    assert!(theirs.status.success());
    [ours, theirs.stdout].map(|text| String::from_utf8(text).unwrap())
}

/// A line without the text of an instruction.
fn frame(line: &str) -> &str {
    match line.split_once(":\t") {
        Some((address, _)) if address.trim_start().bytes().all(|b| b.is_ascii_hexdigit()) => {
            address
        }
        _ => line,
    }
}

#[test]
fn listings_are_those_of_the_llvm_tool() {
    if !have("clang++-19") || !have("llvm-profgen-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for level in ["-O1", "-O2", "-O3"] {
        for more in [
            &["-fuse-ld=lld", "-no-pie"][..],
            &[
                "-fuse-ld=lld",
                "-fPIE",
                "-pie",
                "-ffunction-sections",
                "-Wl,--gc-sections",
            ],
            &["-fuse-ld=bfd", "-fPIE", "-pie"],
        ] {
            let flags = [&[level][..], more].concat();
            let program = build(dir.path(), &flags);
            let [ours, theirs] = listings(&program, true, false, false);
            assert!(
                theirs.contains("Inlined: @ main:"),
                "{flags:?}: nothing was inlined"
            );
            let (mut same, mut lines) = (0, 0);
            for (ours, theirs) in ours.lines().zip(theirs.lines()) {
                assert_eq!(frame(ours), frame(theirs), "{flags:?}");
                same += usize::from(ours == theirs);
                lines += 1;
            }
            assert_eq!(ours.lines().count(), theirs.lines().count(), "{flags:?}");
            assert!(
                same * 100 >= lines * 99,
                "{flags:?}: {same} of {lines} lines are the same"
            );
        }
    }
}

#[test]
fn source_locations_are_those_of_the_llvm_tool() {
    if !have("clang++-19") || !have("llvm-profgen-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-O2", "-fuse-ld=lld", "-no-pie"]);
    for (probes, intel) in [(false, false), (true, false), (false, true)] {
        let [ours, theirs] = listings(&program, probes, true, intel);
        let pairs = ours.lines().zip(theirs.lines());
        let wrong: Vec<_> = pairs.filter(|(ours, theirs)| ours != theirs).collect();
        let lines = ours.lines().count();
        assert_eq!(lines, theirs.lines().count());
        let shown = &wrong[..wrong.len().min(10)];
        assert!(
            wrong.len() * 100 <= lines,
            "{} of {lines}: {shown:#?}",
            wrong.len()
        );
    }
}

//! Listings beside those of `llvm-profgen --show-disassembly-only --show-pseudo-probe`, on programs built here.
//!
//! Everything but the text of instructions must be the same to the byte: descriptors, headers, addresses, probe lines and their order. Of the
//! text at least 99 lines in a hundred must be the same too. Without clang-19 and llvm-profgen-19 there is nothing to compare with.

use std::path::Path;
use std::process::Command;

use postlink_correlate::disasm::Listing;
use postlink_correlate::machine::Machine;
use postlink_correlate::{dwarf, probe};
use postlink_image::elf::Elf;
use postlink_isa::x86_64::text::Syntax;

mod common;
use common::{build, have};

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
        machine: Machine::of(&elf).unwrap(),
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

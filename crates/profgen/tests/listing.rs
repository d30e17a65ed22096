//! Listings beside those of `llvm-profgen --show-disassembly-only --show-pseudo-probe`, on programs built here.
//!
//! Everything but the text of instructions must be the same to the byte: descriptors, headers, addresses,
//! probe lines and their order. Of the text at least 99 lines in a hundred must be the same too. Without
//! clang-19 and llvm-profgen-19 there is nothing to compare with.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_isa::x86_64::text::Syntax;
use postlink_profgen::{Guid, Listing, Machine, dwarf, probe};

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

/// A listing of AArch64 by the LLVM tool, whose instruction text is given an address that is 4 too large:
/// what is relative to it is taken back.
fn corrected(line: &str) -> String {
    let relative = [
        "b", "bl", "cbz", "cbnz", "tbz", "tbnz", "adr", "ldr", "ldrsw", "prfm",
    ];
    let Some((head, target)) = line.rsplit_once("0x") else {
        return line.to_owned();
    };
    let mnemonic = line.split('\t').nth(1).unwrap_or_default();
    match u64::from_str_radix(target, 16) {
        Ok(address) if relative.contains(&mnemonic) || mnemonic.starts_with("b.") => {
            format!("{head}0x{:x}", address.wrapping_sub(4))
        }
        _ => line.to_owned(),
    }
}

#[test]
fn instructions_of_aarch64_are_those_of_the_llvm_tool() {
    if !have("clang-19") || !have("ld.lld-19") || !have("llvm-profgen-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Words of all groups but those of SVE and SME, pseudo-random but the same every time.
    let (mut source, mut state) = (String::from(".text\n.globl _start\n_start:\n"), 1u64);
    for _ in 0..50_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let word = (state >> 32) as u32;
        let group = [8, 9, 10, 11, 4, 6, 12, 14, 5, 13, 7, 15][(state >> 16) as usize % 12];
        source += &format!(".inst {:#x}\n", word & !(15 << 25) | group << 25);
    }
    std::fs::write(dir.path().join("words.s"), source).unwrap();
    let status = Command::new("clang-19")
        .current_dir(dir.path())
        .args([
            "--target=aarch64-linux-gnu",
            "-fuse-ld=lld",
            "-nostdlib",
            "-static",
        ])
        .args(["words.s", "-o", "words"])
        .status()
        .unwrap();
    assert!(status.success());
    let program = dir.path().join("words");
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let mut ours = Vec::new();
    let name = program.to_str().unwrap();
    let listing = Listing {
        elf: &elf,
        name,
        probes: None,
        lines: None,
        machine: Machine::of(&elf).unwrap(),
        syntax: Syntax::Att,
        canonical: false,
        only: None,
    };
    listing.write(&mut ours).unwrap();
    let ours = String::from_utf8(ours).unwrap();
    let theirs = Command::new("llvm-profgen-19")
        .args(["--output=/dev/null", "--show-disassembly-only"])
        .arg(format!("--binary={name}"))
        .output()
        .unwrap();
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    assert_eq!(ours.lines().count(), theirs.lines().count());
    let (mut known, mut missing, mut different) = (0, Vec::new(), Vec::new());
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(frame(ours), frame(theirs));
        if theirs.ends_with("<unknown>") {
            // Instructions of later versions of the architecture, which the tool is not told to know.
            continue;
        }
        known += 1;
        if ours.ends_with("<unknown>") {
            missing.push(theirs);
        } else if ours != theirs && *ours != corrected(theirs) {
            different.push((ours, theirs));
        }
    }
    assert!(known > 20_000, "{known}");
    let shown = &missing[..missing.len().min(10)];
    assert!(
        missing.len() * 1000 < known,
        "{} of {known}: {shown:#?}",
        missing.len()
    );
    let shown = &different[..different.len().min(10)];
    assert!(
        different.len() * 1000 < known,
        "{} of {known}: {shown:#?}",
        different.len()
    );
}

/// Each probe by the function that its code is in: (function, offset in it, number, kind, attributes,
/// discriminator, bodies from within outwards).
fn placed(data: &[u8]) -> BTreeSet<(String, u64, u32, String, u8, u32, Vec<(u64, u32)>)> {
    let elf = Elf::parse_with_objects(data).unwrap();
    let loaded = probe::load(&elf).unwrap().unwrap();
    let base = |section: u32| {
        let at = loaded.layout.iter().find(|l| l.0 == section as usize);
        at.map_or(0, |l| l.1)
    };
    let functions: Vec<(u64, u64, String)> = elf
        .symbols(SymbolTable::Static)
        .iter()
        .filter(|symbol| symbol.size > 0)
        .map(|symbol| {
            let start = symbol.value + base(symbol.section);
            let name = String::from_utf8_lossy(symbol.name).into_owned();
            (start, start + symbol.size, name)
        })
        .collect();
    let probes = &loaded.probes;
    probes
        .by_address()
        .map(|p| {
            let mut bodies = Vec::new();
            let mut at = Some(p.node);
            while let Some(id) = at {
                let node = probes.node(id);
                bodies.push((node.guid.0, node.site));
                at = probes.parent(id);
            }
            // A probe may be after the last instruction, where another function may start.
            let root = bodies.last().map_or(0, |body: &(u64, u32)| body.0);
            let own = loaded.descriptors.name(Guid(root));
            let found = functions
                .iter()
                .find(|f| f.0 <= p.address && p.address <= f.1 && f.2 == own);
            let (start, _, name) = found.expect("code is in its function");
            let offset = p.address - start;
            let kind = p.kind.to_string();
            (
                name.clone(),
                offset,
                p.index,
                kind,
                p.attributes,
                p.discriminator,
                bodies,
            )
        })
        .collect()
}

#[test]
fn probes_of_object_files_are_those_of_the_program_linked_from_them() {
    if !have("clang++-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Without debug information the compiler does not say what was inlined where.
    for flags in [
        &["-O1", "-g"][..],
        &["-O2", "-g", "-fPIE", "-ffunction-sections"],
        &["-O3", "-g"],
    ] {
        // For its sources.
        build(dir.path(), &["-O0"]);
        let clang = |args: &[&str]| {
            let mut command = Command::new("clang++-19");
            command.current_dir(dir.path()).args(args);
            assert!(command.status().unwrap().success(), "{command:?}");
        };
        let mut objects = BTreeSet::new();
        for name in ["main", "other"] {
            let source = format!("{name}.cpp");
            clang(&[flags, &["-fpseudo-probe-for-profiling", "-c", &source]].concat());
            let data = std::fs::read(dir.path().join(format!("{name}.o"))).unwrap();
            objects.append(&mut placed(&data));
        }
        clang(&["main.o", "other.o", "-o", "linked"]);
        let data = std::fs::read(dir.path().join("linked")).unwrap();
        let linked = placed(&data);
        assert!(linked.iter().any(|p| p.6.len() > 1), "nothing was inlined");
        assert_eq!(objects, linked, "{flags:?}");
    }
}

//! Faults in outputs of the large code model, whose jump tables have entries of 8 bytes and whose code makes
//! addresses of distances: the checker must find each.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_verify::mutate::{Faults, Kind};
use postlink_verify::{Options, verify};

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

fn proved(input: &[u8], output: &[u8]) -> bool {
    verify(input, output, &Options::default()).is_ok_and(|report| report.is_proved())
}

/// A case, built position-independent for the large model, and its optimised copy; `None` without a compiler.
fn pair(case: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    if Command::new("gcc").arg("--version").output().is_err() || !cfg!(target_arch = "x86_64") {
        eprintln!("SKIPPED: gcc for x86-64 is not installed");
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let mut compile = Command::new("gcc");
    compile.args(["-O2", "-w", "-mcmodel=large", "-fPIC", "-pie", "-Wl,-q"]);
    compile.args(["-fno-toplevel-reorder", "-o"]).arg(at("app"));
    done(compile.arg(source.join(case)));
    let mut postlink = Command::new(POSTLINK);
    postlink.arg("instrument").arg(at("app"));
    done(postlink.arg("-o").arg(at("counting")));
    done(Command::new(at("counting")).env("POSTLINK_PROFILE", at("profile")));
    let mut postlink = Command::new(POSTLINK);
    postlink.arg("optimize").arg(at("app")).arg("-p");
    done(postlink.arg(at("profile")).arg("-o").arg(at("fast")));
    let read = |name: &str| std::fs::read(at(name)).expect("it was written");
    Some((read("app"), read("fast")))
}

#[test]
fn wrong_entries_of_8_bytes_are_found() {
    let Some((input, output)) = pair("code_model_tables.c") else {
        return;
    };
    assert!(proved(&input, &output));
    let faults = Faults::new(&input, &output).unwrap_or_else(|what| panic!("{what}"));
    for kind in [Kind::JumpTableOff, Kind::JumpTableSwapped] {
        let mut tried = BTreeSet::new();
        for seed in 0..60 {
            let Some(mutant) = faults.inject(kind, seed) else {
                break;
            };
            if tried.insert(mutant.what.clone()) {
                assert!(!proved(&input, &mutant.image), "{}", mutant.what);
            }
        }
        // Both halves of entries of two tables.
        assert!(tried.len() >= 20, "too little to spoil: {tried:?}");
    }
}

/// The value of a symbol.
fn value(file: &[u8], name: &str) -> u64 {
    let elf = Elf::parse(file).expect("an ELF file");
    let symbols = elf.symbols(SymbolTable::Static);
    let found = symbols.iter().find(|s| s.name == name.as_bytes());
    found.map_or(0, |s| s.value)
}

#[test]
fn a_pointer_that_follows_a_function_known_by_its_distance_is_found() {
    let Some((input, output)) = pair("code_model_pointers.c") else {
        return;
    };
    assert!(proved(&input, &output));
    let (old, new) = (value(&input, "two"), value(&output, "two"));
    assert!(
        old != 0 && new != 0 && old != new,
        "it moved: {old:#x} {new:#x}"
    );
    // RELATIVE relocations with the function's address.
    const RELATIVE: u64 = 8;
    let word = |at: usize| u64::from_le_bytes(output[at..at + 8].try_into().expect("8 bytes"));
    let elf = Elf::parse(&output).expect("an ELF file");
    let (_, relocs) = elf
        .section(".rela.dyn")
        .expect("it is position-independent");
    let (from, to) = (
        relocs.offset as usize,
        (relocs.offset + relocs.size) as usize,
    );
    let places: Vec<usize> = (from..to)
        .step_by(24)
        .filter(|at| word(at + 8) == RELATIVE && word(at + 16) == old)
        .collect();
    assert!(places.len() >= 2, "the table and the variable: {places:?}");
    let follow = |places: &[usize]| {
        let mut spoilt = output.clone();
        for at in places {
            spoilt[at + 16..at + 24].copy_from_slice(&new.to_le_bytes());
        }
        spoilt
    };
    assert!(!proved(&input, &follow(&places[..1])));
    // Even if all pointers in data are the same, what code makes of the distance is not.
    assert!(!proved(&input, &follow(&places)));
}

#[test]
fn an_address_that_distances_are_added_to_and_that_follows_its_function_is_found() {
    let Some((input, output)) = pair("code_model_tables.c") else {
        return;
    };
    let (old, new) = (value(&input, "main"), value(&output, "main"));
    assert!(
        old != 0 && new != 0 && old != new,
        "it moved: {old:#x} {new:#x}"
    );
    let elf = Elf::parse(&output).expect("an ELF file");
    let at = elf.offset_of(new).expect("it is in the file") as usize;
    // `lea` of 7 bytes, which forms the address of the function's own entry.
    let forms = |i: &usize| {
        let code = &output[at + i..at + i + 7];
        let distance = i32::from_le_bytes([code[3], code[4], code[5], code[6]]);
        let target = (new + *i as u64 + 7).wrapping_add_signed(i64::from(distance));
        code[0] & 0xfb == 0x48 && code[1] == 0x8d && code[2] & 0xc7 == 5 && target == old
    };
    let i = (0..256).find(forms).expect("it forms its old address");
    let mut spoilt = output.clone();
    let distance = i32::try_from(-(i as i64) - 7).expect("it is near");
    spoilt[at + i + 3..at + i + 7].copy_from_slice(&distance.to_le_bytes());
    assert!(proved(&input, &output));
    assert!(!proved(&input, &spoilt));
}

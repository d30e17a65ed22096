//! Counts against full counting: what `show` makes of a spanning tree's few counters must be what a simulator
//! that counts every single instruction of the unchanged program has seen.
//!
//! valgrind's callgrind counts each instruction by its address (`--dump-instr=yes`). The programs are cases
//! of the directory `tests/cases`, linked at a fixed address so that addresses need no translation; they are
//! chosen for flow that breaks the conservation of counts: exceptions, `longjmp`, coroutines, computed goto,
//! tail calls. (Not signals: callgrind gives up on handlers that leave by `siglongjmp`.)

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

mod support;
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// (source, flags)
const PROGRAMS: &[(&str, &[&str])] = &[
    ("asm_loops.S", &["-O2"]),
    ("callbacks.c", &["-O2"]),
    ("cold_parts.c", &["-O2"]),
    ("computed_goto.c", &["-O1"]),
    ("computed_goto.c", &["-O3"]),
    ("coroutines.cpp", &["-O2", "-std=c++20"]),
    ("eh_cold.cpp", &["-O2"]),
    ("eh_frames.cpp", &["-O0"]),
    ("eh_frames.cpp", &["-O3"]),
    ("setjmp.c", &["-O2"]),
    (
        "slot_calls.c",
        &["-O2", "-fno-plt", "-fPIC", "-Wa,-mrelax-relocations=no"],
    ),
    ("switch_dense.c", &["-O0"]),
    ("switch_nested.c", &["-O3", "-funroll-loops"]),
    ("tail_calls.c", &["-O2"]),
    ("varargs.c", &["-O2"]),
    ("virtual_calls.cpp", &["-O2"]),
];

/// How often each instruction of the program itself ran, by address. (Programs are linked with `-z now`:
/// callgrind books a part of what binding a symbol lazily costs on the call that caused it; and without
/// `--skip-plt=no` every stub's jump.)
///
/// The file has a line `ob=FILE` where the object changes, `calls=…` in front of a line with what a call cost
/// inclusively, and lines `0xADDRESS LINE COST` for everything else.
fn instructions(profile: &str, program: &Path) -> BTreeMap<u64, u64> {
    let (mut ours, mut inclusive) = (false, false);
    let mut counts = BTreeMap::new();
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            ours = Path::new(object) == program;
        } else if line.starts_with("calls=") {
            inclusive = true;
        } else if let Some(rest) = line.strip_prefix("0x") {
            let mut fields = rest.split(' ');
            let address =
                u64::from_str_radix(fields.next().unwrap_or_default(), 16).expect("an address");
            let cost: u64 = fields
                .nth(1)
                .and_then(|cost| cost.parse().ok())
                .expect("a cost");
            if ours && !inclusive {
                *counts.entry(address).or_default() += cost;
            }
            inclusive = false;
        }
    }
    counts
}

fn check(dir: &Path, source: &str, flags: &[&str]) {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let program: PathBuf = dir.join("app");
    let compiler = if source.ends_with(".cpp") {
        "g++"
    } else {
        "gcc"
    };
    done(
        Command::new(compiler)
            .args(flags)
            .args(["-w", "-no-pie", "-Wl,-q,-z,now", "-o"])
            .arg(&program)
            .arg(cases.join(source)),
    );
    let trace = dir.join("trace");
    done(
        Command::new("valgrind")
            .args([
                "-q",
                "--tool=callgrind",
                "--dump-instr=yes",
                "--skip-plt=no",
                "--compress-strings=no",
                "--compress-pos=no",
            ])
            .arg(format!("--callgrind-out-file={}", trace.display()))
            .arg(&program)
            .current_dir(dir),
    );
    let text = std::fs::read_to_string(&trace).expect("callgrind has written it");
    let real = instructions(&text, &program);
    assert!(
        !real.is_empty(),
        "callgrind saw nothing of {}",
        program.display()
    );

    let (instrumented, profile) = (dir.join("app.inst"), dir.join("run.plraw"));
    done(
        Command::new(POSTLINK)
            .args(["instrument", "-q"])
            .arg(&program)
            .arg("-o")
            .arg(&instrumented),
    );
    done(
        Command::new(&instrumented)
            .env("POSTLINK_PROFILE", &profile)
            .current_dir(dir),
    );
    let shown = done(
        Command::new(POSTLINK)
            .args(["show", "-q", "--json", "--binary"])
            .arg(&program)
            .arg(&profile),
    );
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("show prints JSON");

    let mut blocks = 0;
    for function in shown["functions"].as_array().expect("functions") {
        let mut covered: Vec<(u64, u64)> = Vec::new();
        for block in function["blocks"].as_array().expect("blocks") {
            let number = |name: &str| block[name].as_u64().expect("a number");
            let (address, size, count) = (number("address"), number("size"), number("count"));
            // The last instruction: the first one may have a repeat prefix, which counts once for each turn.
            let seen = real.get(&number("last")).copied().unwrap_or(0);
            let first = real.get(&address).copied().unwrap_or(0);
            assert!(
                count == seen || count == first,
                "{source} {flags:?}: {} at {address:#x}: postlink counted {count}, callgrind {first} at its start and {seen} at its end",
                function["name"]
            );
            covered.push((address, address + size));
            blocks += 1;
        }
        // And no block is missing.
        let (start, size) = (
            function["address"].as_u64().expect("a number"),
            function["size"].as_u64().expect("a number"),
        );
        let near = covered
            .iter()
            .map(|c| c.1)
            .filter(|end| *end <= start + size)
            .max()
            .unwrap_or(start);
        for (address, count) in real.range(start..near) {
            assert!(
                covered.iter().any(|c| (c.0..c.1).contains(address)),
                "{source} {flags:?}: {}: callgrind saw {count} runs of {address:#x}, which is in no block that ran",
                function["name"]
            );
        }
    }
    assert!(blocks > 3, "{source} {flags:?}: only {blocks} blocks ran");
    if source == "slot_calls.c" {
        check_slots(&shown);
    }
}

/// Calls through constant slots count as often as their blocks run, without a table; only what the program
/// itself changes is recorded.
fn check_slots(shown: &serde_json::Value) {
    let list = |name: &str| {
        shown[name]
            .as_array()
            .unwrap_or_else(|| panic!("{name} in {shown}"))
            .clone()
    };
    let count = |caller: &str, callee: &str| {
        let calls = list("calls")
            .into_iter()
            .filter(|c| c["caller"] == caller && c["callee"] == callee);
        calls
            .map(|c| c["count"].as_u64().expect("a number"))
            .sum::<u64>()
    };
    assert_eq!(count("step", "twice"), 3000);
    assert_eq!(count("step", "thrice"), 1500);
    assert_eq!(count("main", "gone"), 1);
    assert_eq!(
        count("step", "one") + count("step", "two"),
        6000,
        "the hook, and what the resolver chose"
    );
    let recorded = list("sites")
        .iter()
        .filter(|s| s["caller"] == "step")
        .count();
    assert_eq!(recorded, 2, "{:?}", list("sites"));
}

#[test]
fn counts_are_those_of_a_simulator_that_counts_every_instruction() {
    if !is_installed("valgrind") {
        eprintln!(
            "SKIPPED: valgrind is not installed, so counts are not compared with full counting"
        );
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (i, (source, flags)) in PROGRAMS.iter().enumerate() {
        let dir = dir.path().join(i.to_string());
        std::fs::create_dir(&dir).expect("the directory is ours");
        let dir = dir.canonicalize().expect("it exists");
        check(&dir, source, flags);
    }
}

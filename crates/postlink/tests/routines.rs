//! Faults in the routines that instrumentation adds: what starts a program up, what gives a thread its counters, what
//! notes first calls. Each must keep registers, flags and the stack; each damage must be found, on both machines, in
//! all modes.

use std::path::Path;
use std::process::Command;

use postlink_verify::Options;

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
__attribute__((noinline)) int f(int x) { return x * 3 + 1; }
static void *run(void *a) { return (void *)(long)f(3); }
int main(int argc, char **argv) {
  pthread_t t;
  int s = 0;
  pthread_create(&t, 0, run, 0);
  pthread_join(t, 0);
  for (int i = 0; i < 100; i++) s += f(i) % 7;
  printf("%d\n", s);
  return 0;
}
"#;

/// A fault: what it is, the bytes that are looked for, and those that are put over them, at an offset.
struct Fault {
    what: &'static str,
    find: Vec<u8>,
    at: usize,
    put: Vec<u8>,
}

fn fault(what: &'static str, find: &[u8], at: usize, put: &[u8]) -> Fault {
    let (find, put) = (find.to_vec(), put.to_vec());
    Fault {
        what,
        find,
        at,
        put,
    }
}

/// `pop r15 … pop rax; popfq`, of start-up and of what gives a thread its counters; `pop rdx, rcx, rax; ret` of the
/// rest.
fn of_x86_64() -> Vec<Fault> {
    let high: Vec<u8> = (0x58..=0x5f).rev().flat_map(|pop| [0x41, pop]).collect();
    let restore = [&high[..], &[0x5f, 0x5e, 0x5d, 0x5b, 0x5a, 0x59, 0x58, 0x9d]].concat();
    let save = [0x9c, 0x50, 0x51, 0x52, 0x53, 0x55, 0x56, 0x57, 0x41, 0x50];
    let noted = [0x5a, 0x59, 0x58, 0xc3];
    vec![
        fault("two registers are exchanged", &restore, 20, &[0x59, 0x5a]),
        fault("a high register gets another's value", &restore, 1, &[0x5e]),
        fault("the flags are taken for a register", &restore, 23, &[0x58]),
        fault("a register is not restored", &restore, 19, &[0x90]),
        fault("a register is not saved", &save, 2, &[0x50]),
        fault("the flags are not saved", &save, 0, &[0x50]),
        fault(
            "the frame's register is written",
            &[0xfc, 0x49, 0x83, 0xcd, 0xff],
            1,
            &[0x48],
        ),
        fault("it returns somewhere else", &noted, 3, &[0x90]),
        fault(
            "two registers of first calls are exchanged",
            &noted,
            0,
            &[0x59, 0x5a],
        ),
        // mov rax, [rsp+72]
        fault(
            "the caller's return address is overwritten",
            &[0x48, 0x8b, 0x44, 0x24, 0x48],
            1,
            &[0x89],
        ),
    ]
}

/// The same with pairs of registers.
fn of_aarch64() -> Vec<Fault> {
    let pair = |load: u32, at: u32| {
        let word = 0xa900_03e0 | load << 22 | (8 * at / 4) << 15 | (2 * at + 1) << 10 | (2 * at);
        word.to_le_bytes()
    };
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let (load, store) = (pair(1, 5), pair(0, 5));
    let exchanged = |word: [u8; 4]| {
        let word = u32::from_le_bytes(word);
        let swapped = word & !0x7c1f | (word & 31) << 10 | word >> 10 & 31;
        swapped.to_le_bytes()
    };
    // A load from the frame, before the flags: `ldp x30, x9, [sp, #240]; msr nzcv, x9`.
    let flags = words(&[0xa94f_27fe, 0xd51b_4209]);
    vec![
        fault("two registers are exchanged", &load, 0, &exchanged(load)),
        fault(
            "two registers are saved for each other",
            &store,
            0,
            &exchanged(store),
        ),
        fault(
            "the flags are not restored",
            &flags,
            4,
            &words(&[0xd503_201f]),
        ),
        fault(
            "the return address is lost",
            &flags,
            0,
            &words(&[0xa94f_27e9]),
        ),
        fault(
            "the frame's register is written",
            &words(&[0x9280_0015]),
            0,
            &words(&[0x9280_001d]),
        ),
        // and x16, x16, #~0xfff
        fault(
            "the counter's page is not left",
            &words(&[0x9274_ce10]),
            0,
            &words(&[0xd503_201f]),
        ),
        // ldp x17, x30, [sp, #80]
        fault(
            "the return address is not put back",
            &words(&[0xa945_7bf1]),
            0,
            &words(&[0xa945_47fe]),
        ),
        // sub x0, x17, x1
        fault(
            "where the routine itself returns to is noted",
            &words(&[0xcb01_0220]),
            0,
            &words(&[0xcb01_03c0]),
        ),
    ]
}

/// All places of some bytes, those that overlap as well.
fn places_of(bytes: &[u8], find: &[u8]) -> Vec<usize> {
    let finder = memchr::memmem::Finder::new(find);
    let mut places: Vec<usize> = Vec::new();
    loop {
        let from = places.last().map_or(0, |place| place + 1);
        match finder.find(&bytes[from..]) {
            Some(at) => places.push(from + at),
            None => return places,
        }
    }
}

/// How often each fault was put into outputs of all modes; every one must have been found.
fn spoil(
    compiler: &str,
    source: &str,
    flags: &[&str],
    modes: &[&[&str]],
    faults: &[Fault],
) -> Vec<u64> {
    let mut applied = vec![0; faults.len()];
    if Command::new(compiler).arg("--version").output().is_err() {
        eprintln!("SKIPPED: {compiler} is not installed");
        return vec![1; faults.len()];
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("app.c"), source).expect("it is ours");
    let mut command = Command::new(compiler);
    command
        .args(["-O2", "-Wl,-q", "-pthread", "-o", "app", "app.c"])
        .args(flags);
    done(command.current_dir(dir.path()));
    let read = |path: &Path| std::fs::read(path).expect("a program");
    let input = read(&file("app"));
    let is_proved = |output: &[u8]| {
        postlink_verify::verify(&input, output, &Options::default()).is_ok_and(|r| r.is_proved())
    };
    let mut missed = Vec::new();
    for mode in modes {
        let mut command = Command::new(POSTLINK);
        command.args(["instrument", "app", "-o", "out"]).args(*mode);
        done(command.current_dir(dir.path()));
        let output = read(&file("out"));
        assert!(is_proved(&output), "{mode:?}");
        let report =
            postlink_verify::verify(&input, &output, &Options::default()).expect("a report");
        let counted = report.assumptions.iter().find(|a| a.id == "A14");
        assert!(
            counted.is_some_and(|a| a.functions > 0),
            "{mode:?}: A14 is not counted"
        );
        for (number, fault) in faults.iter().enumerate() {
            for place in places_of(&output, &fault.find) {
                // What the input has as well is the program's own.
                if input.get(place..place + fault.find.len()) == Some(&fault.find[..]) {
                    continue;
                }
                let mut damaged = output.clone();
                let at = place + fault.at;
                damaged[at..at + fault.put.len()].copy_from_slice(&fault.put);
                applied[number] += 1;
                if is_proved(&damaged) {
                    missed.push(format!(
                        "{mode:?}: {} at {place:#x} of the file",
                        fault.what
                    ));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
    applied
}

fn all_applied(faults: &[Fault], applied: &[u64]) {
    for (fault, count) in faults.iter().zip(applied) {
        assert!(*count > 0, "never applied: {}", fault.what);
    }
}

#[test]
fn damaged_routines_of_x86_64_are_found() {
    let modes: [&[&str]; 7] = [
        &["--counters", "per-thread"],
        &["--counters", "biased"],
        &["--counters", "atomic"],
        &["--mode", "function-coverage"],
        &["--mode", "block-coverage"],
        &["--mode", "call-graph"],
        &["--mode", "call-edges"],
    ];
    for flags in [&["-fPIE", "-pie"][..], &["-fPIC", "-shared"], &["-no-pie"]] {
        let modes = if flags.contains(&"-shared") {
            &modes[1..]
        } else {
            &modes[..]
        };
        let faults = of_x86_64();
        let applied = spoil("gcc", SOURCE, flags, modes, &faults);
        all_applied(&faults, &applied);
    }
}

/// No search table says where functions are, and call counters are in stubs all the same.
#[test]
fn damaged_routines_of_static_programs_that_count_calls_are_found() {
    let modes: [&[&str]; 2] = [&["--mode", "call-graph"], &["--mode", "call-edges"]];
    for compiler in ["gcc", "musl-gcc"] {
        let faults = of_x86_64();
        let applied = spoil(compiler, SOURCE, &["-static"], &modes, &faults);
        all_applied(&faults, &applied);
    }
}

#[test]
fn damaged_routines_of_aarch64_are_found() {
    let modes: [&[&str]; 5] = [
        &["--counters", "atomic"],
        &["--mode", "function-coverage"],
        &["--mode", "block-coverage"],
        &["--mode", "call-graph"],
        &["--mode", "call-edges"],
    ];
    for flags in [&["-fPIE", "-pie"][..], &["-fPIC", "-shared"]] {
        let faults = of_aarch64();
        let applied = spoil("aarch64-linux-gnu-gcc", SOURCE, flags, &modes, &faults);
        all_applied(&faults, &applied);
    }
}

/// Functions are emitted anew where direct branches do not reach all code, and the checker follows what counts in them
/// into the routine.
#[test]
fn damaged_routines_of_programs_with_more_code_than_branches_reach_are_found() {
    let far = "asm(\".pushsection .text.sorted.1, \\\"ax\\\", %progbits\\n .zero 136314880\\n .popsection\");";
    let modes: [&[&str]; 2] = [&["--mode", "call-graph"], &["--mode", "call-edges"]];
    let mut faults = of_aarch64();
    // Those of the routine that notes first calls, and of start-up the first: it is the same elsewhere.
    let of_calls = faults.split_off(faults.len() - 3);
    faults.truncate(1);
    faults.extend(of_calls);
    let source = [far, SOURCE].concat();
    let applied = spoil("aarch64-linux-gnu-gcc", &source, &[], &modes, &faults);
    all_applied(&faults, &applied);
}

//! Identical functions are folded: programs do what they did, functions keep different addresses, and the checker
//! refuses a function that is told to be identical to another and is not.

mod support;

use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_verify::{ChangeKind, DebugState, Options, Report, Verdict, verify};
use support::faults::changed;
use support::folder::Folder;
use support::{done, is_installed};

/// A machine that programs are built for: compiler, and what runs its programs.
type Machine = (&'static str, &'static [&'static str]);

const X86_64: Machine = ("g++", &[]);
const AARCH64: Machine = (
    "aarch64-linux-gnu-g++",
    &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
);

/// Templates of which several instances have the same code: leaves, callers of those, functions that call themselves
/// and each other, tail calls, landing pads. And functions that differ in one thing.
const SOURCE: &str = r#"
#include <cstdio>
#include <stdexcept>
#define APART __attribute__((noipa))
struct A { long v; };
struct B { long v; };
template <class T> APART long mix(long v) { return (v ^ v >> 3) * 0x1234567; }
template <class T> APART long sum(const T *t, int n) {
  long all = 0;
  for (int i = 0; i < n; i++) all += t[i].v * 3 + mix<T>(t[i].v);
  return all;
}
template <class T> APART long again(const T *t, int n) { return n == 0 ? 1 : mix<T>(t->v) + again<T>(t, n - 1) * 3; }
template <class T> long odd(long n);
template <class T> APART long even(long n) { return n == 0 ? 1 : odd<T>(n - 1) + 2; }
template <class T> APART long odd(long n) { return n == 0 ? 0 : even<T>(n - 1) + 2; }
template <class T> APART long tail(long n) { return mix<T>(n + 7); }
long total;
template <class T> APART void add(long n) { total += n; }
APART void may_throw(int i) {
  if (i % 5 == 1) throw i;
  if (i % 5 == 2) throw std::out_of_range("x");
}
template <class T> APART int caught(int i) {
  try {
    may_throw(i);
    may_throw(i + 3);
  } catch (int x) {
    return x;
  } catch (const std::out_of_range &) {
    return -2;
  }
  return 1;
}
// These differ from each other in one thing.
long other_total;
APART void add_other(long n) { other_total += n; }
APART long mix_other(long v) { return (v ^ v >> 3) * 0x1234568; }
APART long tail_other(long n) { return mix_other(n + 7); }
APART int caught_other(int i) {
  try {
    may_throw(i);
    may_throw(i + 3);
  } catch (unsigned x) {
    return x;
  } catch (const std::out_of_range &) {
    return -2;
  } catch (...) {
    return 9;
  }
  return 1;
}
long (*volatile pointers[])(long) = {mix<A>, mix<B>, tail<A>, tail<B>};
int main() {
  A a[50];
  B b[50];
  for (int i = 0; i < 50; i++) a[i].v = b[i].v = i * 77;
  long all = 0;
  for (int i = 0; i < 200; i++) {
    all += sum(a, i % 50) - 2 * sum(b, i % 49) + again(a, i % 9) * again(b, i % 8);
    all += even<A>(i) + 3 * even<B>(i) + odd<A>(i) + tail<A>(i) - tail<B>(i * 2) + tail_other(i);
    add<A>(i);
    add<B>(2 * i);
    add_other(i);
    all += caught<A>(i) * 5 + caught<B>(i + 1) + caught_other(i);
  }
  for (int i = 0; i < 4; i++) all += pointers[i](i + 40);
  std::printf("%ld %ld %ld\n", all, total, other_total);
  std::printf("%d %d\n", pointers[0] == pointers[1], pointers[2] == pointers[3]);
}
"#;

fn read(folder: &Folder, name: &str) -> Vec<u8> {
    std::fs::read(folder.path(name)).expect("it was written")
}

fn run(folder: &Folder, (_, emulator): Machine, name: &str) -> Vec<u8> {
    let path = folder.path(name);
    let mut command = match emulator {
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

/// Builds and counts a program; `None` where that is not possible.
fn counted(folder: &Folder, machine: Machine, flags: &[&str]) -> Option<Vec<u8>> {
    for tool in [Some(&machine.0), machine.1.first()].into_iter().flatten() {
        if !is_installed(tool) {
            return None;
        }
    }
    std::fs::write(folder.path("app.cc"), SOURCE).expect("the folder is ours");
    let mut compile = Command::new(machine.0);
    compile.args(["-O2", "-g", "-o", "app", "app.cc"]);
    done(compile.args(flags).current_dir(folder.dir()));
    let plain = run(folder, machine, "app");
    folder.postlink(&["instrument", "app", "-o", "counting"]);
    assert_eq!(run(folder, machine, "counting"), plain);
    Some(plain)
}

/// Optimises the program with options, and demands that it does what it did and is proved.
fn folded(folder: &Folder, machine: Machine, plain: &[u8], options: &[&str]) -> Report {
    // Where the linker kept no relocations, most of them would stay.
    let arguments = [
        "optimize",
        "app",
        "-p",
        "profile",
        "-o",
        "opt",
        "--move-all",
    ];
    folder.postlink(&[&arguments[..], options].concat());
    assert_eq!(run(folder, machine, "opt"), plain, "{options:?}");
    let (input, output) = (read(folder, "app"), read(folder, "opt"));
    let report = verify(&input, &output, &Options::default()).expect("both can be read");
    assert!(report.is_proved(), "{options:?}");
    report
}

/// Names of functions for which the new code of others stands, without what templates add, ascending.
fn names(output: &[u8], report: &Report) -> Vec<String> {
    let elf = Elf::parse(output).expect("it was proved");
    let note = postlink_elf::note::Note::read(&elf).expect("it was proved");
    let note = note.expect("postlink wrote it");
    let folded = note.functions.iter().filter(|f| f.new.is_empty());
    let mut names: Vec<String> = folded
        .map(|f| {
            let function = report.functions.iter().find(|r| r.old == f.entry);
            let name = &function.expect("each has a verdict").name;
            let known = [
                "mix", "sum", "again", "even", "odd", "tail", "add", "caught",
            ];
            let known = known.into_iter().find(|k| name.contains(k));
            known.unwrap_or(name).to_owned()
        })
        .collect();
    names.sort_unstable();
    names
}

const ALL: [&str; 8] = [
    "add", "again", "caught", "even", "mix", "odd", "sum", "tail",
];

#[test]
fn one_of_several_identical_functions_stands_for_all() {
    for machine in [X86_64, AARCH64] {
        for flags in [&["-Wl,-q"][..], &["-Wl,-q", "-no-pie"], &[]] {
            let folder = Folder::new();
            let Some(plain) = counted(&folder, machine, flags) else {
                continue;
            };
            let report = folded(&folder, machine, &plain, &["--icf=all"]);
            let output = read(&folder, "opt");
            assert_eq!(names(&output, &report), ALL, "{machine:?} {flags:?}");
            assert_eq!(changed(&report, ChangeKind::FoldedFunction), 8);
            let counted = report.assumptions.iter().find(|a| a.id == "A15");
            assert_eq!(counted.map(|a| a.functions), Some(8));
            let debug = report.debug.map(|d| d.state);
            assert_eq!(debug, Some(DebugState::Updated), "{machine:?} {flags:?}");
            // With everything that changes instructions, tables for profiles, and random layouts.
            let all = [
                "--icf",
                "--preset",
                "max",
                "--enable-bat",
                "--icp=calls",
                "--dyno-stats",
            ];
            folded(&folder, machine, &plain, &all);
            for seed in ["1", "2", "3"] {
                folded(&folder, machine, &plain, &["--icf", "--stress", seed]);
            }
            let report = folded(&folder, machine, &plain, &["--icf=safe"]);
            // What tail-calls has no return address in it either.
            let output = read(&folder, "opt");
            assert_eq!(names(&output, &report), ["add", "mix", "tail"]);
        }
    }
}

#[test]
fn nothing_is_folded_unless_it_is_asked_for() {
    let folder = Folder::new();
    let Some(plain) = counted(&folder, X86_64, &["-Wl,-q"]) else {
        return;
    };
    for options in [
        &["--preset", "safe"][..],
        &["--preset", "size"],
        &["--icf=none"],
    ] {
        let report = folded(&folder, X86_64, &plain, options);
        assert_eq!(changed(&report, ChangeKind::FoldedFunction), 0);
    }
}

#[test]
fn the_front_end_folds_with_and_without_a_profile() {
    let folder = Folder::new();
    let Some(plain) = counted(&folder, X86_64, &["-Wl,-q"]) else {
        return;
    };
    folder.postlink(&["links", "bin"]);
    for (options, least) in [
        (&["-data=profile", "-icf=1"][..], 8),
        (
            &[
                "-data=profile",
                "-icf",
                "-reorder-functions=cdsort",
                "-reorder-blocks=ext-tsp",
            ],
            8,
        ),
        (&["-data=profile", "-icf=safe"], 3),
        (&["-icf=all"], 8),
    ] {
        let mut command = Command::new(folder.path("bin/llvm-bolt"));
        command.args(["app", "-o", "opt"]).args(options);
        let said = done(command.current_dir(folder.dir())).stdout;
        let said = String::from_utf8_lossy(&said);
        let folded = said.split("BOLT-INFO: ICF folded ").nth(1);
        let folded = folded.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        assert!(folded.is_some_and(|n| n >= least), "{options:?}: {said}");
        assert_eq!(run(&folder, X86_64, "opt"), plain, "{options:?}");
    }
}

/// What is to be skipped keeps its code, and calls of it lead there.
#[test]
fn functions_that_are_left_out_are_not_folded() {
    let folder = Folder::new();
    let Some(plain) = counted(&folder, X86_64, &["-Wl,-q"]) else {
        return;
    };
    folder.postlink(&["links", "bin"]);
    let folds = |skip: &[&str]| {
        let mut command = Command::new(folder.path("bin/llvm-bolt"));
        command.args(["app", "-o", "opt", "-data=profile", "-icf=all"]);
        let said = done(command.args(skip).current_dir(folder.dir())).stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(run(&folder, X86_64, "opt"), plain, "{skip:?}");
        let folded = said.split("BOLT-INFO: ICF folded ").nth(1);
        let folded = folded.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        folded.unwrap_or_else(|| panic!("{said}"))
    };
    // Both instances of `add`: neither is folded, and neither stands for the other.
    assert_eq!(folds(&["-skip-funcs=_Z3addI.*"]) + 1, folds(&[]));
}

/// Where an address is in a file.
fn offset(file: &[u8], address: u64) -> usize {
    let elf = Elf::parse(file).expect("it was proved");
    elf.offset_of(address).expect("it is in the file") as usize
}

/// The address and size of the function whose name has this in it, that was folded.
fn body(input: &[u8], output: &[u8], name: &str) -> (u64, u64) {
    let elf = Elf::parse(output).expect("it was proved");
    let note = postlink_elf::note::Note::read(&elf).expect("it was proved");
    let note = note.expect("postlink wrote it");
    let input = Elf::parse(input).expect("it was proved");
    let symbols = input.symbols(SymbolTable::Static);
    let named = |at: u64| {
        let mut of = symbols.iter().filter(|s| s.value == at && s.kind == 2);
        of.any(|s| String::from_utf8_lossy(s.name).contains(name))
    };
    let mut folded = note.functions.iter().filter(|f| f.new.is_empty());
    let found = folded.find(|f| named(f.entry)).expect("it was folded");
    found.old[0]
}

/// Changes a byte of the old image in both files. Gives whether the function at an entry is refused then.
fn is_refused(files: (&[u8], &[u8]), entry: u64, address: u64, by: u8) -> bool {
    let (mut input, mut output) = (files.0.to_vec(), files.1.to_vec());
    for file in [&mut input, &mut output] {
        let at = offset(file, address);
        file[at] ^= by;
    }
    match verify(&input, &output, &Options::default()) {
        Err(_) => true,
        Ok(report) => {
            let of = report.functions.iter().find(|f| f.old == entry);
            of.is_none_or(|f| matches!(f.verdict, Verdict::Failed(_)))
        }
    }
}

/// Where the longest jump over an entry ends.
const JUMP: u64 = 9;

/// Operations, immediates, callees, addresses of data: each is in some of these bytes.
fn every_byte_is_compared(machine: Machine, protection: &str) {
    let folder = Folder::new();
    let Some(plain) = counted(&folder, machine, &["-Wl,-q", "-g0", protection]) else {
        return;
    };
    folded(&folder, machine, &plain, &["--icf=all"]);
    let (input, output) = (read(&folder, "app"), read(&folder, "opt"));
    let files = (&input[..], &output[..]);
    for name in ALL {
        let (entry, size) = body(&input, &output, name);
        let elf = Elf::parse(&input).expect("it was proved");
        let code = elf.bytes_at(entry, size).expect("it is in the file");
        let mut accepted = Vec::new();
        for at in entry + JUMP..entry + size {
            if !is_refused(files, entry, at, 1) {
                accepted.push(at - entry);
            }
        }
        // Nops between blocks, which do nothing, or to which nothing comes.
        assert!(accepted.len() < 12, "{name}: {accepted:?} of {code:02x?}");
    }
}

#[test]
fn a_function_that_differs_in_any_byte_is_refused() {
    every_byte_is_compared(X86_64, "-fcf-protection=none");
}

#[test]
fn a_function_that_differs_in_any_byte_is_refused_on_aarch64() {
    every_byte_is_compared(AARCH64, "-mbranch-protection=none");
}

#[test]
fn a_function_that_differs_in_a_landing_pad_or_a_type_is_refused() {
    let folder = Folder::new();
    let Some(plain) = counted(&folder, X86_64, &["-Wl,-q", "-g0"]) else {
        return;
    };
    folded(&folder, X86_64, &plain, &["--icf=all"]);
    let (input, output) = (read(&folder, "app"), read(&folder, "opt"));
    let (entry, _) = body(&input, &output, "caught");
    let elf = Elf::parse(&input).expect("it was proved");
    let frames = EhFrame::parse(&elf).expect("it was proved");
    let fde = frames.fdes.iter().find(|f| f.start == entry);
    let table = fde.and_then(|f| f.lsda).expect("it catches");
    let (_, section) = elf.section(".gcc_except_table").expect("it is there");
    let bytes = &elf.section_data(section)[(table - section.addr) as usize..];
    // No base of landing pads; types; call sites in LEB128, in which small numbers are one byte.
    assert_eq!((bytes[0], bytes[3]), (0xff, 1));
    assert!(bytes[2] < 0x80 && bytes[4] < 0x80);
    let (sites, types) = (5, 3 + u64::from(bytes[2]));
    let mut pads = 0;
    for site in (sites..sites + u64::from(bytes[4])).step_by(4) {
        let [pad, action] = [2, 3].map(|i| bytes[site as usize + i]);
        assert!(pad < 0x80);
        if pad != 0 {
            pads += 1;
            for at in [table + site + 2, table + site + 3] {
                assert!(
                    is_refused((&input, &output), entry, at, 4),
                    "{pad:x} {action}"
                );
            }
        }
    }
    assert!(pads > 0);
    // Two types, each of four bytes in front of where they are counted from.
    for at in [types - 4, types - 8] {
        assert!(
            is_refused((&input, &output), entry, table + at, 8),
            "type at {at}"
        );
    }
    // Whether it changes unwind rows: the first instruction of the entry that is not a nop.
    let (from, to) = (fde.expect("found above"), entry);
    let rows = from.instructions_addr();
    assert!(is_refused((&input, &output), to, rows, 1), "rows");
}

/// Two functions would have one address.
#[test]
fn pointers_to_folded_functions_must_not_lead_to_what_stands_for_them() {
    let folder = Folder::new();
    let flags = ["-Wl,-q", "-g0", "-no-pie", "-fno-pie"];
    let Some(plain) = counted(&folder, X86_64, &flags) else {
        return;
    };
    let report = folded(&folder, X86_64, &plain, &["--icf=all"]);
    let (input, output) = (read(&folder, "app"), read(&folder, "opt"));
    for name in ["mix", "tail"] {
        let (entry, _) = body(&input, &output, name);
        let elf = Elf::parse(&output).expect("it was proved");
        let (_, data) = elf.section(".data").expect("pointers are in it");
        let words = elf.section_data(data).chunks_exact(8);
        let place = words.zip(0..).find(|(w, _)| **w == entry.to_le_bytes());
        let (_, place) = place.expect("there is a pointer that keeps its value");
        let at = data.offset as usize + 8 * place;
        let own = report.functions.iter().find(|f| f.old == entry);
        let new = own.expect("each has a verdict").new;
        let other = report
            .functions
            .iter()
            .find(|f| f.new == new && f.old != entry);
        for wrong in [new, other.expect("it stands for both").old] {
            let mut image = output.clone();
            image[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
            let report = verify(&input, &image, &Options::default()).expect("both can be read");
            assert!(!report.is_proved(), "{name}: {entry:#x} became {wrong:#x}");
        }
    }
}

/// Another immediate, another callee, other data, another type that is caught.
#[test]
fn functions_that_are_not_identical_are_not_folded() {
    let folder = Folder::new();
    let Some(plain) = counted(&folder, X86_64, &["-Wl,-q"]) else {
        return;
    };
    let report = folded(&folder, X86_64, &plain, &["--icf=all"]);
    let output = read(&folder, "opt");
    let elf = Elf::parse(&output).expect("it was proved");
    let note = postlink_elf::note::Note::read(&elf).expect("it was proved");
    let note = note.expect("postlink wrote it");
    for name in ["add_other", "mix_other", "tail_other", "caught_other"] {
        let mut named = report.functions.iter().filter(|f| f.name.contains(name));
        let old = named.next().expect("it ran").old;
        let own = note.functions.iter().find(|f| f.entry == old);
        assert!(
            own.is_some_and(|f| !f.new.is_empty()),
            "{name} has code of its own"
        );
    }
}

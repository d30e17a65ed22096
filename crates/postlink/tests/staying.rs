//! Code that stays and forms addresses of what moved: each change in it must be needed.
//!
//! A static C++ program for AArch64 has many addresses of functions formed in code that stays. In its
//! optimised copy instructions of such code that form addresses and differ are put back, one in each file;
//! the checker must refuse all of these files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

mod support;

use postlink_verify::Options;
use postlink_verify::mutate::{Faults, Kind};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const SOURCE: &str = r#"
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
extern "C" __attribute__((noinline, noipa)) int leaf(int x) {
  if (x % 7 == 3) throw std::runtime_error("seven");
  return x * 3;
}
extern "C" __attribute__((noinline, noipa)) int other(int x) { return x ^ 5; }
extern "C" __attribute__((noinline, noipa)) int third(int x) { return x * 7 - 1; }
extern "C" __attribute__((noinline, noipa)) int fourth(int x) { return x / 3 + 2; }
// Does not run while counting, so it stays.
extern "C" __attribute__((noinline, noipa, cold)) int (*choose(int n))(int) {
  int (*f)(int) = n > 100 ? leaf : n > 90 ? third : fourth;
  if (std::getenv("NOWHERE") && f == third) std::puts("never");
  return n > 2 ? other : n > 1 ? third : f;
}
int main(int argc, char **) {
  int (*f)(int) = argc > 1 ? choose(argc) : leaf, sum = 0;
  for (int i = 0; i < 3000; i++) {
    try { sum += f(i) + other(i) + third(i) + fourth(i); } catch (const std::runtime_error &) { sum++; }
  }
  std::printf("%d\n", sum);
  return 0;
}
"#;

/// How many instructions are put back.
const MANY: usize = 24;

fn done(command: &mut Command) -> Vec<u8> {
    support::done(command).stdout
}

/// Functions of the symbol table: address and size by name. Those without a size (`frame_dummy`) end where
/// the next begins.
fn functions(file: &Path) -> BTreeMap<String, (u64, u64)> {
    let said = String::from_utf8(done(Command::new("readelf").arg("-sW").arg(file)))
        .expect("readelf prints text");
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, value, size, "FUNC", _, _, section, name, ..] = words[..] else {
            return None;
        };
        let (value, size) = (u64::from_str_radix(value, 16).ok()?, size.parse().ok()?);
        (section != "UND").then(|| (name.to_owned(), (value, size)))
    };
    let mut all: BTreeMap<String, (u64, u64)> = said.lines().filter_map(line).collect();
    let starts: BTreeSet<u64> = all.values().map(|f| f.0).collect();
    for (value, size) in all.values_mut().filter(|f| f.1 == 0) {
        *size = starts
            .range(*value + 1..)
            .next()
            .map_or(0, |next| (next - *value).min(256));
    }
    all
}

/// Address and file offset of `.text`.
fn text(file: &Path) -> (u64, u64) {
    let said = String::from_utf8(done(Command::new("readelf").arg("-SW").arg(file)))
        .expect("readelf prints text");
    let line = said
        .lines()
        .find(|l| l.contains(" .text "))
        .expect("there is code");
    let words: Vec<&str> = line[line.find(".text").unwrap_or(0)..]
        .split_whitespace()
        .collect();
    let number = |i: usize| u64::from_str_radix(words[i], 16).expect("an address");
    (number(2), number(3))
}

/// `adrp`, `adr`, and `add` of a number.
fn forms_address(bytes: &[u8]) -> bool {
    let word = bytes
        .iter()
        .rev()
        .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    word & 0x1f00_0000 == 0x1000_0000 || word & 0xffc0_0000 == 0x9100_0000
}

/// Moved start-up code that registers another unwind table than the new one is found out.
fn wrong_registrations_are_found(program: &Path, copy: &Path) {
    let read = |path: &Path| std::fs::read(path).expect("the program");
    let (input, output) = (read(program), read(copy));
    let faults = Faults::new(&input, &output).unwrap_or_else(|what| panic!("{what}"));
    let mut tried = BTreeSet::new();
    for seed in 0..24 {
        let Some(mutant) = faults.inject(Kind::Registration, seed) else {
            break;
        };
        if tried.insert(mutant.what.clone()) {
            let report = postlink_verify::verify(&input, &mutant.image, &Options::default());
            assert!(!report.is_ok_and(|r| r.is_proved()), "{}", mutant.what);
        }
    }
    // Registering it, and taking it back, each in three ways.
    assert!(tried.len() >= 3, "too little to spoil: {tried:?}");
}

/// Tables of labels, as interpreters have them.
const LABELS: &str = r#"
#include <stdio.h>
__attribute__((noinline)) int interpret(const char *code, int x) {
  static void *const table[] = {&&add, &&twice, &&less, &&end};
#define NEXT goto *table[*code++ - 'a']
  NEXT;
add: x += 3; NEXT;
twice: x *= 2; if (x > 1000) x %= 97; NEXT;
less: x -= 1; NEXT;
end: return x;
}
int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 200; i++) sum += interpret(i % 3 ? "abcabd" : "bbcad", i + argc);
  printf("%d\n", sum);
  return 0;
}
"#;

#[test]
fn an_address_of_a_label_left_behind_is_found() {
    for (compiler, runner, flags) in [
        ("gcc", None, ["-O2", "-pie", "-fPIE"]),
        ("gcc", None, ["-O2", "-no-pie", "-fno-pie"]),
        (
            "aarch64-linux-gnu-gcc",
            Some("qemu-aarch64"),
            ["-O2", "-static", "-fno-pie"],
        ),
    ] {
        let tools = [Some(compiler), runner];
        if let Some(missing) = tools
            .into_iter()
            .flatten()
            .find(|tool| Command::new(tool).arg("--version").output().is_err())
        {
            eprintln!("SKIPPED: {missing} not installed");
            continue;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a.c"), LABELS).expect("a file");
        let mut compile = Command::new(compiler);
        done(
            compile
                .args(flags)
                .args(["-Wl,-q", "-o"])
                .arg(at("a"))
                .arg(at("a.c")),
        );
        let postlink = |command: &str, options: &[&str], output: &str| {
            let mut postlink = Command::new(POSTLINK);
            postlink.arg(command).arg(at("a")).args(options);
            done(postlink.arg("-o").arg(at(output)))
        };
        postlink("instrument", &[], "counting");
        let mut run = match runner {
            Some(runner) => Command::new(runner),
            None => Command::new("env"),
        };
        done(
            run.arg(at("counting"))
                .env("POSTLINK_PROFILE", at("profile")),
        );
        let profile = at("profile");
        let profile = profile.to_str().expect("a path of letters");
        postlink("optimize", &["-p", profile], "fast");
        let read = |name: &str| std::fs::read(at(name)).expect("a program");
        let (input, output) = (read("a"), read("fast"));
        let faults = Faults::new(&input, &output).unwrap_or_else(|what| panic!("{what}"));
        let mut tried = BTreeSet::new();
        for seed in 0..16 {
            let Some(mutant) = faults.inject(Kind::LabelLeftBehind, seed) else {
                break;
            };
            let report = postlink_verify::verify(&input, &mutant.image, &Options::default());
            assert!(!report.is_ok_and(|r| r.is_proved()), "{}", mutant.what);
            tried.insert(mutant.what);
        }
        assert!(
            tried.len() >= 3,
            "{compiler}: too little to spoil: {tried:?}"
        );
    }
}

#[test]
fn every_changed_instruction_of_code_that_stays_is_needed() {
    let tools = ["aarch64-linux-gnu-g++", "qemu-aarch64", "readelf"];
    let missing: Vec<&str> = tools
        .into_iter()
        .filter(|tool| Command::new(tool).arg("--version").output().is_err())
        .collect();
    if !missing.is_empty() {
        eprintln!("SKIPPED: {} not installed", missing.join(", "));
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let (source, program, counting, profile, fast, spoilt) = (
        at("a.cpp"),
        at("a"),
        at("counting"),
        at("profile"),
        at("fast"),
        at("spoilt"),
    );
    std::fs::write(&source, SOURCE).expect("a file");
    done(
        Command::new("aarch64-linux-gnu-g++")
            .args(["-O2", "-static", "-Wl,-q", "-o"])
            .arg(&program)
            .arg(&source),
    );
    let expected = done(Command::new("qemu-aarch64").arg(&program));
    done(
        Command::new(POSTLINK)
            .arg("instrument")
            .arg(&program)
            .arg("-o")
            .arg(&counting),
    );
    done(
        Command::new("qemu-aarch64")
            .arg(&counting)
            .env("POSTLINK_PROFILE", &profile),
    );
    done(
        Command::new(POSTLINK)
            .arg("optimize")
            .arg(&program)
            .arg("-p")
            .arg(&profile)
            .arg("-o")
            .arg(&fast),
    );
    assert_eq!(done(Command::new("qemu-aarch64").arg(&fast)), expected);
    // What stays forms the same addresses.
    for more in [&["x"][..], &["x", "y"]] {
        let run = |program: &Path| done(Command::new("qemu-aarch64").arg(program).args(more));
        assert_eq!(run(&fast), run(&program), "{more:?}");
    }
    wrong_registrations_are_found(&program, &fast);

    let ((addr, offset), (_, offset_after)) = (text(&program), text(&fast));
    let (old, new) = (
        std::fs::read(&program).expect("the program"),
        std::fs::read(&fast).expect("the copy"),
    );
    let after = functions(&fast);
    let mut tried = Vec::new();
    for (name, (value, size)) in functions(&program) {
        if after.get(&name).map(|f| f.0) != Some(value) || value < addr {
            continue;
        }
        let from = (value - addr + offset) as usize;
        // The file may have grown in front.
        let now = |i: usize| i + offset_after as usize - offset as usize;
        let changed = (from..from + size as usize).step_by(4).filter(|i| {
            let (old, new) = (&old[*i..*i + 4], &new[now(*i)..now(*i) + 4]);
            old != new && forms_address(old)
        });
        for i in changed {
            // Each takes a while.
            if tried.len() >= MANY {
                break;
            }
            let mut bytes = new.clone();
            bytes[now(i)..now(i) + 4].copy_from_slice(&old[i..i + 4]);
            std::fs::write(&spoilt, bytes).expect("a file");
            let verdict = Command::new(POSTLINK)
                .arg("verify")
                .arg(&program)
                .arg(&spoilt)
                .output()
                .expect("postlink runs");
            let place = format!("{name} at {:#x}", value + (i - from) as u64);
            assert_eq!(
                verdict.status.code(),
                Some(1),
                "{place} put back: {}",
                String::from_utf8_lossy(&verdict.stdout)
            );
            tried.push(place);
        }
    }
    assert!(tried.len() >= 6, "too little to try: {tried:?}");
}

//! Recordings of processors that are not at hand, beside perf2bolt, which reads them through perf: the same text from
//! the same file. Recordings are made by the tests of the crate `profile`, of branches that a program could have
//! taken. Without perf or perf2bolt these tests say so and pass.

#[path = "../../profile/tests/recorder/mod.rs"]
mod recorder;
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use recorder::{Branch, Event, Recorder};
use support::{done, is_installed};

const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) static int hash(int x) { return x * 31 + 7; }
__attribute__((noinline)) int classify(int x) {
  switch (x % 9) { case 0: return hash(x); case 1: return x + 4; case 2: x ^= 3; case 3: return x - 1; case 4: puts("four"); return 1;
    case 5: return x / 3; case 6: return hash(x + 1); case 7: return 11; default: return x << 2; }
}
__attribute__((noinline)) int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int main(int argc, char **argv) {
  int s = 0;
  for (int i = 0; i < 1000 * argc; i++) { for (int j = 0; j < i % 4; j++) s += classify(i + j); if (s > 1000000) s -= fib(i % 10); }
  printf("%d\n", s);
  return 0;
}
"#;

struct Made {
    dir: tempfile::TempDir,
    /// Addresses of branches, with their direct target.
    branches: Vec<(u64, u64)>,
    /// First address, length, offset in the file of the code.
    segment: (u64, u64, u64),
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

impl Made {
    fn new() -> Made {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("app.c"), SOURCE).expect("the folder is ours");
        let flags = ["-O2", "-Wl,-q", "-fno-reorder-blocks-and-partition", "-o"];
        done(
            Command::new("gcc")
                .args(flags)
                .arg(at("app"))
                .arg(at("app.c")),
        );
        let listing = done(
            Command::new("objdump")
                .args(["-d", "--no-show-raw-insn"])
                .arg(at("app")),
        );
        let listing = String::from_utf8(listing.stdout).expect("objdump writes text");
        let branches = listing.lines().filter_map(|line| {
            let (address, code) = line.trim().split_once(':')?;
            let (name, operands) = code.trim().split_once(' ')?;
            let jumps = name.starts_with('j') || name.starts_with("call");
            let target = operands.trim().split(' ').next()?;
            jumps.then_some((hex(address)?, hex(target)?))
        });
        let branches: Vec<(u64, u64)> = branches.collect();
        let headers = done(Command::new("readelf").arg("-lW").arg(at("app")));
        let headers = String::from_utf8(headers.stdout).expect("readelf writes text");
        let code = headers
            .lines()
            .find(|line| line.contains("LOAD") && line.contains("R E"));
        let fields: Vec<&str> = code.expect("code").split_whitespace().collect();
        let number = |field: usize| hex(fields[field]).expect("a number");
        Made {
            segment: (number(2), number(5).next_multiple_of(0x1000), number(1)),
            dir,
            branches,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Stacks of branches, newest first, that follow one another in the code; some lead elsewhere.
    fn stacks(&self, len: usize, base: u64) -> Vec<Vec<Branch>> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % limit as u64) as usize
        };
        (0..300)
            .map(|_| {
                let mut at = below(self.branches.len());
                let mut stack: Vec<Branch> = (0..len)
                    .map(|_| {
                        let (from, to) = self.branches[at];
                        // The next branch at or after the target, or one further on.
                        let next = self.branches.partition_point(|(from, _)| *from < to);
                        at = (next + below(3)).min(self.branches.len() - 1);
                        if below(40) == 0 {
                            at = below(self.branches.len());
                        }
                        let missed = u64::from(below(5) == 0);
                        Branch {
                            from: base + from,
                            to: base + to,
                            flags: missed | (1 - missed) << 1,
                        }
                    })
                    .collect();
                stack.reverse();
                stack
            })
            .collect()
    }
}

fn lines(path: &std::path::Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("the tool has written it");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn recordings_of_branch_stacks_become_the_text_that_perf2bolt_writes() {
    let perf2bolt = "/usr/lib/llvm-22/bin/perf2bolt";
    if !is_installed("perf") || !is_installed(perf2bolt) {
        return;
    }
    let made = Made::new();
    let (base, pid) = (0x5555_5555_4000u64, 4321);
    let kinds = [
        ("Intel LBR", 0, 32),
        ("AMD BRS", 0, 16),
        (
            "AMD LbrExtV2",
            recorder::BRANCH_TYPE_SAVE | recorder::BRANCH_PRIV_SAVE,
            16,
        ),
        (
            "types and an index",
            recorder::BRANCH_TYPE_SAVE | recorder::BRANCH_HW_INDEX,
            32,
        ),
    ];
    for (what, fields, len) in kinds {
        let mut recording = Recorder::new(Event::stacks(fields), "x86_64");
        let (start, size, offset) = made.segment;
        let path = made.path("app");
        let path = path.to_str().expect("the folder's name is text");
        recording.runs(pid, path, base + start, size, offset, 1_000_000);
        for (i, stack) in made.stacks(len, base).iter().enumerate() {
            recording.stack(pid, 2_000_000 + i as u64, base + start, stack, &[]);
        }
        recording.exits(pid, 9_000_000);
        fs::write(made.path("perf.data"), recording.finish(false)).expect("the folder is ours");
        // perf2bolt wants to know that it was recorded by root or by who asks.
        let arguments = ["-p", "perf.data", "--ignore-build-id", "app", "-o"];
        done(
            Command::new(perf2bolt)
                .args(arguments)
                .arg("theirs.fdata")
                .current_dir(made.dir.path()),
        );
        done(
            Command::new(env!("CARGO_BIN_EXE_postlink"))
                .arg("perf2bolt")
                .args(arguments)
                .arg("ours.fdata")
                .current_dir(made.dir.path()),
        );
        let (ours, theirs) = (
            lines(&made.path("ours.fdata")),
            lines(&made.path("theirs.fdata")),
        );
        assert!(ours.len() > 20, "{what}: {ours:?}");
        let alone = |a: &[String], b: &[String]| -> Vec<String> {
            a.iter()
                .filter(|line| !b.contains(line))
                .take(9)
                .cloned()
                .collect()
        };
        assert!(
            ours == theirs,
            "{what}: ours alone {:#?}, theirs alone {:#?}",
            alone(&ours, &theirs),
            alone(&theirs, &ours)
        );
    }
}

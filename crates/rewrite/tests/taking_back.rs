//! A function that is taken back from what was made leaves the same file as one that was never touched, or, where
//! everything else keeps its place, one that differs in the places that it left empty.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_profile::Profile;
use postlink_rewrite::coverage::{CoverageMode, CoverageOptions, prepare_coverage};
use postlink_rewrite::{
    Answer, Counters, InstrumentOptions, InstrumentReport, Onto, OptimizeOptions, OutputFile,
    Phases, Preset, Program, Refusal, Rewriting, fit, prepare_instrumented,
};
use rustc_hash::FxHashSet;
use serde::Serialize;

const SOURCE: &str = r#"
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>
typedef int (*operation)(int);
__attribute__((noinline)) static int first(int x) { return x > 3 ? x - 1 : x + 2; }
__attribute__((noinline)) static int second(int x) { return first(x) * 3; }
static const operation table[] = {first, second};
__attribute__((noinline)) int choose(int x) {
  switch (x % 7) { case 0: return 1; case 1: return second(x); case 2: return 4; case 3: return first(x);
    case 4: return 7; case 5: return table[x & 1](x); default: return 2; }
}
__attribute__((noinline)) int forks(int x) {
  pid_t child = fork();
  if (child == 0) _exit(choose(x) & 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}
int main(void) {
  int sum = 0;
  for (int i = 0; i < 500; i++) sum = choose(sum + i);
  printf("%d %d\n", sum, forks(3));
  return 0;
}
"#;

/// The program, and where outputs go.
struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Option<Bench> {
        let directory = tempfile::tempdir().expect("a folder");
        let bench = Bench { directory };
        fs::write(bench.path("app.c"), SOURCE).expect("the folder is ours");
        let built = Command::new("gcc")
            .args(["-O2", "-Wl,-q", "-o"])
            .args([bench.path("app"), bench.path("app.c")])
            .status();
        if !cfg!(target_arch = "x86_64") || !built.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: gcc for x86-64 is missing");
            return None;
        }
        Some(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn input(&self) -> Vec<u8> {
        fs::read(self.path("app")).expect("it was built")
    }

    fn profile(&self, elf: &Elf<'_>) -> Profile {
        let options = InstrumentOptions::default();
        let (mut phases, inst) = (Phases::default(), self.path("inst"));
        prepare_instrumented(elf, &options, &mut phases)
            .and_then(|mut job| job.write(OutputFile::new(&inst, 0o755), &mut phases))
            .expect("it can be instrumented");
        let mut run = Command::new(inst);
        let run = support::run(run.env("POSTLINK_PROFILE", self.path("run")));
        assert!(run.status.success());
        let opened = postlink_profile::open(&self.path("run")).expect("it has counted");
        opened.read().expect("it can be read")
    }

    /// What a job says of its output, and the output.
    fn written<R: Serialize>(&self, job: &mut dyn Rewriting<Report = R>) -> (String, Vec<u8>) {
        self.written_to("out", job, &mut Phases::default())
    }

    /// The same, with another name of the output.
    fn written_to<R: Serialize>(
        &self,
        name: &str,
        job: &mut dyn Rewriting<Report = R>,
        phases: &mut Phases,
    ) -> (String, Vec<u8>) {
        let out: &Path = &self.path(name);
        // What another job left there must not be seen in what this one writes.
        let onto = OutputFile {
            onto: Onto::Before,
            ..OutputFile::new(out, 0o755)
        };
        let report = job.write(onto, phases);
        let report = serde_json::to_string(&report.expect("it can be written"));
        let bytes = fs::read(out).expect("it was written");
        (report.expect("it is plain"), bytes)
    }

    /// Takes a function back from `job`, and compares with `other`, which knew of it from the beginning. `leaves`: what
    /// becomes of its place.
    fn compare<R: Serialize>(
        &self,
        what: &str,
        leaves: Leaves,
        function: u64,
        mut job: Box<dyn Rewriting<Report = R> + '_>,
        mut other: Box<dyn Rewriting<Report = R> + '_>,
    ) {
        let whole = self.written(&mut *job);
        let answer = job.answer(&refusal(function));
        let functions = FxHashSet::from_iter([function]);
        assert_eq!(answer, Answer::TakenBack(functions), "{what} {function:#x}");
        let (report, bytes) = self.written(&mut *job);
        let (expected, expected_bytes) = self.written(&mut *other);
        match leaves {
            Leaves::Nothing => {
                assert_eq!(report, expected, "{what} {function:#x}");
                assert!(bytes == expected_bytes, "{what} {function:#x}: other bytes");
            }
            Leaves::Hole => {
                let (report, expected) = (without_size(&report), without_size(&expected));
                assert_eq!(report, expected, "{what} {function:#x}");
                let most = whole.1.len().max(expected_bytes.len());
                assert!(bytes.len() <= most, "{what} {function:#x}: {}", bytes.len());
            }
        }
        assert!(
            bytes != whole.1,
            "{what} {function:#x}: nothing has changed"
        );
        assert_eq!(job.answer(&refusal(function)), Answer::Nothing, "{what}");
    }
}

/// What a function that is taken back leaves where its new code was.
#[derive(Clone, Copy)]
enum Leaves {
    /// Everything is placed anew.
    Nothing,
    /// Everything else keeps its place.
    Hole,
}

/// A report without the sizes of the file and of the translation tables, in which distances are shorter or longer.
fn without_size(report: &str) -> serde_json::Value {
    let mut report: serde_json::Value =
        serde_json::from_str(report).expect("it was written as JSON");
    for size in ["output_size", "bat_bytes"] {
        report[size].take();
    }
    report
}

fn refusal(function: u64) -> Refusal {
    Refusal {
        functions: FxHashSet::from_iter([function]),
        binding: true,
        ..Refusal::default()
    }
}

/// Entries of functions of the program's own source.
fn functions(elf: &Elf<'_>) -> Vec<u64> {
    let program = Program::discover::<postlink_isa::x86_64::X86_64>(elf).expect("it is a program");
    let own = ["first", "second", "choose", "forks", "main"];
    let all = (0..program.functions.len()).filter(|f| own.contains(&program.name(*f).as_str()));
    let all: Vec<u64> = all.map(|f| program.start(f)).collect();
    assert_eq!(all.len(), own.len());
    all
}

fn kept(function: u64) -> FxHashSet<u64> {
    FxHashSet::from_iter([function])
}

#[test]
fn optimised_programs_are_the_same_as_if_a_function_had_never_moved_but_for_its_place() {
    let Some(bench) = Bench::new() else { return };
    let data = bench.input();
    let elf = Elf::parse(&data).expect("it is an ELF file");
    let profile = bench.profile(&elf);
    let plain = OptimizeOptions {
        dyno_stats: true,
        ..OptimizeOptions::default()
    };
    let size = OptimizeOptions {
        preset: Preset::Size,
        ..plain.clone()
    };
    let bat = OptimizeOptions {
        bat: true,
        ..plain.clone()
    };
    for (what, options) in [("safe", plain), ("size", size), ("with tables", bat)] {
        let job = |keep: FxHashSet<u64>| {
            let options = OptimizeOptions {
                keep,
                ..options.clone()
            };
            let phases = &mut Phases::default();
            let fitted = fit(&elf, &profile, &options, phases).expect("it is its profile");
            fitted.lay_out(phases).expect("functions can move")
        };
        for function in functions(&elf) {
            bench.compare(
                what,
                match options.preset {
                    Preset::Size => Leaves::Nothing,
                    _ => Leaves::Hole,
                },
                function,
                job(FxHashSet::default()),
                job(kept(function)),
            );
        }
    }
}

#[test]
fn instrumented_programs_are_the_same_as_if_a_function_had_never_moved_but_for_its_place() {
    let Some(bench) = Bench::new() else { return };
    let data = bench.input();
    let elf = Elf::parse(&data).expect("it is an ELF file");
    for counters in [Counters::Auto, Counters::Atomic] {
        let job = |keep: FxHashSet<u64>| {
            let options = InstrumentOptions {
                counters,
                keep,
                blocks: true,
                ..InstrumentOptions::default()
            };
            prepare_instrumented(&elf, &options, &mut Phases::default()).expect("it can count")
        };
        // The one that forks must move for counters per thread: all others are made anew then.
        for function in functions(&elf) {
            let what = format!("{counters:?}");
            bench.compare(
                &what,
                Leaves::Hole,
                function,
                job(FxHashSet::default()),
                job(kept(function)),
            );
        }
    }
}

/// A program that is instrumented; code is kept while it is checked if it has no more bytes than `kept_code`.
fn instrumented<'e>(
    elf: &'e Elf<'e>,
    counters: Counters,
    kept_code: usize,
) -> Box<dyn Rewriting<Report = InstrumentReport> + 'e> {
    let options = InstrumentOptions {
        counters,
        blocks: true,
        kept_code,
        ..InstrumentOptions::default()
    };
    prepare_instrumented(elf, &options, &mut Phases::default()).expect("it can count")
}

/// Of large programs code is not kept while the checker reads it: it is read back from the output, or made once more if
/// that has something else by then.
#[test]
fn code_that_is_made_once_more_leaves_the_same_places_empty() {
    let Some(bench) = Bench::new() else { return };
    let data = bench.input();
    let elf = Elf::parse(&data).expect("it is an ELF file");
    for counters in [Counters::Auto, Counters::Atomic] {
        let job = |kept_code: usize| instrumented(&elf, counters, kept_code);
        let (mut keeps, mut forgets, mut loses) = (job(usize::MAX), job(0), job(0));
        assert!(bench.written(&mut *keeps) == bench.written(&mut *forgets));
        assert!(bench.written(&mut *keeps) == bench.written(&mut *loses));
        // One after the other, so that what was taken back before stays so.
        for function in functions(&elf) {
            let answer = Answer::TakenBack(kept(function));
            assert_eq!(keeps.answer(&refusal(function)), answer);
            assert_eq!(forgets.answer(&refusal(function)), answer);
            let expected = bench.written(&mut *keeps);
            let written = bench.written(&mut *forgets);
            assert_eq!(written.0, expected.0, "{counters:?} {function:#x}");
            let same = is_same_but_padding(&written.1, &expected.1);
            assert!(same, "{counters:?} {function:#x}");
            assert_eq!(forgets.answer(&refusal(function)), Answer::Nothing);
            assert_eq!(loses.answer(&refusal(function)), answer);
            for other in [&[][..], &data, &[0xcc; 1 << 20]] {
                fs::write(bench.path("out"), other).expect("the folder is ours");
                let written = bench.written(&mut *loses);
                assert!(written == expected, "{counters:?} {function:#x}");
            }
        }
        let refused = Refusal {
            counting: Some("for a test".to_owned()),
            ..Refusal::default()
        };
        assert_eq!(keeps.answer(&refused), forgets.answer(&refused));
        assert!(bench.written(&mut *keeps) == bench.written(&mut *forgets));
    }
}

/// What unwind entries say: code, LSDA, and instructions without padding.
type Unwinding = Vec<(u64, u64, Option<u64>, Vec<u8>)>;

/// A file without its unwind table, and what that says.
fn without_unwinding(file: &[u8]) -> (Unwinding, Vec<u8>) {
    let elf = Elf::parse(file).expect("it was written");
    let table = EhFrame::parse(&elf).expect("it can be read");
    let said = table.fdes.iter().map(|fde| {
        let end = fde.instructions.iter().rposition(|byte| *byte != 0);
        let instructions = &fde.instructions[..end.map_or(0, |last| last + 1)];
        (fde.start, fde.len, fde.lsda, instructions.to_vec())
    });
    let mut rest = file.to_vec();
    for name in [".eh_frame", ".eh_frame_hdr"] {
        let (_, section) = elf.section(name).expect("it was written");
        let start = section.offset as usize;
        rest[start..start + section.size as usize].fill(0);
    }
    (said.collect(), rest)
}

/// Whether a file out of which functions were taken is the one that is linked once more, but for padding in the unwind
/// table where theirs was.
fn is_same_but_padding(changed: &[u8], linked: &[u8]) -> bool {
    changed == linked || without_unwinding(changed) == without_unwinding(linked)
}

/// Of large programs the output is changed where it is, and not linked once more.
#[test]
fn functions_are_taken_out_of_the_file_as_if_it_were_linked_once_more() {
    let Some(bench) = Bench::new() else { return };
    let data = bench.input();
    let elf = Elf::parse(&data).expect("it is an ELF file");
    for counters in [Counters::Auto, Counters::Atomic, Counters::Plain] {
        let job = |kept_code: usize| instrumented(&elf, counters, kept_code);
        let all = functions(&elf);
        // Each alone, then one after the other.
        let each = all.iter().map(|function| vec![*function]);
        for functions in each.chain([all.clone()]) {
            let (mut keeps, mut changes) = (job(usize::MAX), job(0));
            let of_changes = |job: &mut dyn Rewriting<Report = _>| {
                let mut phases = Phases::default();
                let written = bench.written_to("changed", job, &mut phases);
                let linked = phases.times.iter().any(|(name, _)| *name == "write");
                (written, linked)
            };
            let first = of_changes(&mut *changes);
            assert!(first == (bench.written(&mut *keeps), true));
            let mut linked = 0;
            for function in functions {
                let answer = Answer::TakenBack(kept(function));
                assert_eq!(keeps.answer(&refusal(function)), answer);
                assert_eq!(changes.answer(&refusal(function)), answer);
                let expected = bench.written(&mut *keeps);
                let (written, is_linked) = of_changes(&mut *changes);
                assert_eq!(written.0, expected.0, "{counters:?} {function:#x}");
                let same = is_same_but_padding(&written.1, &expected.1);
                assert!(same, "{counters:?} {function:#x}");
                linked += u32::from(is_linked);
            }
            // Without the one that forks, or with what calls it where it was, counters are others.
            assert!(
                linked <= u32::from(counters == Counters::Auto),
                "{counters:?}"
            );
        }
    }
}

/// The same for programs that `POSTLINK_PROGRAMS=path:path…` names, with some of their functions.
#[test]
fn functions_are_taken_out_of_programs_that_are_named() {
    let (Some(bench), Ok(names)) = (Bench::new(), std::env::var("POSTLINK_PROGRAMS")) else {
        return;
    };
    for name in names.split(':') {
        let data = fs::read(name).expect("it is there");
        let elf = Elf::parse(&data).expect("it is an ELF file");
        for counters in [Counters::Auto, Counters::Atomic] {
            let job = |kept_code: usize| {
                let options = InstrumentOptions {
                    counters,
                    kept_code,
                    ..InstrumentOptions::default()
                };
                prepare_instrumented(&elf, &options, &mut Phases::default()).expect("it can count")
            };
            let program = Program::discover::<postlink_isa::x86_64::X86_64>(&elf);
            let program = program.expect("it is a program");
            let (mut keeps, mut changes) = (job(usize::MAX), job(0));
            let mut phases = Phases::default();
            let first = bench.written_to("changed", &mut *changes, &mut phases);
            assert!(first == bench.written(&mut *keeps), "{name}");
            let (mut rounds, mut linked) = (0, 0);
            let step = (program.functions.len() / 40).max(1);
            for f in (0..program.functions.len()).step_by(step) {
                let function = program.start(f);
                let answer = keeps.answer(&refusal(function));
                assert_eq!(changes.answer(&refusal(function)), answer);
                let expected = bench.written(&mut *keeps);
                let mut phases = Phases::default();
                let written = bench.written_to("changed", &mut *changes, &mut phases);
                assert_eq!(written.0, expected.0, "{name} {counters:?} {function:#x}");
                let same = is_same_but_padding(&written.1, &expected.1);
                assert!(same, "{name} {counters:?} {function:#x}");
                rounds += 1;
                linked += u32::from(phases.times.iter().any(|(name, _)| *name == "write"));
            }
            eprintln!("{name} {counters:?}: {rounds} outputs, {linked} of them linked anew");
        }
    }
}

#[test]
fn counters_that_are_refused_are_incremented_in_another_way() {
    let Some(bench) = Bench::new() else { return };
    let data = bench.input();
    let elf = Elf::parse(&data).expect("it is an ELF file");
    let why = Some("for a test".to_owned());
    let job = |not_per_thread: &Option<String>| {
        let options = InstrumentOptions {
            not_per_thread: not_per_thread.clone(),
            ..InstrumentOptions::default()
        };
        prepare_instrumented(&elf, &options, &mut Phases::default()).expect("it can count")
    };
    let mut refused = job(&None);
    let before = bench.written(&mut *refused);
    let refusal = Refusal {
        counting: why.clone(),
        ..Refusal::default()
    };
    assert_eq!(refused.answer(&refusal), Answer::Changed);
    let after = bench.written(&mut *refused);
    assert!(after == bench.written(&mut *job(&why)));
    assert!(after.1 != before.1);
    assert_eq!(refused.answer(&refusal), Answer::Nothing);
}

#[test]
fn machine_profiles_are_of_the_same_programs_as_if_a_function_had_never_counted() {
    let Some(bench) = Bench::new() else { return };
    let data = bench.input();
    let elf = Elf::parse(&data).expect("it is an ELF file");
    for mode in [
        CoverageMode::FunctionCoverage,
        CoverageMode::BlockCoverage,
        CoverageMode::CallGraph,
        CoverageMode::CallEdges,
    ] {
        let job = |keep: FxHashSet<u64>, sealed: FxHashSet<u64>, reuse: bool| {
            let options = CoverageOptions {
                mode,
                pattern: "default.mipraw".to_owned(),
                functions: None,
                edges: 1024,
                keep,
                reuse,
                sealed,
            };
            prepare_coverage(&elf, &options, &mut Phases::default()).expect("it can count")
        };
        let none = FxHashSet::default;
        for function in functions(&elf) {
            let what = format!("{mode:?}");
            let other = job(kept(function), none(), false);
            let first = job(none(), none(), false);
            bench.compare(&what, Leaves::Nothing, function, first, other);
            if mode != CoverageMode::BlockCoverage {
                continue;
            }
            // First nothing is in its old body any more, then nothing in any, and it stays itself.
            let mut job_with_reuse = job(none(), none(), true);
            bench.written(&mut *job_with_reuse);
            assert_eq!(job_with_reuse.answer(&refusal(function)), Answer::Changed);
            let sealed = bench.written(&mut *job_with_reuse);
            assert!(sealed == bench.written(&mut *job(none(), kept(function), true)));
            let answer = job_with_reuse.answer(&refusal(function));
            assert_eq!(answer, Answer::TakenBack(kept(function)));
            let kept_back = bench.written(&mut *job_with_reuse);
            assert!(kept_back == bench.written(&mut *job(kept(function), none(), false)));
        }
    }
}

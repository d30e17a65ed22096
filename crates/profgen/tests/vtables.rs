//! Virtual tables in profiles, beside `llvm-profgen --data-access-perftrace` of release 22, on a program built here.
//!
//! What was sampled is made up, but where it is is not: branches between functions, reads of virtual tables and of
//! other data by instructions of the program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::raw;
use postlink_profgen::dwarf::Lines;
use postlink_profgen::sample::{self, text};
use postlink_profgen::{
    Accesses, Format, FormatError, Input, Options, Program, ScriptOptions, generate,
};

#[path = "common/tools.rs"]
mod tools;
use tools::have;

const SOURCE: &str = r#"
#include <cstdio>
#include <cstdlib>
struct Shape { virtual ~Shape() {} virtual long area(long k) { return k; } virtual long edge() { return 1; } };
struct Square : Shape { long s; Square(long s) : s(s) {} long area(long k) override { return s * s + k; } };
namespace { struct Circle : Shape { long r; Circle(long r) : r(r) {} long area(long k) override { return 3 * r * r - k; }
  long edge() override { return 6 * r; } }; }
template <class T> struct Box : Shape { T t; Box(T t) : t(t) {} long area(long k) override { return t + k; } };
long table[64];
__attribute__((noinline)) Shape *made(long i) {
  switch (i % 4) {
  case 0: return new Square(i); case 1: return new Circle(i); case 2: return new Box<int>(i); default: return new Box<long>(i);
  }
}
static inline long both(Shape *s, long k) { return s->area(k)
  + s->edge(); }
__attribute__((noinline)) long sum(Shape *s, long k) {
  long t = both(s, k);
  for (long i = 0; i < k; i++) t += s->area(i) + table[i & 63];
  return t;
}
__attribute__((noinline)) void drop(Shape *s) { delete s; }
int main(int argc, char **) {
  long t = 0;
  for (long i = 0; i < 100 * argc; i++) { Shape *s = made(i); t += sum(s, i); drop(s); }
  printf("%ld\n", t);
}
"#;

/// Process, and where a position-independent program is loaded.
const PID: u64 = 4242;
const LOADED: u64 = 0x5555_5555_4000;

/// Numbers that look random and are always the same.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

fn build(dir: &Path, flags: &[&str]) -> PathBuf {
    std::fs::write(dir.join("shapes.cpp"), SOURCE).unwrap();
    let mut compiler = Command::new("clang++-22");
    compiler
        .current_dir(dir)
        .args(["-g", "shapes.cpp", "-o", "program"])
        .args(flags);
    let status = compiler.status().unwrap();
    assert!(status.success(), "clang++-22 {flags:?}");
    dir.join("program")
}

/// Where the program is: what is added to its addresses.
fn bias(elf: &Elf<'_>) -> u64 {
    if elf.etype == raw::ET_DYN { LOADED } else { 0 }
}

/// Events of all mappings, as perf writes them.
fn mappings(elf: &Elf<'_>, path: &Path, code_only: bool) -> String {
    let mut text = String::new();
    for load in elf.loads() {
        let flags = [
            "---p", "--xp", "-w-p", "-wxp", "r--p", "r-xp", "rw-p", "rwxp",
        ];
        let [start, end] = [
            load.addr & !0xfff,
            (load.addr + load.mem_size).next_multiple_of(0x1000),
        ];
        if code_only && load.flags & raw::PF_X == 0 {
            continue;
        }
        writeln!(
            text,
            "0 0x7b10 [0x88]: PERF_RECORD_MMAP2 {PID}/{PID}: [{:#x}({:#x}) @ {:#x} 08:01 527501 0]: {} {}",
            start + bias(elf),
            end - start,
            load.offset & !0xfff,
            flags[load.flags as usize & 7],
            path.display()
        )
        .unwrap();
    }
    text
}

/// Branch stacks in the program's functions, and reads of data by their instructions: `perf script`, `perf report -D`.
fn made_up(elf: &Elf<'_>, path: &Path) -> (String, String) {
    let lines = Lines::load(elf).unwrap();
    let (program, bias) = (Program::new(elf, &lines), bias(elf));
    let mut numbers = Numbers(7);
    let ranges: Vec<_> = program
        .ranges()
        .iter()
        .filter(|r| r.end > r.start)
        .collect();
    let event = mappings(elf, path, true);
    let event = event.split_once("]: ").expect("an event").1;
    let mut script = format!("  {event}");
    for _ in 0..400 {
        let range = ranges[numbers.below(ranges.len())];
        let code = || program.between(range.start, range.end - 1);
        let Some(last) = code().find(|at| program.is_transfer(*at)) else {
            continue;
        };
        let next = ranges[numbers.below(ranges.len())].start;
        let before = ranges[numbers.below(ranges.len())];
        let from = program
            .between(before.start, before.end - 1)
            .find(|at| program.is_call(*at));
        let from = from.unwrap_or(last);
        let [last, next, from, to] = [last, next, from, range.start].map(|at| at + bias);
        writeln!(
            script,
            " {next:x}  {last:#x}/{next:#x}/P/-/-/0  {from:#x}/{to:#x}/P/-/-/0"
        )
        .unwrap();
    }
    let symbols = elf.symbols(SymbolTable::Static);
    let data: Vec<_> = symbols
        .iter()
        .filter(|s| s.kind == 1 && s.section != 0 && s.size > 7)
        .collect();
    assert!(data.iter().filter(|s| s.name.starts_with(b"_ZTV")).count() >= 4);
    let mut trace = mappings(elf, path, false);
    for i in 0..600 {
        let range = ranges[numbers.below(ranges.len())];
        let code: Vec<u64> = program.between(range.start, range.end - 1).collect();
        let ip = code[numbers.below(code.len())] + bias;
        let symbol = data[numbers.below(data.len())];
        let word = numbers.below(symbol.size as usize) as u64 & !7;
        // Some are of other processes, and some of memory that is no part of the file.
        let pid = if i % 50 == 7 { PID + 1 } else { PID };
        let addr = if i % 40 == 9 {
            0x7fff_ffff_e000
        } else {
            symbol.value + word + bias
        };
        writeln!(
            trace,
            "{i} 0x8660 [0x60]: PERF_RECORD_SAMPLE(IP, 0x4002): {pid}/{pid}: {ip:#x} period: 233 addr: {addr:#x}"
        )
        .unwrap();
    }
    (script, trace)
}

fn ours(elf: &Elf<'_>, path: &Path, script: &str, trace: &str, format: Format) -> Vec<u8> {
    made(elf, path, script, trace, format, false).unwrap()
}

fn made(
    elf: &Elf<'_>,
    path: &Path,
    script: &str,
    trace: &str,
    format: Format,
    by_lines: bool,
) -> Result<Vec<u8>, FormatError> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let script_options = ScriptOptions {
        file: name.to_owned(),
        pid: Some(PID as i64),
        period: 1,
        ..ScriptOptions::default()
    };
    let options = Options {
        accesses: Accesses::read(trace.as_bytes(), elf, &script_options).unwrap(),
        script: script_options,
        format,
        vtables_in_binary: true,
        by_lines,
        ..Options::default()
    };
    let lines = Lines::load(elf).unwrap();
    let mut out = Vec::new();
    let mut script = script.as_bytes();
    generate(elf, &lines, Input::Script(&mut script), &options, &mut out)?;
    Ok(out)
}

/// What the tool makes of the files in a folder.
fn theirs(dir: &Path, format: &str, more: &[&str]) -> PathBuf {
    let out = dir.join(format!("theirs.{format}"));
    let run = Command::new("llvm-profgen-22")
        .current_dir(dir)
        .args([
            "--binary=program",
            "--perfscript=script",
            "--data-access-perftrace=trace",
        ])
        .arg(format!("--format={format}"))
        .arg(format!("--pid={PID}"))
        .args(more)
        .arg(format!("--output={}", out.display()))
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    out
}

#[test]
fn virtual_tables_are_those_of_the_llvm_tool() {
    if !have("clang++-22") || !have("llvm-profgen-22") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for flags in [
        &[
            "-O2",
            "-fuse-ld=lld",
            "-no-pie",
            "-fdebug-info-for-profiling",
        ][..],
        &["-O1", "-fuse-ld=bfd", "-no-pie"],
        &["-O2", "-fuse-ld=lld", "-fPIE", "-pie"],
        &[
            "-O3",
            "-fuse-ld=bfd",
            "-fPIE",
            "-pie",
            "-fdebug-info-for-profiling",
        ],
    ] {
        let program = build(dir.path(), flags);
        let data = std::fs::read(&program).unwrap();
        let elf = Elf::parse(&data).unwrap();
        let (script, trace) = made_up(&elf, &program);
        std::fs::write(dir.path().join("script"), &script).unwrap();
        std::fs::write(dir.path().join("trace"), &trace).unwrap();
        let theirs = std::fs::read_to_string(theirs(dir.path(), "text", &[])).unwrap();
        let ours = String::from_utf8(ours(&elf, &program, &script, &trace, Format::Text)).unwrap();
        assert!(
            theirs.matches(": vtables ").count() > 20,
            "{flags:?}: hardly anything to compare"
        );
        assert_eq!(ours, theirs, "{flags:?}");
    }
}

/// A profile in any form as text, by `llvm-profdata`.
fn shown(path: &Path) -> String {
    let mut command = Command::new("llvm-profdata-22");
    let run = command
        .args(["merge", "--sample", "--text"])
        .arg(path)
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn binary_profiles_with_virtual_tables_are_read_by_each_other() {
    if !have("clang++-22") || !have("llvm-profgen-22") || !have("llvm-profdata-22") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-O2", "-fuse-ld=lld", "-fPIE", "-pie"]);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let (script, trace) = made_up(&elf, &program);
    std::fs::write(dir.path().join("script"), &script).unwrap();
    std::fs::write(dir.path().join("trace"), &trace).unwrap();
    let theirs = theirs(
        dir.path(),
        "extbinary",
        &["--extbinary-write-vtable-type-prof"],
    );
    let [as_text, binary] = [Format::Text, Format::ExtBinary]
        .map(|format| ours(&elf, &program, &script, &trace, format));
    let mut read = Vec::new();
    text::write(
        &sample::read(&std::fs::read(&theirs).unwrap()).unwrap(),
        &mut read,
    )
    .unwrap();
    let [read, as_text] = [read, as_text].map(|text| String::from_utf8(text).unwrap());
    assert!(as_text.matches(": vtables ").count() > 20);
    assert_eq!(read, as_text, "what is read of theirs");
    let path = dir.path().join("ours.extbinary");
    std::fs::write(&path, binary).unwrap();
    assert_eq!(shown(&path), shown(&theirs), "what is read of ours");
    assert!(shown(&path).contains(": vtables "));
}

#[test]
fn tables_are_found_without_mappings_where_the_program_is_linked_to() {
    if !have("clang++-22") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-O2", "-fuse-ld=lld", "-no-pie"]);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let (_, trace) = made_up(&elf, &program);
    let is_sample = |line: &&str| line.contains("PERF_RECORD_SAMPLE");
    let samples: Vec<&str> = trace.lines().filter(is_sample).collect();
    let options = ScriptOptions {
        file: "program".to_owned(),
        ..ScriptOptions::default()
    };
    let read = |text: &str| Accesses::read(text.as_bytes(), &elf, &options);
    assert_eq!(read(&samples.join("\n")).unwrap(), read(&trace).unwrap());
    // Of another file, whose mappings say nothing of this one.
    let other = trace.replace("/program\n", "/other\n");
    assert_eq!(read(&other).unwrap(), read(&trace).unwrap());
    let none =
        read("0 0x10 [0x60]: PERF_RECORD_SAMPLE(IP, 0x4002): 1/1: 0x10 period: 1").unwrap_err();
    assert!(
        none.what.contains("no sample in it has an address of data"),
        "{none}"
    );
}

#[test]
fn profiles_by_probes_have_no_place_for_virtual_tables() {
    if !have("clang++-22") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(
        dir.path(),
        &["-O2", "-no-pie", "-fpseudo-probe-for-profiling"],
    );
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let (script, trace) = made_up(&elf, &program);
    let error = made(&elf, &program, &script, &trace, Format::Text, false).unwrap_err();
    assert!(error.what.contains("probes: go by lines"), "{error}");
    let by_lines = made(&elf, &program, &script, &trace, Format::Text, true).unwrap();
    assert!(String::from_utf8(by_lines).unwrap().contains(": vtables "));
}

/// Virtual tables that the system forgets, on pages of their own, so that calls fault where they read them. That is
/// sampled with its address on any machine.
const FORGETFUL: &str = r#"
#include <cstdint>
#include <cstdio>
#include <utility>
#include <sys/mman.h>
struct Shape { virtual ~Shape() {} virtual long area(long k) { return k; } virtual long edge(long k) { return k; } };
template <int N> struct Many : Shape { long area(long k) override { return k + N; } long edge(long k) override { return k * N; } };
static Shape *all[400];
template <int... N> static void make(std::integer_sequence<int, N...>) { ((all[N] = new Many<N>), ...); }
__attribute__((noinline)) long call(Shape *s, long k) { return s->area(k); }
int main() {
  make(std::make_integer_sequence<int, 400>());
  auto table = [](Shape *s) { return *(uintptr_t *)s; };
  uintptr_t first = UINTPTR_MAX, last = 0;
  for (Shape *s : all) { first = table(s) < first ? table(s) : first; last = table(s) > last ? table(s) : last; }
  first = (first + 4095) & ~4095ul; last &= ~4095ul;
  long t = 0;
  for (int i = 0; i < 400; i++) {
    if (table(all[i]) < first || table(all[i]) + 64 > last) continue;
    if (madvise((void *)first, last - first, MADV_DONTNEED)) return 1;
    t += call(all[i], i);
  }
  printf("%ld\n", t);
}
"#;

#[test]
fn a_recording_says_the_same_as_its_text() {
    if !have("clang++-22") || !have("perf") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command
            .current_dir(dir.path())
            .args(arguments)
            .output()
            .unwrap()
    };
    std::fs::write(dir.path().join("shapes.cpp"), FORGETFUL).unwrap();
    for flags in [["-fuse-ld=lld", "-no-pie"], ["-fuse-ld=bfd", "-no-pie"]] {
        let compile = ["-O2", "-g", "-std=c++17", "shapes.cpp", "-o", "program"];
        let compiled = run("clang++-22", &[&compile[..], &flags].concat());
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        let record = [
            "record",
            "-q",
            "-e",
            "page-faults:u",
            "-c",
            "1",
            "-d",
            "-o",
            "reads.data",
            "./program",
        ];
        if !run("perf", &record).status.success() {
            eprintln!("SKIPPED: perf cannot record here");
            return;
        }
        let text = run("perf", &["report", "-D", "-i", "reads.data"]).stdout;
        let program = std::fs::read(dir.path().join("program")).unwrap();
        let elf = Elf::parse(&program).unwrap();
        let options = ScriptOptions {
            file: "program".to_owned(),
            ..ScriptOptions::default()
        };
        let recording = std::fs::read(dir.path().join("reads.data")).unwrap();
        let [of_recording, of_text] =
            [&recording, &text].map(|b| Accesses::read(b, &elf, &options).unwrap());
        assert_eq!(of_recording, of_text, "{flags:?}");
        let tables = of_text
            .counts()
            .filter(|(_, name, _)| name.starts_with(b"_ZTV4ManyILi"));
        assert!(tables.count() > 100, "{flags:?}: {of_text:?}");
    }
}

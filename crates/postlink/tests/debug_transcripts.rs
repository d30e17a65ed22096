//! What gdb and LLDB say of programs is what they say after these were optimised, and split debug information follows
//! into a package.
//!
//! Small programs of `tests/cases` are built with debug information in the dialects of DWARF 2 to 5 of gcc, clang and
//! rustc. A debugger stops in a function that moves, shows frames, arguments and variables, steps, and goes back to the
//! caller; but for addresses the transcript must be that of the input.

use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};

mod support;
use support::described::{Built, compare, gdb_says, lldb, lldb_says, lldb_transcript, transcript};
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// A program of `tests/cases`, or one in another language beside the tests.
struct Program {
    source: &'static str,
    compiler: &'static str,
    options: &'static [&'static str],
    /// The function to stop in.
    at: &'static str,
    /// Its caller may be stepped on through. gdb steps an instruction at a time until the line changes: where the line
    /// of the call is most of a loop, a hundred thousand of them.
    steps_on: bool,
}

const fn program(
    source: &'static str,
    compiler: &'static str,
    options: &'static [&'static str],
    at: &'static str,
) -> Program {
    Program {
        source,
        compiler,
        options,
        at,
        steps_on: true,
    }
}

impl Program {
    /// The same, called from a loop that is one line.
    const fn in_a_loop(mut self) -> Program {
        self.steps_on = false;
        self
    }

    /// Compiles, instruments, runs and optimises it: the input, and the output.
    fn made(&self, dir: &Path) -> Option<[PathBuf; 2]> {
        if !is_installed(self.compiler) {
            return None;
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let places = ["../../tests/cases", "tests/sources"].map(|p| here.join(p).join(self.source));
        let source = places.iter().find(|path| path.is_file());
        let path = |name: &str| dir.join(name);
        let link: &[&str] = match self.compiler {
            "rustc" => &["-O", "-g", "-Clink-arg=-Wl,-q"],
            // What the linker is given comes last.
            "gnatmake" => &["-O2", "-g", "-o", "app", "-largs", "-Wl,-q"],
            _ => &["-O2", "-Wl,-q", "-o", "app"],
        };
        let mut compile = Command::new(self.compiler);
        compile.current_dir(dir).arg(source.expect("it is there"));
        compile.args(self.options).args(link);
        if self.compiler == "rustc" {
            compile.args(["-o", "app"]);
        }
        done(&mut compile);
        let (program, inst, profile) = (path("app"), path("app.inst"), path("app.plraw"));
        let output = path("opt");
        let instrument = ["instrument", "-q", "-o"];
        done(
            Command::new(POSTLINK)
                .args(instrument)
                .arg(&inst)
                .arg(&program),
        );
        done(Command::new(&inst).env("POSTLINK_PROFILE", &profile));
        let said = done(
            Command::new(POSTLINK)
                .args(["optimize", "--json", "-p"])
                .arg(&profile)
                .arg(&program)
                .arg("-o")
                .arg(&output),
        );
        let json: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
        let debug = &json["optimize"]["debug"];
        let what = format!(
            "{} {} {:?}: {debug}",
            self.source, self.compiler, self.options
        );
        assert_eq!(debug["what"], "update", "{what}");
        assert_eq!(debug["losses"].as_array().map(Vec::len), Some(0), "{what}");
        assert_ne!(value(&program, self.at), None, "{what}");
        assert_ne!(
            value(&program, self.at),
            value(&output, self.at),
            "{what}: it did not move"
        );
        Some([program, output])
    }

    fn gdb(&self, program: &Path) -> Vec<String> {
        // Of this file alone: with its debug information installed, libc has functions of the same names.
        let stop = match self.compiler {
            "rustc" => format!("break {}", self.at),
            _ => format!("break {}:{}", self.source, self.at),
        };
        gdb_says(
            program,
            &[
                &stop,
                "run",
                "bt",
                "info args",
                "info locals",
                "up",
                "info locals",
                "down",
                "step",
                "step",
                "next",
                "next",
                "bt",
                "info locals",
                "continue",
                "bt",
                "delete",
                "finish",
                if self.steps_on { "next" } else { "info frame" },
                "kill",
                // gdb fails if its last command does, and the program may have ended.
                "show language",
            ],
        )
    }

    fn lldb(&self, program: &Path) -> Vec<String> {
        let file = program.file_name().expect("a file").to_string_lossy();
        let stop = format!("breakpoint set -s {file} -n {}", self.at);
        lldb_says(
            program,
            &[&[
                &stop,
                "run",
                "bt",
                "frame variable",
                "up",
                "frame variable",
                "down",
                "next",
                "bt",
                "kill",
            ]],
        )
    }

    /// Compares what debuggers say.
    fn check(&self, with_lldb: bool) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let Some([program, output]) = self.made(dir.path()) else {
            return;
        };
        let what = format!("{} {} {:?}", self.source, self.compiler, self.options);
        if is_installed("gdb") {
            let before = self.gdb(&program);
            let stops = |line: &String| line.contains("Breakpoint 1, ");
            assert!(
                before.iter().any(stops),
                "{what}: gdb did not stop: {before:#?}"
            );
            assert_eq!(self.gdb(&output), before, "{what}");
        }
        if with_lldb && lldb().is_some() {
            let before = self.lldb(&program);
            let stops = |line: &String| line.contains("stop reason = ");
            assert!(
                before.iter().any(stops),
                "{what}: LLDB did not stop: {before:#?}"
            );
            assert_eq!(self.lldb(&output), before, "{what}");
        }
    }
}

/// The value of the symbol whose name has a function's in it; `None` if there is none.
fn value(program: &Path, function: &str) -> Option<u64> {
    let data = std::fs::read(program).expect("it was just written");
    let elf = Elf::parse(&data).expect("it was just written");
    // `a::b` of Rust is mangled with both.
    let last = function.rsplit("::").next().expect("there is a last part");
    let symbols = elf.symbols(SymbolTable::Static);
    let mut found = symbols.iter().filter(|s| {
        let name = String::from_utf8_lossy(s.name);
        let is_mangled = name.starts_with('_') && name.contains(&format!("{}{last}", last.len()))
            // Of Fortran and Ada.
            || name.trim_end_matches(".0").ends_with(&format!("_{last}"));
        s.kind == 2
            && s.section != 0
            && (name == last || is_mangled)
            && !name.contains(".cold")
            && !name.ends_with(".entry")
    });
    found.next().map(|s| s.value)
}

#[test]
fn gcc_programs_are_debugged_as_before() {
    for program in [
        program("switch_dense.c", "gcc", &["-gdwarf-2"], "dispatch").in_a_loop(),
        program("computed_goto.c", "gcc", &["-gdwarf-4"], "interpret"),
        program("cold_parts.c", "gcc", &["-gdwarf-5"], "parse").in_a_loop(),
        program("nested_functions.c", "gcc", &["-gdwarf-5", "-g3"], "apply"),
        program("varargs.c", "gcc", &["-gdwarf-5", "-gdwarf64"], "mix"),
        program("frames.c", "gcc", &["-gdwarf-3"], "variable"),
    ] {
        program.check(false);
    }
}

#[test]
fn clang_programs_are_debugged_as_before() {
    for program in [
        program("tail_calls.c", "clang-19", &["-gdwarf-4"], "odd"),
        program("setjmp.c", "clang-19", &["-gdwarf-3"], "catcher"),
        program("contexts.c", "clang-19", &["-gdwarf-2"], "produce"),
        program("frames.c", "clang-19", &["-g"], "huge"),
        program("type_hashes.c", "clang-19", &["-g"], "two"),
        program("callbacks.c", "clang-19", &["-g"], "by_key"),
    ] {
        program.check(true);
    }
    // LLDB does not tell twice alike why a value of an outer frame is not known.
    program("backtraces.c", "clang-19", &["-g"], "recurse").check(false);
}

/// clang says that a prologue ends at the first instruction that has a line. When blocks were reordered that was
/// anywhere: LLDB, which looks at six rows alone, took the block that follows the entry in memory, however seldom that
/// runs. The input's own breakpoint is in a loop, so what debuggers say of this program is not the same.
#[test]
fn breakpoints_on_moved_functions_are_hit_at_each_entry() {
    const VERSIONS: [&[&str]; 3] = [&["-gdwarf-5"], &["-gdwarf-4"], &["-gdwarf-2"]];
    for version in VERSIONS {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let nested = program("switch_nested.c", "clang-19", version, "machine");
        let Some([_, output]) = nested.made(dir.path()) else {
            return;
        };
        // It is called 500 times, with the numbers from 0 on.
        let mut transcripts = Vec::new();
        if is_installed("gdb") {
            let script = ["break machine", "ignore 1 499", "run", "bt", "kill"];
            transcripts.push(("gdb", gdb_says(&output, &script)));
        }
        if lldb().is_some() {
            let set = "breakpoint set -s opt -n machine";
            let script = [set, "breakpoint modify -i 499", "run", "bt", "kill"];
            transcripts.push(("LLDB", lldb_says(&output, &[&script])));
        }
        for (debugger, said) in transcripts {
            let is_last = |line: &String| line.contains("machine") && line.contains("n=499");
            let is_caller = |line: &String| line.contains("main") && line.contains(":48");
            let what = format!("{debugger} {version:?}: {said:#?}");
            assert!(
                said.iter().any(is_last) && said.iter().any(is_caller),
                "{what}"
            );
        }
    }
}

#[test]
fn programs_in_cpp_are_debugged_as_before() {
    for program in [
        program("debug_info.cpp", "g++", &["-gdwarf-2"], "middle"),
        program("debug_info.cpp", "g++", &["-gdwarf-5", "-gz"], "middle"),
        program("eh_cold.cpp", "g++", &["-g"], "parse"),
        program("eh_frames.cpp", "g++", &["-g"], "deep"),
    ] {
        program.check(false);
    }
    for program in [
        program("debug_info.cpp", "clang++-19", &["-gdwarf-3"], "middle"),
        program("eh_frames.cpp", "clang++-19", &["-gdwarf-4"], "nested"),
        program(
            "generators.cpp",
            "clang++-19",
            &["-g", "-std=c++20"],
            "main",
        ),
        program("member_pointers.cpp", "clang++-19", &["-g"], "choose"),
    ] {
        program.check(true);
    }
    // `main` is between the parts of `total`.
    program("virtual_calls.cpp", "clang++-19", &["-g"], "total").check(knows_parts());
    // LLDB does not name a variable that is only in a jump which the output does not need.
    program(
        "cold_table_entry.cpp",
        "clang++-19",
        &["-gdwarf-5", "-no-pie"],
        "deep",
    )
    .check(false);
}

/// gdb finds functions of C++ by their demangled symbols as well. That of the jump at the old entry was demangled to
/// the same function, so a breakpoint had two places, and was hit twice by calls that go by way of the jump.
#[test]
fn breakpoints_on_functions_of_classes_have_one_place() {
    for (program, stop) in [
        (
            program("member_pointers.cpp", "g++", &["-g"], "f1"),
            "break S::f1",
        ),
        (
            program("virtual_calls.cpp", "clang++-19", &["-g"], "area"),
            "break Line::area",
        ),
    ] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let Some([input, output]) = program.made(dir.path()).filter(|_| is_installed("gdb")) else {
            continue;
        };
        let script = [
            stop,
            "info breakpoints",
            "run",
            "bt 1",
            "info vtbl this",
            "continue",
            "bt 1",
            "kill",
        ];
        let before = gdb_says(&input, &script);
        let is_hit = |line: &&String| line.starts_with("Breakpoint 1, ");
        assert_eq!(before.iter().filter(is_hit).count(), 2, "{before:#?}");
        assert_eq!(gdb_says(&output, &script), before, "{stop}");
    }
}

/// Whether LLDB knows of functions in parts. LLDB 19 takes one to extend over all that is between them, and does not
/// find the rows of a caller there.
fn knows_parts() -> bool {
    lldb() == Some("lldb-22")
}

#[test]
fn programs_in_rust_are_debugged_as_before() {
    for program in [
        program(
            "rust_panics.rs",
            "rustc",
            &["--crate-name=rust_panics"],
            "rust_panics::deep",
        ),
        program(
            "rust_async.rs",
            "rustc",
            &["--crate-name=rust_async", "--edition=2021"],
            "rust_async::main",
        ),
    ] {
        program.check(knows_parts());
    }
}

#[test]
fn programs_in_fortran_and_ada_are_debugged_as_before() {
    for program in [
        program("numbers.f90", "gfortran", &["-g", "-fno-inline"], "collect"),
        program("numbers.adb", "gnatmake", &[], "collect"),
    ] {
        program.check(false);
    }
}

/// `.debug_frame` was left as it was: without other unwind tables gdb guessed frames of moved code from instructions.
#[test]
fn gdb_unwinds_moved_code_by_debug_frame() {
    let options = &[
        "-g",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
    ];
    for compiler in ["gcc", "clang-19"] {
        program("setjmp.c", compiler, options, "thrower").check(false);
        program("tail_calls.c", compiler, options, "add").check(false);
    }
}

/// The package of an output.
fn package_of(output: &Path) -> PathBuf {
    output.with_file_name("opt.dwp")
}

/// Whether the checker proves an output.
fn is_proved(built: &Built, output: &Path) -> bool {
    let mut verify = Command::new(POSTLINK);
    let said = verify
        .args(["verify", "--json"])
        .arg(&built.program)
        .arg(output)
        .output();
    let said = said.expect("it runs");
    let json: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    said.status.success()
        && json["debug"]["state"] == "updated"
        && json["debug"]["stale_units"] == 0
}

/// Units whose entries were in files of their own described old code.
#[test]
fn split_units_follow_moved_code_into_a_package() {
    for (compiler, version) in [
        ("g++", "-gdwarf-4"),
        ("g++", "-gdwarf-5"),
        ("clang++-19", "-gdwarf-4"),
        ("clang++-19", "-gdwarf-5"),
    ] {
        let Some(built) = Built::new(compiler, &["-g", "-gsplit-dwarf", version]) else {
            continue;
        };
        let (gdb, lldb) = (is_installed("gdb"), lldb().is_some());
        // gdb 13 crashes on packages of DWARF 5, those of llvm-dwp as well.
        let gdb = gdb && version != "-gdwarf-5";
        let before = gdb.then(|| transcript(&built.program));
        for preset in ["--preset=safe", "--preset=size"] {
            let what = format!("{compiler} {version} {preset}");
            let (output, json) = built.optimised(&[preset]);
            let debug = &json["debug"];
            assert_eq!(debug["what"], "update", "{what}: {debug}");
            assert_eq!(
                debug["losses"].as_array().map(Vec::len),
                Some(0),
                "{what}: {debug}"
            );
            assert_eq!(
                debug["stale_units"].as_array().map(Vec::len),
                Some(0),
                "{what}: {debug}"
            );
            assert!(
                debug["package_bytes"].as_u64() > Some(500),
                "{what}: {debug}"
            );
            assert!(is_proved(&built, &output), "{what}");
            if is_installed("llvm-symbolizer-19") {
                let arguments = [
                    "--addresses",
                    "--inlines",
                    "--functions=linkage",
                    "--no-demangle",
                ];
                compare("llvm-symbolizer-19", &arguments, &built, &output, &what);
            }
            if let Some(before) = &before {
                assert_eq!(&transcript(&output), before, "{what}");
            }
            if lldb && compiler.contains("clang") && preset == "--preset=safe" {
                assert_eq!(
                    lldb_transcript(&output),
                    lldb_transcript(&built.program),
                    "{what}"
                );
            }
        }
    }
}

/// A package is written before the output, to a file of its own.
#[test]
fn a_package_that_cannot_be_written_is_an_error_and_leaves_nothing() {
    let Some(built) = Built::new("g++", &["-g", "-gsplit-dwarf", "-gdwarf-4"]) else {
        return;
    };
    let (output, _) = built.optimised(&[]);
    let package = package_of(&output);
    let outputs = [&output, &package];
    let before = outputs.map(|path| std::fs::read(path).expect("it was just written"));
    let names = || -> Vec<_> {
        let files = std::fs::read_dir(built.dir.path()).expect("it is ours");
        let mut names: Vec<_> = files.map(|e| e.expect("it is ours").file_name()).collect();
        names.sort();
        names
    };
    let known = names();
    // No file may have more than 1 KiB: the package has.
    let mut limited = Command::new("bash");
    let said = limited
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "bash"])
        .arg(POSTLINK)
        .args(["optimize", "-p"])
        .arg(&built.profile)
        .arg(&built.program)
        .arg("-o")
        .arg(&output)
        .output();
    let said = said.expect("it runs");
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success(), "{text}");
    assert!(
        text.contains("opt.dwp") && text.contains("File too large"),
        "{text}"
    );
    assert_eq!(names(), known);
    let now = outputs.map(|path| std::fs::read(path).expect("it stays"));
    assert!(now == before);
}

#[test]
fn a_package_of_the_input_becomes_one_of_the_output_and_faults_in_it_are_found() {
    let Some(built) = Built::new("clang++-19", &["-g", "-gsplit-dwarf", "-gdwarf-5"]) else {
        return;
    };
    if !is_installed("llvm-dwp-19") {
        return;
    }
    let dir = built.dir.path();
    let pack = ["-e", "app", "-o", "app.dwp"];
    done(Command::new("llvm-dwp-19").current_dir(dir).args(pack));
    for entry in std::fs::read_dir(dir).expect("it is ours") {
        let path = entry.expect("it is ours").path();
        if path.extension().is_some_and(|e| e == "dwo") {
            std::fs::remove_file(path).expect("it is ours");
        }
    }
    let (output, json) = built.optimised(&[]);
    assert_eq!(
        json["debug"]["stale_units"].as_array().map(Vec::len),
        Some(0),
        "{json}"
    );
    assert!(is_proved(&built, &output));
    let package = package_of(&output);
    let whole = std::fs::read(&package).expect("it was just written");
    let elf = Elf::parse_debug_file(&whole).expect("it was just written");
    let mut survivors = Vec::new();
    for section in elf
        .sections
        .iter()
        .filter(|s| s.name.starts_with(".debug_"))
    {
        // Nothing refers any more to the lists that were replaced; new ones are after them.
        let is_list = section.name.ends_with("lists.dwo");
        let parts = if is_list { [61, 62, 63] } else { [16, 32, 48] };
        for part in parts {
            let mut wrong = whole.clone();
            let at = (section.offset + section.size * part / 64) as usize;
            wrong[at] ^= 0x11;
            std::fs::write(&package, &wrong).expect("the folder is ours");
            if is_proved(&built, &output) {
                survivors.push(format!(
                    "{} at {:#x}",
                    section.name,
                    at as u64 - section.offset
                ));
            }
        }
    }
    assert_eq!(survivors, [""; 0]);
    // Without it units would be missing that skeletons name.
    std::fs::remove_file(&package).expect("it is ours");
    assert!(!is_proved(&built, &output));
}

/// A debugger took the package of an earlier output for that of a new one, which had none, and found no units.
#[test]
fn a_package_of_an_earlier_output_does_not_stay_beside_one_without() {
    let Some(built) = Built::new("clang++-19", &["-g", "-gsplit-dwarf", "-gdwarf-5"]) else {
        return;
    };
    let again = |debug_info: &str| -> String {
        let mut optimize = Command::new(POSTLINK);
        optimize.args(["optimize", debug_info, "-p"]);
        let names = [&built.profile, &built.program].map(|p| p.as_os_str());
        optimize
            .args(names)
            .arg("-o")
            .arg(built.dir.path().join("opt"));
        let said = done(&mut optimize);
        String::from_utf8_lossy(&said.stderr).into_owned()
    };
    let package = package_of(&built.dir.path().join("opt"));
    let warns = |said: &str| said.contains("opt.dwp is not of this output");
    for without in ["--debug-info=keep", "--debug-info=drop"] {
        assert!(!warns(&again("--debug-info=update")));
        let made = std::fs::read(&package).expect("it was just written");
        assert!(!warns(&again(without)));
        assert!(!package.exists(), "{without}");
        // Of no program that is known: it stays, and is told.
        std::fs::write(&package, &made).expect("the folder is ours");
        let said = again(without);
        assert!(warns(&said), "{without}: {said}");
        assert_eq!(std::fs::read(&package).ok(), Some(made), "{without}");
    }
    if !is_installed("llvm-dwp-19") {
        return;
    }
    // Units that stay as they are have the ids of the input: so has a package of these.
    let pack = ["-e", "app", "-o", "opt.dwp"];
    let mut packed = Command::new("llvm-dwp-19");
    done(packed.current_dir(built.dir.path()).args(pack));
    assert!(!warns(&again("--debug-info=keep")));
    assert!(package.exists());
}

/// A loop that takes a while, in a function with a part that is seldom run.
const LOOP: &str = r#"
#include <stdio.h>
__attribute__((noinline, noipa)) static unsigned work(unsigned n, unsigned x) {
  for (unsigned i = 0; i < n; i++) {
    x = x * 1103515245u + 12345u;
    if ((x >> 16) % 1000 == 7)
      x ^= x >> 3;
    else
      x += x >> 11;
  }
  return x;
}
int main(void) {
  unsigned x = 1;
  for (int i = 0; i < 60; i++) x = work(1000000, x);
  printf("%u\n", x);
}
"#;

/// perf knew no lines in moved code: it uses one distance of addresses and file offsets for a whole file, and took the
/// output for the input, whose build-id it had.
#[test]
fn perf_finds_lines_of_moved_code() {
    if !is_installed("perf") || !is_installed("gcc") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("loop.c"), LOOP).expect("the folder is ours");
    let options = ["-O2", "-g", "-Wl,-q", "-o", "app", "loop.c"];
    done(Command::new("gcc").current_dir(dir.path()).args(options));
    let (program, inst, profile, output) = (
        path("app"),
        path("app.inst"),
        path("app.plraw"),
        path("opt"),
    );
    done(
        Command::new(POSTLINK)
            .args(["instrument", "-q", "-o"])
            .arg(&inst)
            .arg(&program),
    );
    done(Command::new(&inst).env("POSTLINK_PROFILE", &profile));
    let optimize = ["optimize", "-q", "-o"];
    done(
        Command::new(POSTLINK)
            .args(optimize)
            .arg(&output)
            .arg("-p")
            .arg(&profile)
            .arg(&program),
    );
    assert_ne!(
        value(&program, "work"),
        value(&output, "work"),
        "it did not move"
    );
    let data = path("perf.data");
    let record = ["record", "-q", "-e", "cpu-clock", "-F", "2000", "-o"];
    let recorded = Command::new("perf")
        .args(record)
        .arg(&data)
        .arg(&output)
        .output()
        .expect("it runs");
    if !recorded.status.success() {
        let why = String::from_utf8_lossy(&recorded.stderr).into_owned();
        eprintln!(
            "SKIPPED: perf may not record here: {}",
            why.lines().next().unwrap_or_default()
        );
        return;
    }
    let perf = |arguments: &[&str]| -> String {
        let mut command = Command::new("perf");
        // Its archive of binaries is that of whoever runs this.
        let home = dir.path().join("home");
        let said = done(
            command
                .args(arguments)
                .arg("-i")
                .arg(&data)
                .env("HOME", home),
        );
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let is_work = |line: &str, of: &str| (5..=9).any(|n| line.contains(&format!("{of}:{n}")));
    let report = perf(&["report", "--stdio", "-s", "sym,srcline"]);
    let samples = report.lines().filter(|line| line.contains("work")).count();
    if samples == 0 {
        eprintln!("SKIPPED: perf took no sample: {report}");
        return;
    }
    let known = report
        .lines()
        .filter(|line| line.contains("work") && is_work(line, "loop.c"));
    assert!(known.count() * 2 >= samples, "{report}");
    let annotated = perf(&["annotate", "--stdio", "-l", "-s", "work"]);
    let known = annotated
        .lines()
        .filter(|line| is_work(line, "loop.c"))
        .count();
    assert!(known >= 3, "{annotated}");
}

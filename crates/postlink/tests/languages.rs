//! Programs of languages whose compilers and run-times do more with code addresses than C does:
//! `tests/languages`. Each is built with its relocations kept, and must print the same plain, instrumented in
//! every mode, and optimised in every preset; or be refused with a sentence that names its run-time.
//!
//! A language whose compiler is not there is skipped, and the package that has it is named.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use postlink_verify::mutate::{Faults, Kind};
use postlink_verify::{Options, Verdict};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// What becomes of a language's programs.
#[derive(Clone, Copy)]
enum Expected {
    /// Functions move, and the program does what it did.
    Works,
    /// The file is refused, and the sentence has this in it.
    Refused(&'static str),
}

/// A program in a language.
#[derive(Clone, Copy)]
struct Language {
    source: &'static str,
    compiler: &'static str,
    /// What must be there as well, as a path.
    needs: &'static str,
    package: &'static str,
    /// `{in}` is the source, `{out}` the program, `{dir}` a folder for what else the compiler writes.
    arguments: &'static [&'static str],
    expected: Expected,
    /// What runs the program, if it is for another machine.
    runner: &'static [&'static str],
    /// Beginnings of the names of functions that must move.
    moves: &'static [&'static str],
    /// Kinds of faults that must be found in what is optimised.
    faults: &'static [Kind],
    /// The same in what counts at entries.
    faults_at_entries: &'static [Kind],
}

/// Works, on this machine.
const WORKS: Language = Language {
    source: "",
    compiler: "",
    needs: "",
    package: "",
    arguments: &[],
    expected: Expected::Works,
    runner: &[],
    moves: &[],
    faults: &[],
    faults_at_entries: &[],
};

/// Ada with handlers for exceptions that come from instructions.
const FAULTS: Language = Language {
    source: "faults.adb",
    compiler: "gnatmake",
    package: "gnat",
    arguments: &[
        "-q", "-O2", "-D", "{dir}", "{in}", "-o", "{out}", "-largs", "-Wl,-q",
    ],
    moves: &[
        "faults__work__quotient",
        "faults__work__read_twice",
        "faults__work__guarded",
        "faults__work__kept_over",
        "faults__work__looped",
        "faults__work__outer",
        "_ada_faults",
    ],
    faults: Kind::FAULTS_RAISE,
    faults_at_entries: Kind::FAULTS_RAISE_AT_ENTRIES,
    ..WORKS
};

const LANGUAGES: &[Language] = &[
    Language {
        source: "accesses.adb",
        compiler: "gnatmake",
        package: "gnat",
        arguments: &[
            "-q", "-O2", "-D", "{dir}", "{in}", "-o", "{out}", "-largs", "-Wl,-q",
        ],
        ..WORKS
    },
    FAULTS,
    Language {
        compiler: "aarch64-linux-gnu-gnatmake",
        package: "gnat-12-aarch64-linux-gnu",
        runner: &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
        // There the fault would need another counter than a store of one instruction.
        faults_at_entries: &[],
        ..FAULTS
    },
    Language {
        source: "maps.hs",
        compiler: "ghc",
        package: "ghc",
        arguments: &[
            "-v0",
            "-O1",
            "-XExistentialQuantification",
            "-outputdir",
            "{dir}",
            "{in}",
            "-o",
            "{out}",
            "-optl-Wl,-q",
            "-optl-fuse-ld=bfd",
        ],
        ..WORKS
    },
    Language {
        source: "frames.ml",
        compiler: "ocamlopt",
        package: "ocaml-nox",
        arguments: &["-ccopt", "-Wl,-q", "{in}", "-o", "{out}"],
        ..WORKS
    },
    Language {
        source: "runtime.go",
        compiler: "go",
        package: "golang-go",
        arguments: &[
            "build",
            "-ldflags=-linkmode external -extldflags -Wl,-q",
            "-o",
            "{out}",
            "{in}",
        ],
        expected: Expected::Refused("the run-time of Go"),
        ..WORKS
    },
    Language {
        source: "procedures.f90",
        compiler: "gfortran",
        package: "gfortran",
        arguments: &["-O2", "-J{dir}", "-Wl,-q", "{in}", "-o", "{out}"],
        ..WORKS
    },
    Language {
        source: "selectors.m",
        compiler: "gcc",
        needs: "/usr/lib/gcc/x86_64-linux-gnu/12/cc1obj",
        package: "gobjc",
        arguments: &[
            "-std=gnu11",
            "-O2",
            "-w",
            "-fobjc-exceptions",
            "-Wl,-q",
            "{in}",
            "-lobjc",
            "-o",
            "{out}",
        ],
        ..WORKS
    },
    Language {
        source: "delegates.d",
        compiler: "gdc",
        package: "gdc",
        arguments: &["-O2", "-Wl,-q", "{in}", "-o", "{out}"],
        ..WORKS
    },
    Language {
        source: "classes.pas",
        compiler: "fpc",
        package: "fp-compiler",
        // Unless told not to, it strips, and the linker keeps no relocations of a file that it strips.
        arguments: &["-O2", "-Xs-", "-XX-", "-k-q", "-FU{dir}", "-o{out}", "{in}"],
        ..WORKS
    },
    Language {
        source: "closures.nim",
        compiler: "nim",
        package: "nim",
        arguments: &[
            "c",
            "--hints:off",
            "-d:release",
            "--passL:-Wl,-q",
            "--nimcache:{dir}",
            "-o:{out}",
            "{in}",
        ],
        ..WORKS
    },
];

const MODES: [&[&str]; 5] = [
    &[],
    &["--mode", "function-coverage"],
    &["--mode", "call-graph"],
    &["--mode", "call-edges"],
    &["--mode", "block-coverage"],
];

const PRESETS: [&[&str]; 7] = [
    &["--preset", "safe"],
    &["--preset", "fast"],
    &["--preset", "size"],
    &["--preset", "max"],
    &["--preset", "size", "--pointers", "stay"],
    &["--align-functions", "1", "--split-functions=none"],
    &[
        "--reorder-functions=none",
        "--reorder-blocks=none",
        "--pointers",
        "stay",
    ],
];

fn run(command: &mut Command) -> Result<Output, String> {
    command
        .output()
        .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))
}

/// Runs something that must succeed.
fn done(command: &mut Command) -> Result<Output, String> {
    let output = run(command)?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(format!("{command:?}: {}\n{}", output.status, text(&output)))
    }
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr];
    parts.map(|p| String::from_utf8_lossy(p)).concat()
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn build(language: &Language, dir: &Path) -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/languages");
    let source = dir.join(language.source);
    std::fs::copy(sources.join(language.source), &source).map_err(|e| e.to_string())?;
    let (program, rest) = (dir.join("program"), dir.join("objects"));
    std::fs::create_dir_all(&rest).map_err(|e| e.to_string())?;
    let fill = |argument: &&str| -> OsString {
        let paths = [("{in}", &source), ("{out}", &program), ("{dir}", &rest)];
        let filled = paths
            .iter()
            .fold((*argument).to_owned(), |text, (name, path)| {
                text.replace(name, &path.to_string_lossy())
            });
        filled.into()
    };
    let mut command = Command::new(language.compiler);
    command
        .args(language.arguments.iter().map(fill))
        .current_dir(dir)
        // Where Go keeps what it has compiled.
        .env("GOCACHE", dir.join("cache"))
        .env("CGO_ENABLED", "1");
    done(&mut command)?;
    Ok(program)
}

fn check(language: &Language, dir: &Path) -> Result<(), String> {
    let program = build(language, dir)?;
    let start = |path: &Path| {
        let mut words = language
            .runner
            .iter()
            .map(OsString::from)
            .collect::<Vec<_>>();
        words.push(path.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(dir);
        command
    };
    let plain = text(&done(&mut start(&program))?);
    if let Expected::Refused(why) = language.expected {
        for mode in MODES {
            let mut command = Command::new(POSTLINK);
            command.arg("instrument").args(mode).arg(&program);
            let output = run(command.arg("-o").arg(dir.join("refused")))?;
            if output.status.success() || !text(&output).contains(why) {
                return Err(format!(
                    "instrument {mode:?}: not refused because of {why}: {}",
                    text(&output)
                ));
            }
        }
        return Ok(());
    }
    let profile = dir.join("run.plraw");
    for (number, mode) in MODES.into_iter().enumerate() {
        let counting = dir.join(format!("counting{number}"));
        let mut command = Command::new(POSTLINK);
        command.arg("instrument").args(mode).arg(&program);
        done(command.arg("-o").arg(&counting))?;
        let mut command = start(&counting);
        if mode.is_empty() {
            command.env("POSTLINK_PROFILE", &profile);
        } else {
            command.env(
                "LLVM_MIP_PROFILE_FILENAME",
                dir.join(format!("run{number}.mipraw")),
            );
        }
        let seen = text(&done(&mut command)?);
        if seen != plain {
            return Err(format!(
                "instrumented {mode:?} printed\n{seen}\nplain\n{plain}"
            ));
        }
        if number == 1 && !language.faults_at_entries.is_empty() {
            let (input, output) = (read(&program)?, read(&counting)?);
            let faults = Faults::new(&input, &output)?;
            found(&faults, language.faults_at_entries, &input)?;
        }
    }
    for (number, preset) in PRESETS.into_iter().enumerate() {
        let optimised = dir.join(format!("optimised{number}"));
        let mut command = Command::new(POSTLINK);
        command
            .arg("optimize")
            .arg(&program)
            .arg("-p")
            .arg(&profile);
        done(command.args(preset).arg("-o").arg(&optimised))?;
        done(
            Command::new(POSTLINK)
                .arg("verify")
                .arg(&program)
                .arg(&optimised),
        )?;
        let seen = text(&done(&mut start(&optimised))?);
        if seen != plain {
            return Err(format!(
                "optimised {preset:?} printed\n{seen}\nplain\n{plain}"
            ));
        }
        if number == 1 {
            moved(language, &program, &optimised)?;
        }
    }
    Ok(())
}

/// What must have moved, and faults that must be found.
fn moved(language: &Language, program: &Path, optimised: &Path) -> Result<(), String> {
    if language.moves.is_empty() && language.faults.is_empty() {
        return Ok(());
    }
    let (input, output) = (read(program)?, read(optimised)?);
    let verify = |output: &[u8]| postlink_verify::verify(&input, output, &Options::default());
    let report = verify(&output).map_err(|e| e.to_string())?;
    for name in language.moves {
        let is = |f: &&postlink_verify::FunctionReport| f.name.starts_with(name);
        let mut found = report.functions.iter().filter(is);
        if !found.any(|f| f.verdict == Verdict::Proved) {
            return Err(format!("{name} did not move"));
        }
    }
    found(&Faults::new(&input, &output)?, language.faults, &input)
}

/// Demands that faults of each kind can be put into an output, and are found.
fn found(faults: &Faults<'_>, kinds: &[Kind], input: &[u8]) -> Result<(), String> {
    for kind in kinds {
        let mut mutants = (0..12)
            .map_while(|seed| faults.inject(*kind, seed))
            .peekable();
        if mutants.peek().is_none() {
            return Err(format!("{kind:?} applies nowhere"));
        }
        for mutant in mutants {
            let report = postlink_verify::verify(input, &mutant.image, &Options::default());
            if report.is_ok_and(|report| report.is_proved()) {
                return Err(format!("{kind:?} is not found: {}", mutant.what));
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn main() -> ExitCode {
    let trials = LANGUAGES.iter().map(|language| {
        let language = *language;
        let machine = if language.runner.is_empty() {
            ""
        } else {
            "_aarch64"
        };
        let name = language.source.replace('.', "_") + machine;
        Trial::ignorable_test(name, move || {
            let runner = language.runner.first().copied();
            let also = (!language.needs.is_empty()).then_some(language.needs);
            let needed = std::iter::once(language.compiler)
                .chain(also)
                .map(|needed| (needed, language.package))
                .chain(runner.map(|runner| (runner, "qemu-user")));
            let missing = needed.clone().find(|(program, _)| !is_there(program));
            if let Some((program, package)) = missing {
                let why = format!("{program} is not installed (Debian's package {package})");
                eprintln!("SKIPPED: {}: {why}", language.source);
                return Ok(Completion::ignored_with(why));
            }
            let dir = tempfile::tempdir().map_err(|e| Failed::from(e.to_string()))?;
            check(&language, dir.path()).map_err(Failed::from)?;
            Ok(Completion::Completed)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

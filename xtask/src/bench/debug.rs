//! `cargo xtask bench debug`: what it costs to update debug information, and what is left of it, side by side with
//! llvm-bolt 19 and 22 (`-update-debug-sections`).
//!
//! | program | debug information |
//! |---|---|
//! | lua, sqlite | by gcc and clang, DWARF 4 and 5, one of them split |
//! | ripgrep, postlink itself | by rustc, `debug=2` |
//! | postlink itself once more | by rustc, `debug=1`: lines and inlined functions, as the target for Rust programs has it |
//! | with `--large`: cppcheck, once and many times in one program | by clang, DWARF 5: C++, as much code as clang |
//! | others | `--file PROGRAM PROFILE`, for instance a clang that was built with `-g` |
//!
//! The report ends with the targets, and what was measured of them. What stands in the file from the heading [`KEPT`]
//! on is kept: it explains the design, and is written by hand.
//!
//! Each tool optimises with the same profile with and without debug information; what it costs is the difference. None
//! of them checks what it made; postlink is measured once more with its proof, which covers debug information. Rows,
//! scopes and places are counted by `llvm-dwarfdump`, and so are errors of `--verify`, which never ends on some inputs
//! and is ended after a minute. Transcripts of gdb and LLDB are compared for postlink itself; those of small programs
//! are compared by tests (`crates/postlink/tests/debug_transcripts.rs`).

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use postlink_measure::{Walsh, ratio::CONFIDENCE};
use serde_json::Value;

use super::{fdata, tools::Tools};
use crate::packages;
use crate::process::{self, Run, median};
use crate::text::grouped;

/// How long `llvm-dwarfdump --verify` may take.
const VERIFY_LIMIT: Duration = Duration::from_secs(60);
/// Short runs go on until they have taken so long together.
const PAIRED: Duration = Duration::from_secs(10);
const MOST_RUNS: usize = 60;
const DWARFDUMP: &str = "llvm-dwarfdump-19";

/// Begins the part of the report that is not written here.
const KEPT: &str = "## Why it is as it is";

/// What updating a program may add: seconds by the clock, and megabytes, with two processors.
const TARGETS: [(&str, f64, f64); 4] = [
    ("sqlite-clang-5", 0.03, 10.0),
    ("postlink-rustc-lines", 0.3, 80.0),
    ("clang-5", 4.0, 600.0),
    ("clang-5-split", 4.0, 600.0),
];

/// A tool that optimises.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    Postlink,
    Bolt(&'static str),
}

const ALL: [Tool; 3] = [
    Tool::Postlink,
    Tool::Bolt("llvm-bolt-19"),
    Tool::Bolt("llvm-bolt-22"),
];

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Postlink => "postlink",
            Tool::Bolt(name) => name,
        }
    }
}

/// A program with debug information, and how to run it.
struct Subject {
    name: String,
    program: PathBuf,
    /// `.plraw`; made by running it if it is not there.
    profile: Option<PathBuf>,
    /// Its workload in `workload.sh`, or arguments of its own.
    workload: Workload,
}

enum Workload {
    Script(&'static str),
    Arguments(Vec<PathBuf>),
}

/// What the command line says.
struct Wishes {
    runs: usize,
    /// Programs whose building and measuring takes half an hour.
    large: bool,
    /// Gigabytes of address space that llvm-bolt may take: without a bound it takes the machine with it.
    bolt_memory: u64,
    /// Bytes of a program from which on postlink is measured alone, and without its proof.
    alone: u64,
    /// A command in front of all that is measured, such as `taskset -c 1`.
    pin: Vec<String>,
    output: PathBuf,
    postlink: Option<PathBuf>,
    files: Vec<(PathBuf, PathBuf)>,
    names: Vec<String>,
}

impl Wishes {
    fn parse(arguments: &[String]) -> Result<Wishes> {
        let mut wishes = Wishes {
            runs: 5,
            large: false,
            bolt_memory: 16,
            alone: u64::MAX,
            pin: Vec::new(),
            output: super::root()?.join("bench/debug.md"),
            postlink: None,
            files: Vec::new(),
            names: Vec::new(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || {
                rest.next()
                    .with_context(|| format!("{argument} needs a value"))
            };
            match argument.as_str() {
                "--runs" => wishes.runs = value()?.parse().context("--runs needs a number")?,
                "--output" => wishes.output = value()?.into(),
                "--large" => wishes.large = true,
                "--bolt-memory" => {
                    wishes.bolt_memory =
                        value()?.parse().context("--bolt-memory needs gigabytes")?;
                }
                "--alone" => {
                    let megabytes: u64 = value()?.parse().context("--alone needs megabytes")?;
                    wishes.alone = megabytes << 20;
                }
                "--processor" => {
                    wishes.pin = ["taskset", "-c", value()?].map(str::to_owned).to_vec();
                }
                "--postlink" => wishes.postlink = Some(value()?.into()),
                "--file" => wishes.files.push((value()?.into(), value()?.into())),
                other if other.starts_with('-') => {
                    bail!("cargo xtask bench debug has no option '{other}'")
                }
                name => wishes.names.push(name.to_owned()),
            }
        }
        Ok(wishes)
    }
}

/// Builds what there is to measure.
fn subjects(wishes: &Wishes, corpus: &Path, postlink: &Path) -> Result<Vec<Subject>> {
    let mut out = Vec::new();
    let groups: &[&str] = if wishes.large {
        &["debug", "debug-large"]
    } else {
        &["debug"]
    };
    let bin = corpus.join("bin");
    let is_there = |name: &String| groups.iter().any(|g| bin.join(g).join(name).exists());
    let are_there = !wishes.names.is_empty() && wishes.names.iter().all(is_there);
    for group in groups {
        let folder = bin.join(group);
        if !are_there {
            let script = super::root()?.join("bench/corpus/build.sh");
            let mut command = Command::new(script);
            command.arg(corpus).arg(group);
            if !wishes.names.is_empty() {
                command.env("ONLY", wishes.names.join(" "));
            }
            let status = command.status();
            let status = status.context("build.sh")?;
            if !status.success() {
                bail!("build.sh {} {group}: {status}", corpus.display());
            }
        }
        let mut names: Vec<String> = fs::read_dir(&folder)
            .with_context(|| folder.display().to_string())?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| !name.contains('.'))
            .collect();
        names.sort();
        for name in names {
            let workload = match name.split('-').next() {
                Some("lua") => Workload::Script("lua"),
                Some("sqlite") => Workload::Script("sqlite"),
                Some("cppcheck") => Workload::Script("cppcheck"),
                Some("rg") => Workload::Script("rg"),
                Some("clang") => Workload::Script("clang"),
                // It reads a program that is there.
                _ => Workload::Arguments(vec!["inspect".into(), "--json".into(), postlink.into()]),
            };
            out.push(Subject {
                program: folder.join(&name),
                name,
                profile: None,
                workload,
            });
        }
    }
    for (program, profile) in &wishes.files {
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        out.push(Subject {
            name,
            program: program.clone(),
            profile: Some(profile.clone()),
            workload: Workload::Arguments(Vec::new()),
        });
    }
    out.retain(|s| wishes.names.is_empty() || wishes.names.contains(&s.name));
    Ok(out)
}

/// What a file says.
#[derive(Default)]
struct Described {
    /// Bytes of sections of debug information, and of a package beside the program.
    bytes: u64,
    rows: u64,
    scopes: u64,
    /// Bytes of code for which a variable's place is known, added up.
    covered: u64,
    /// Errors of `--verify`; `None` if it did not end.
    errors: Option<u64>,
}

/// Counts lines of a command's output that a test holds for.
fn count(
    command: &mut Command,
    limit: Duration,
    is: impl Fn(&str) -> bool + Sync,
) -> Result<Option<u64>> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{command:?}"))?;
    let started = Instant::now();
    let output = child.stdout.take().context("its output is a pipe")?;
    let counting = std::thread::scope(|scope| -> Result<(u64, bool)> {
        let reader = scope.spawn(|| {
            let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
            lines
                .filter(|line| is(&String::from_utf8_lossy(line)))
                .count() as u64
        });
        let mut ended = true;
        while child.try_wait()?.is_none() {
            if started.elapsed() > limit {
                child.kill()?;
                ended = false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok((reader.join().unwrap_or(0), ended))
    });
    let (number, ended) = counting?;
    Ok(ended.then_some(number))
}

/// Whether what a program's debug information describes is counted: not if it takes minutes.
fn is_counted(program: &Path) -> bool {
    const LARGEST: u64 = 100 << 20;
    fs::metadata(program).is_ok_and(|m| m.len() < LARGEST)
}

/// Counts what is described. `verify`: errors as well.
fn described(program: &Path, verify: bool) -> Result<Described> {
    let sections = Command::new("readelf")
        .arg("-SW")
        .arg(program)
        .output()
        .context("readelf")?;
    let bytes = String::from_utf8_lossy(&sections.stdout)
        .lines()
        .filter_map(|line| {
            let mut words = line.split_once(']')?.1.split_whitespace();
            let name = words.next()?;
            let size = words.nth(3)?;
            let is_debug = name.starts_with(".debug_") || name == ".gdb_index";
            u64::from_str_radix(size, 16).ok().filter(|_| is_debug)
        })
        .sum::<u64>();
    // Counting takes longer than all that is measured.
    if !is_counted(program) {
        return Ok(Described {
            bytes,
            ..Described::default()
        });
    }
    let mut package = program.as_os_str().to_owned();
    package.push(".dwp");
    let bytes = bytes + fs::metadata(package).map_or(0, |m| m.len());
    let dump = |option: &str| {
        let mut command = Command::new(DWARFDUMP);
        command.arg(option).arg(program);
        command
    };
    let long = Duration::from_secs(600);
    let rows = count(&mut dump("--debug-line"), long, |line| {
        line.starts_with("0x")
    })?
    .unwrap_or(0);
    let said = dump("--statistics").output().context(DWARFDUMP)?;
    let statistics: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
    let number = |name: &str| statistics[name].as_u64().unwrap_or(0);
    Ok(Described {
        bytes,
        rows,
        scopes: number("#functions with location") + number("#inlined functions"),
        covered: number("sum_all_variables(#bytes in parent scope covered by DW_AT_location)"),
        errors: if verify {
            count(&mut dump("--verify"), VERIFY_LIMIT, |line| {
                line.starts_with("error:")
            })?
        } else {
            None
        },
    })
}

/// What a tool is to do.
#[derive(Clone, Copy)]
struct How {
    /// Debug information is updated.
    update: bool,
    /// The output is proved.
    prove: bool,
}

/// Runs a tool.
fn optimise(
    tool: Tool,
    (tools, wishes): (&Tools, &Wishes),
    subject: &Subject,
    (profile, data): (&Path, &Path),
    (output, how): (&Path, How),
    folder: &Path,
) -> Result<Run> {
    let mut words: Vec<OsString> = wishes.pin.iter().map(OsString::from).collect();
    match tool {
        Tool::Postlink => words.push(tools.program().into()),
        Tool::Bolt(name) => words.extend([
            "prlimit".into(),
            format!("--as={}", wishes.bolt_memory << 30).into(),
            name.into(),
        ]),
    }
    let (first, rest) = words.split_first().context("a tool has a name")?;
    let mut command = Command::new(first);
    command.args(rest);
    let _ = fs::remove_file(output); // It may not be there.
    match tool {
        Tool::Postlink => {
            let what = if how.update { "update" } else { "keep" };
            command.args(["optimize", "-q", "--debug-info", what]);
            if !how.prove {
                command.arg("--no-verify");
            }
            command.arg("-p").arg(profile).arg(&subject.program);
        }
        Tool::Bolt(_) => {
            command
                .arg(&subject.program)
                .arg(format!("-data={}", data.display()));
            command.args(["-reorder-blocks=ext-tsp", "-reorder-functions=cdsort"]);
            command.args(["-split-functions", "-split-all-cold", "-split-eh"]);
            if how.update {
                command.arg("-update-debug-sections");
            }
        }
    }
    command.arg("-o").arg(output);
    let run = process::run(&mut command, &folder.join("out"), &folder.join("err"))?;
    if !run.status.success() || !output.exists() {
        let said = fs::read_to_string(folder.join("err")).unwrap_or_default();
        eprintln!("{command:?}: {}: {said}", run.status);
        bail!(
            "{}: {}",
            run.status,
            said.lines().last().unwrap_or_default()
        );
    }
    Ok(run)
}

/// Where transcripts of postlink itself stop: in its main function, and deep in code that ran.
const STOPS: [&str; 2] = ["postlink::main", "postlink_elf::elf::Elf::parse"];

/// A debugger whose transcripts are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Debugger {
    Gdb,
    Lldb,
}

impl Debugger {
    fn name(self) -> &'static str {
        match self {
            Debugger::Gdb => "gdb",
            Debugger::Lldb => "LLDB",
        }
    }

    /// Stops, shows frames and variables, steps, and returns to the caller.
    fn command(self, program: &Path, reads: &Path, stop: &str) -> Command {
        let mut command = match self {
            Debugger::Gdb => Command::new("gdb"),
            Debugger::Lldb => Command::new("lldb-19"),
        };
        let run = format!("run inspect {}", reads.display());
        match self {
            Debugger::Gdb => {
                command.args(["-q", "-nx", "-batch"]);
                let before = [
                    "set pagination off",
                    "set width 0",
                    "set debuginfod enabled off",
                ];
                let stop = format!("break {stop}");
                let steps = [
                    "bt",
                    "info args",
                    "info locals",
                    "step",
                    "step",
                    "step",
                    "bt",
                    "info locals",
                    "up",
                    "info locals",
                    "down",
                    "finish",
                    "next",
                    "next",
                    "bt",
                    "kill",
                ];
                for line in before.into_iter().chain([&*stop, &*run]).chain(steps) {
                    command.args(["-ex", line]);
                }
            }
            Debugger::Lldb => {
                command.args(["-b", "-x"]);
                let stop = format!("breakpoint set -n {stop}");
                let steps = [
                    "bt",
                    "frame variable",
                    "next",
                    "next",
                    "bt",
                    "up",
                    "frame variable",
                    "down",
                    "finish",
                    "bt",
                    "kill",
                ];
                let before = ["settings set target.disable-aslr true", &*stop, &*run];
                for line in before.into_iter().chain(steps) {
                    command.args(["-o", line]);
                }
            }
        }
        command.arg(program);
        command
    }
}

/// Lines of what a debugger says, without addresses and numbers of processes.
fn transcript(debugger: Debugger, program: &Path, reads: &Path, stop: &str) -> Result<Vec<String>> {
    let said = debugger.command(program, reads, stop).output();
    let said = said.with_context(|| debugger.name())?;
    let name = program.display().to_string();
    let plain = |line: &str| -> String {
        let mut out = String::new();
        let line = line.replace(&name, "PROGRAM");
        let mut parts = line.split("0x");
        out.extend(parts.next());
        for part in parts {
            out += "0x";
            out += part.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        }
        out
    };
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let changes = [
        "[Inferior",
        "libthread_db",
        "Process ",
        "[New Thread",
        "[Switching to",
        "xecutable",
        "_start",
    ];
    let lines = text
        .lines()
        .filter(|l| !changes.iter().any(|c| l.contains(c)));
    Ok(lines.map(plain).collect())
}

/// Compares transcripts of postlink itself before and after.
fn compare_transcripts(before: &Path, after: &Path, folder: &Path) -> Result<String> {
    let mut out = String::new();
    // What both read is small, and the same.
    let reads = Path::new("/bin/true");
    for debugger in [Debugger::Gdb, Debugger::Lldb] {
        for stop in STOPS {
            let same = folder.join("same-name");
            let mut all = Vec::new();
            for program in [before, after] {
                fs::copy(program, &same).context("a copy to debug")?;
                all.push(transcript(debugger, &same, reads, stop)?);
            }
            let [a, b] = &all[..] else { continue };
            let last = stop.rsplit("::").next().unwrap_or(stop);
            let stopped = a.iter().filter(|line| line.contains(last)).count();
            let pairs = || a.iter().zip(b);
            let differ = pairs().filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len());
            for (a, b) in pairs().filter(|(a, b)| a != b).take(5) {
                eprintln!("{} {stop}:\n- {a}\n+ {b}", debugger.name());
            }
            out += &format!(
                "| {} | `{stop}` | {} | {stopped} | {differ} |\n",
                debugger.name(),
                a.len()
            );
        }
    }
    Ok(out)
}

/// Seconds by the clock, seconds of processors, bytes.
type Medians = (f64, f64, f64);

fn medians(runs: &[Run]) -> Medians {
    let of =
        |value: fn(&Run) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0);
    (
        of(|r| r.wall.as_secs_f64()),
        of(|r| r.cpu.as_secs_f64()),
        of(|r| r.peak as f64),
    )
}

/// Gives a subject its profile, for postlink and for llvm-bolt.
fn profile(
    subject: &Subject,
    tools: &Tools,
    corpus: &Path,
    folder: &Path,
) -> Result<(PathBuf, PathBuf)> {
    let profile = match &subject.profile {
        Some(profile) => profile.clone(),
        None => {
            let (copy, profile) = (folder.join("inst"), folder.join("app.plraw"));
            // Counters of another program may be there, which a run would continue.
            let _ = fs::remove_file(&profile);
            tools.postlink_instrument(&subject.program, &copy, folder)?;
            let mut command = match &subject.workload {
                Workload::Script(name) => {
                    let mut command = Command::new(super::root()?.join("bench/corpus/workload.sh"));
                    command.arg(name).arg(&copy).arg(corpus);
                    // The file that is checked: many copies check it one after another.
                    if *name == "cppcheck" {
                        command.env("N", "lzio");
                    }
                    command
                }
                Workload::Arguments(arguments) => {
                    let mut command = Command::new(&copy);
                    command.args(arguments);
                    command
                }
            };
            command.env("POSTLINK_PROFILE", &profile);
            let run = process::run(&mut command, &folder.join("out"), &folder.join("err"))?;
            if !run.status.success() {
                bail!("{command:?}: {}", run.status);
            }
            profile
        }
    };
    let counts = tools.postlink_counts(&subject.program, &profile, folder)?;
    let data = folder.join("app.fdata");
    let names = fdata::names(&subject.program)?;
    fs::write(&data, fdata::from_counts(&counts, &names)?).context("app.fdata")?;
    Ok((profile, data))
}

/// What was measured of a tool.
struct Measured {
    row: String,
    added: Added,
    /// Bytes of memory that the update adds.
    memory: f64,
}

/// Seconds by the clock that the update adds, from pairs of runs with it and without.
#[derive(Clone, Copy)]
struct Added {
    /// Hodges and Lehmann's estimate.
    seconds: f64,
    /// Its interval at 95 %, from the signed ranks; without bounds where the pairs are too few for it.
    interval: (f64, f64),
    pairs: usize,
}

impl Added {
    fn of([without, with]: &[Vec<Run>; 2]) -> Added {
        let pairs = without.iter().zip(with);
        let differences: Vec<f64> = pairs
            .map(|(a, b)| b.wall.as_secs_f64() - a.wall.as_secs_f64())
            .collect();
        let walsh = Walsh::new(&differences);
        Added {
            seconds: walsh.estimate().unwrap_or(0.0),
            interval: walsh.interval(CONFIDENCE),
            pairs: differences.len(),
        }
    }

    /// `+0.031 [0.029, 0.033]`, in seconds.
    fn words(&self) -> String {
        let (low, high) = self.interval;
        match low.is_finite() && high.is_finite() {
            true => format!("{:+.3} [{low:.3}, {high:.3}]", self.seconds),
            false => format!("{:+.3}", self.seconds),
        }
    }
}

/// A row for a tool. `proved`: also with a proof of the output.
fn row(
    tool: Tool,
    (tools, wishes): (&Tools, &Wishes),
    subject: &Subject,
    (profiles, before): ((&Path, &Path), &Described),
    (folder, end): (&Path, &mut String),
    proved: bool,
) -> Result<Measured> {
    let output = folder.join(format!("{}.{}", subject.name, tool.name()));
    let both = |prove: bool| -> Result<([Medians; 2], Added)> {
        let mut runs = [Vec::new(), Vec::new()];
        let mut spent = Duration::ZERO;
        // What is added to a run of a tenth of a second is less than what five of them differ by.
        while runs[0].len() < wishes.runs || !prove && spent < PAIRED && runs[0].len() < MOST_RUNS {
            let first: Option<&Run> = runs[0].first();
            if first.is_some_and(|run| run.wall > super::LONG) {
                break;
            }
            for (update, runs) in [false, true].into_iter().zip(&mut runs) {
                let how = (&*output, How { update, prove });
                let with = (tools, wishes);
                let run = optimise(tool, with, subject, profiles, how, folder)?;
                spent += run.wall;
                runs.push(run);
            }
        }
        Ok((runs.each_ref().map(|runs| medians(runs)), Added::of(&runs)))
    };
    let proved = match tool {
        Tool::Postlink if proved => {
            let ([a, b], _) = both(true)?;
            format!("{:+.2} s, {:+.0} MB", b.1 - a.1, (b.2 - a.2) / 1e6)
        }
        Tool::Postlink => "not measured".to_owned(),
        Tool::Bolt(_) => "none".to_owned(),
    };
    let ([a, b], added) = both(false)?;
    let after = described(&output, before.errors.is_some())?;
    // The files of split units of an input are many, and tools differ in how many they make.
    let size = if subject.name.ends_with("-split") {
        "not counted".to_owned()
    } else {
        let growth = after.bytes as f64 / before.bytes.max(1) as f64 - 1.0;
        format!("{:+.1} %", 100.0 * growth)
    };
    let kept = |now: u64, before: u64| match before {
        0 => "not counted".to_owned(),
        _ => format!("{:.1} %", 100.0 * now as f64 / before as f64),
    };
    let errors = match (before.errors, after.errors) {
        (Some(before), Some(now)) => format!("{:+}", now as i64 - before as i64),
        _ if before.rows == 0 => "not counted".to_owned(),
        _ => "no end".to_owned(),
    };
    if tool == Tool::Postlink && subject.name == "postlink-rustc" {
        *end += &compare_transcripts(&subject.program, &output, folder)?;
    }
    fs::remove_file(&output).context("the output")?;
    let row = format!(
        "| {} | {} | {:.2} {} s | {:+.2} s | {:.0} {:+.0} MB | {proved} | {size} | {} | {} | {} | {errors} |\n",
        subject.name,
        tool.name(),
        a.0,
        added.words(),
        b.1 - a.1,
        a.2 / 1e6,
        (b.2 - a.2) / 1e6,
        kept(after.rows, before.rows),
        kept(after.scopes, before.scopes),
        kept(after.covered, before.covered),
    );
    let memory = b.2 - a.2;
    Ok(Measured { row, added, memory })
}

/// The targets, with what was measured of them.
fn targets(all: &[(String, Measured)]) -> String {
    let mut out = String::from(
        "\nTargets (what the update adds by the clock and in memory):\n\n| program | target | measured |\n|---|--:|--:|\n",
    );
    for (program, seconds, megabytes) in TARGETS {
        let found = all.iter().find(|(name, _)| name == program);
        let measured = match found {
            Some((_, measured)) => {
                let met = |is: f64, limit: f64| if is <= limit { "met" } else { "missed" };
                let (added, memory) = (measured.added, measured.memory / 1e6);
                format!(
                    "{} s of {} pairs ({}), {memory:.0} MB ({})",
                    added.words(),
                    added.pairs,
                    met(added.seconds, seconds),
                    met(memory, megabytes)
                )
            }
            None => "not measured".to_owned(),
        };
        out += &format!("| {program} | {seconds} s, {megabytes} MB | {measured} |\n");
    }
    out
}

/// What is kept of the report that is there.
fn kept_text(output: &Path) -> String {
    let before = fs::read_to_string(output).unwrap_or_default(); // there may be none
    let kept = before.find(&format!("\n{KEPT}\n"));
    kept.and_then(|at| before.get(at..))
        .unwrap_or_default()
        .to_owned()
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let wishes = Wishes::parse(arguments)?;
    packages::install(packages::FOR_DEBUG, true);
    let tools = Tools::at(wishes.postlink.as_deref())?;
    let corpus = super::programs::corpus()?;
    let folder = tempfile::tempdir().context("a folder for outputs")?;
    let kept = kept_text(&wishes.output);
    let cores = std::thread::available_parallelism()?;
    let pin = match &wishes.pin[..] {
        [.., processor] => format!(", all on processor {processor} alone"),
        [] => String::new(),
    };
    let mut text = format!(
        "# Debug information

Written by `cargo xtask bench debug`{} ({}; {}): {} runs of each tool in turn, with debug information updated and not, on a machine of {cores} processors{pin}; of short ones so many that they take {} s. Time and memory
are those of the run without, a median, and what the update adds to it (of one run of each where that takes longer than {} s): of time, what pairs of runs differ by (Hodges and Lehmann's estimate with its 95 % interval). Processor time is the addition alone. llvm-bolt may have {} GB. Rows, scopes
and bytes of code with a known place of a variable are counted by {DWARFDUMP}, as shares of the input's (rows: old code that is still there counts for tools that keep it); errors
are those of `--verify` beyond the input's, *no end*: it did not end within {} s for the input or the output. postlink checks nothing here (`--no-verify`), as llvm-bolt does not;
*with its proof* is what the update adds, in processor time and memory, where it does check, as it does unless told otherwise.{}

| program | tool | time | processor time | memory | with its proof | size | rows | scopes | places | errors |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
",
        if wishes.large { " --large" } else { "" },
        tools.versions().join("; "),
        versions().join("; "),
        wishes.runs,
        PAIRED.as_secs(),
        super::LONG.as_secs(),
        wishes.bolt_memory,
        VERIFY_LIMIT.as_secs(),
        match wishes.alone {
            u64::MAX => String::new(),
            bytes => format!(
                "\nOf programs of more than {} MB postlink is measured alone, without its proof.",
                bytes >> 20
            ),
        },
    );
    let (mut end, mut inputs, mut added) = (String::new(), String::new(), Vec::new());
    for subject in subjects(&wishes, &corpus, tools.program())? {
        eprintln!("{}", subject.name);
        let before = described(&subject.program, true)?;
        let size = fs::metadata(&subject.program).map_or(0, |m| m.len());
        inputs += &format!(
            "| {} | {:.1} MB | {:.1} MB | {} | {} |\n",
            subject.name,
            size as f64 / 1e6,
            before.bytes as f64 / 1e6,
            grouped(before.rows),
            grouped(before.scopes),
        );
        let profiles = profile(&subject, &tools, &corpus, folder.path())?;
        let profiles = (&*profiles.0, &*profiles.1);
        let alone = size > wishes.alone;
        for tool in ALL {
            if alone && tool != Tool::Postlink {
                continue;
            }
            let place = (folder.path(), &mut end);
            let with = (&tools, &wishes);
            match row(tool, with, &subject, (profiles, &before), place, !alone) {
                Ok(measured) => {
                    text += &measured.row;
                    if tool == Tool::Postlink {
                        added.push((subject.name.clone(), measured));
                    }
                }
                Err(error) => {
                    let why = format!("{error:#}").replace('|', "/");
                    text += &format!(
                        "| {} | {} | {why} | | | | | | | | |\n",
                        subject.name,
                        tool.name()
                    );
                }
            }
        }
        // What was measured stays if a later program stops the run.
        fs::write(&wishes.output, text.clone() + &kept)
            .with_context(|| wishes.output.display().to_string())?;
    }
    text += "\nInputs:\n\n| program | file | debug information | rows | scopes |\n|---|--:|--:|--:|--:|\n";
    text += &inputs;
    if !end.is_empty() {
        text += "
Transcripts of debuggers that stop in postlink itself, show frames and variables, step, and return, before postlink and after:

| debugger | stops in | lines | name the function | differ |
|---|---|--:|--:|--:|
";
        text += &end;
    }
    text += &targets(&added);
    text += &kept;
    fs::write(&wishes.output, &text).with_context(|| wishes.output.display().to_string())?;
    println!("{text}");
    Ok(true)
}

/// Of llvm-bolt.
fn versions() -> Vec<String> {
    let of = |tool: Tool| {
        let output = Command::new(tool.name()).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.contains("version"))?;
        Some(format!("{}: {}", tool.name(), line.trim()))
    };
    let bolts = ALL.into_iter().filter(|tool| *tool != Tool::Postlink);
    bolts.filter_map(of).collect()
}

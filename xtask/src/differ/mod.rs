//! `cargo xtask differ`: runs a program and what postlink made of it in lock step, and tells of every value
//! that differs.
//!
//! # What it is for
//!
//! The checker proves that new code does what old code did, *if* a code address is only jumped to, called,
//! compared and passed on. That has been false before: C++ pointers to members keep a flag in bit 0 of a
//! function's address, Haskell reads data in front of entries, Go describes code by address. So this job asks
//! the other way round: which values that the program can see differ at all? Each is put into a class. A
//! class is either meant to differ, and then it is counted, or a bug. `docs/differ.md` has the classes, and
//! what was found in which programs.
//!
//! # What is compared
//!
//! Events: calls, returns and indirect jumps of the module (the program, or one shared library), and steps
//! over its border. At each all general registers. Between them every store of the module, address and value.
//! All system calls, with their arguments and results. Then output and status. Vector registers are not
//! compared themselves; what is in them is when it is stored.
//!
//! # How the runs are observed
//!
//! Measured with a recursive function of 3.5 million instructions, 490,000 events, on two shared processors:
//!
//! | way | | |
//! |---|--:|---|
//! | native, `ptrace` step by step | 33,000 instructions a second | one machine; each store has to be decoded |
//! | qemu's gdb stub | not measured | both machines; messages for each step, so slower than the one before |
//! | `qemu -d exec,cpu,nochain` through a pipe | 69,000 blocks a second | both machines; 1.2 kB of text for each block, no stores |
//! | the same with `-singlestep` | 67,000 instructions a second | both machines; stores have to be decoded |
//! | a plugin for qemu | 550,000 events a second, with 1,650,000 loads and stores | both machines; version 1 of the interface has no registers |
//!
//! So it is the plugin; how it reads the registers all the same is described in `plugin.c`. Both emulators write
//! to a pipe each, this process reads both streams in step: nothing is stored, so the length of a run is
//! limited by patience alone. Compared are 300,000 to 1,000,000 events a second with what is between them; a
//! run begins with about a second for making the output and the plugin.
//!
//! # Two runs as equal as can be
//!
//! Pointers depend on sizes, names and the environment. Both files have the same path: the folder of the
//! first run gets another name when the run has begun. `argv[0]` and the environment are the same, the input
//! takes as much memory as the output ([`prepare`]), and the plugin answers for clocks and random numbers.
//! What is shifted all the same is translated ([`regions`]).
//!
//! # Files
//!
//! | file | subject |
//! |---|---|
//! | `plugin.c` | what the emulator tells |
//! | [`record`] | reading that |
//! | [`side`] | one run: inserted routines and the unwinder taken out |
//! | [`compare`], [`accesses`] | both runs in step; loads and stores between events |
//! | [`places`] | which address of the output is which of the input |
//! | [`regions`] | memory that both have |
//! | [`values`] | classes of differences |
//! | [`outcome`] | what was found, in words |
//! | [`cases`] | all of that for the tests' programs |
//! | [`machine`] | registers and system calls of both machines |
//! | [`prepare`], [`emulator`], [`deadline`] | making the files, running them, ending them |
//!
//! # Limits
//!
//! The first thread alone is compared; processor flags, vector registers, what the kernel writes, and code
//! outside the module are not. A program that reads its time stamp counter runs differently each time.

mod accesses;
mod cases;
mod compare;
mod deadline;
mod emulator;
mod machine;
mod outcome;
mod places;
mod prepare;
mod record;
mod regions;
mod side;
#[cfg(test)]
mod tests;
mod values;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};

use self::compare::{Comparison, Limits};
use self::deadline::Deadline;
use self::emulator::{Ended, Job};
use self::machine::Machine;
use self::outcome::Outcome;
use self::places::Module;
use self::prepare::Recipe;

/// Bundles of options of `postlink optimize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    Safe,
    Fast,
    Size,
    Max,
}

/// Runs a program and postlink's output in lock step and lists the values that differ.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask differ", max_term_width = 100)]
struct Options {
    /// The program; with --cases, only cases whose name holds this
    #[arg(required_unless_present = "cases")]
    program: Option<PathBuf>,
    /// Compare every output of the programs in tests/cases
    #[arg(long, conflicts_with_all = ["module", "beside", "output", "profile", "stress", "optimize", "mode", "stdin", "keep", "arguments"])]
    cases: bool,
    /// With --cases: each in every kind that the tests build it in
    #[arg(long, requires = "cases")]
    all: bool,
    /// With --cases: every sixth program only
    #[arg(long, requires = "cases", conflicts_with = "all")]
    quick: bool,
    /// With --cases: the N-th of M parts of the programs, so that parts can be run at different times
    #[arg(long, requires = "cases", value_name = "N/M", value_parser = cases::part)]
    only: Option<(usize, usize)>,
    /// With --cases: print the names of the programs, and compare none
    #[arg(long, requires = "cases")]
    list: bool,
    /// With --cases: only these outputs (safe, fast, size, stress, edges, function-coverage …)
    #[arg(long, requires = "cases", value_name = "NAMES", value_delimiter = ',')]
    states: Vec<String>,
    /// Compare this shared library of the program, not the program itself
    #[arg(long, value_name = "FILE")]
    module: Option<PathBuf>,
    /// Another file that the program needs beside itself
    #[arg(long, value_name = "FILE")]
    beside: Vec<PathBuf>,
    /// An output that is there; else one is made
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A profile that is there; else the program runs once, counting
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Preset of `postlink optimize`
    #[arg(long, default_value = "safe")]
    preset: Preset,
    /// Passed on to `postlink optimize`
    #[arg(long, value_name = "SEED")]
    stress: Option<String>,
    /// A further option for `postlink optimize`
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    optimize: Vec<String>,
    /// A further option for `postlink instrument`
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    instrument: Vec<String>,
    /// Compare the program that counts, of this mode of `postlink instrument`
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Compare stores alone, not loads: twice as fast
    #[arg(long)]
    no_loads: bool,
    /// End after so many events [default: all; with --cases 2000000]
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// So many examples of each class
    #[arg(long, value_name = "N", default_value_t = 3)]
    examples: usize,
    /// What the program reads from standard input [default: nothing]
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
    /// postlink to use [default: it is built]
    #[arg(long, value_name = "FILE")]
    postlink: Option<PathBuf>,
    /// Give up a comparison after so long, and say so
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// With --cases: compare so many programs at a time
    #[arg(long, requires = "cases", value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// The plugin, if it is compiled already
    #[arg(skip)]
    plugin: Option<PathBuf>,
    /// Where a profile goes that is made for this
    #[arg(skip)]
    keep_profile: Option<PathBuf>,
    /// Keep what was made here
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Arguments of the program
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// The job; `false` if a difference is not explained.
pub fn run(arguments: &[String]) -> Result<bool> {
    // Neither a page of help nor a mistake needs to wait for a build.
    let name = ["cargo xtask differ".to_owned()];
    let options = match Options::try_parse_from(name.iter().chain(arguments)) {
        Ok(options) => options,
        Err(error) => {
            error.print()?;
            return Ok(!error.use_stderr());
        }
    };
    if cfg!(debug_assertions) {
        return run_optimised(arguments);
    }
    if options.cases {
        return cases::run(&options);
    }
    let began = Instant::now();
    let done = differ(&options)?;
    print!("{}", report(&done, began.elapsed().as_secs_f64()));
    Ok(done.is_good())
}

/// What came out.
#[derive(Debug)]
struct Done {
    outcome: Outcome,
    ends: Option<(Ended, Ended)>,
    /// Seconds that the comparison took.
    seconds: f64,
}

impl Done {
    /// Both printed the same and ended in the same way; nothing is said if they were not run to the end.
    fn end_alike(&self) -> bool {
        self.ends.as_ref().is_none_or(|(a, b)| a == b)
    }

    fn is_good(&self) -> bool {
        self.outcome.is_good() && self.end_alike()
    }
}

/// The same by a build that is optimised. Each event of both runs is judged in this process, and for development it is
/// compiled without any optimisation: two million events that all differ take 19 s of a processor then, and 2 s so.
fn run_optimised(arguments: &[String]) -> Result<bool> {
    let mut command = Command::new(build_released("xtask")?);
    let error = command.arg("differ").args(arguments).exec();
    Err(error).context("the optimised xtask")
}

/// Builds postlink as it is released.
pub(crate) fn build_postlink() -> Result<PathBuf> {
    build_released("postlink")
}

/// Builds a package of one program, with all optimisation, and gives the program.
fn build_released(package: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let root = crate::bench::root()?;
    let mut command = Command::new(cargo);
    command
        .current_dir(&root)
        .args(["build", "--release", "--quiet", "-p", package]);
    if !command.status().context("cargo build")?.success() {
        bail!("{package} does not build");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("release").join(package))
}

fn file_name(path: &Path) -> Result<&std::ffi::OsStr> {
    path.file_name()
        .with_context(|| format!("{}: no file name", path.display()))
}

/// Gives a folder the name of another, which gets its name if it is there. There is no moment without a
/// folder of the name: a running program may ask.
fn exchange(name: &Path, next: &Path) -> Result<()> {
    if !name.exists() {
        return fs::rename(next, name).context("a folder for the run");
    }
    let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_encoded_bytes());
    let (a, b) = (path(name)?, path(next)?);
    // SAFETY: both are strings that end with a zero byte.
    let done = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            a.as_ptr(),
            libc::AT_FDCWD,
            b.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()).context("exchanging two folders"),
    }
}

/// Everything but the words.
fn differ(options: &Options) -> Result<Done> {
    let program = options.program.as_ref().context("no program is named")?;
    let scratch = tempfile::tempdir().context("a folder for the runs")?;
    let folder = match &options.keep {
        Some(folder) => {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            fs::canonicalize(folder)?
        }
        None => scratch.path().to_owned(),
    };
    let subject = options.module.as_ref().unwrap_or(program);
    let input = fs::read(subject).with_context(|| subject.display().to_string())?;
    let machine = postlink_elf::elf::Elf::parse(&input)
        .map_err(anyhow::Error::from)
        .and_then(|elf| {
            Machine::of(elf.machine)
                .with_context(|| format!("machine {} is neither x86-64 nor AArch64", elf.machine))
        })
        .with_context(|| subject.display().to_string())?;
    if let Some(lack) = emulator::lack(machine) {
        bail!("{lack}");
    }
    let output = match &options.output {
        Some(output) => output.clone(),
        None => make(options, machine, (program, subject), &folder)?,
    };
    let output = fs::read(&output).with_context(|| output.display().to_string())?;
    let module = Module::read(&input, &output)?;
    let plugin = match &options.plugin {
        Some(plugin) => plugin.clone(),
        None => emulator::plugin(&folder)?,
    };
    let root = emulator::root(machine, &folder)?;

    let (shared, next) = (folder.join("run"), folder.join("nxt"));
    let prepare = |name: &str, content: &[u8], parts: String| -> Result<Job<'_>> {
        let private = folder.join(name);
        for folder in [&private, &next] {
            if folder.exists() {
                fs::remove_dir_all(folder)?;
            }
            fs::create_dir(folder)?;
        }
        for file in options.beside.iter().chain([program, subject]) {
            fs::copy(file, next.join(file_name(file)?))
                .with_context(|| file.display().to_string())?;
        }
        fs::write(next.join(file_name(subject)?), content)?;
        exchange(&shared, &next)?;
        let place = shared.join(file_name(program)?);
        let compared = shared.join(file_name(subject)?);
        let mut arguments = vec![program.display().to_string()];
        arguments.extend(options.arguments.iter().cloned());
        // Both get the variables, so that their stacks are the same.
        let profile = folder.join("profile").display().to_string();
        let variable = |name: &str| (name.to_owned(), profile.clone());
        Ok(Job {
            machine,
            root: &root,
            plugin: &plugin,
            private,
            folder: shared.clone(),
            program: place,
            module: compared,
            parts,
            arguments,
            stdin: options.stdin.clone(),
            variables: vec![
                variable("POSTLINK_PROFILE"),
                variable("LLVM_MIP_PROFILE_FILENAME"),
            ],
        })
    };
    let parts = |second: bool| {
        let part = |name: &str, (start, end): (u64, u64)| format!(",{name}={start:x}-{end:x}");
        let mut all = String::new();
        let image = if second { &module.new } else { &module.old };
        for (start, end) in module.skipped_ranges(second) {
            all += &part("skipped", (start - image.low, end - image.low));
        }
        if second {
            all.extend(module.inserted().into_iter().map(|p| part("inserted", p)));
        }
        if !options.no_loads {
            all += ",loads=1";
        }
        all
    };
    let began = Instant::now();
    let old = prepare("old", &prepare::padded(&input, &output)?, parts(false))?.start()?;
    // The first run has its files open; the second finds others under the same names.
    let new = prepare("new", &output, parts(true))?.start()?;
    let limits = Limits {
        events: options.limit,
        examples: options.examples,
    };
    let records = (old.records()?, new.records()?);
    let deadline = Deadline::new(options.seconds, [old.group(), new.group()]);
    let outcome = Comparison::new(records.0, records.1, module, machine, limits).run()?;
    let stop = outcome.limited || outcome.opens_itself || outcome.parted.is_some();
    let ends = (old.end(stop)?, new.end(stop)?);
    deadline.keep()?;
    Ok(Done {
        outcome,
        ends: (!stop).then_some(ends),
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Has postlink make the output.
fn make(
    options: &Options,
    machine: Machine,
    (program, subject): (&PathBuf, &Path),
    folder: &Path,
) -> Result<PathBuf> {
    let postlink = match &options.postlink {
        Some(postlink) => postlink.clone(),
        None => build_postlink()?,
    };
    let preset = match options.preset {
        Preset::Safe => "safe",
        Preset::Fast => "fast",
        Preset::Size => "size",
        Preset::Max => "max",
    };
    let mut optimize = vec!["--preset".to_owned(), preset.to_owned()];
    if let Some(seed) = &options.stress {
        optimize.extend(["--stress".to_owned(), seed.clone()]);
    }
    optimize.extend(options.optimize.iter().cloned());
    let recipe = Recipe {
        postlink: &postlink,
        input: subject,
        folder,
        optimize,
        instrument: &options.instrument,
        mode: options.mode.as_deref(),
        profile: options.profile.as_deref(),
        keep_profile: options.keep_profile.as_deref(),
    };
    recipe.make(|counting, profile| {
        let folder = folder.join("trn");
        fs::create_dir_all(&folder)?;
        for file in options.beside.iter().chain([program]) {
            fs::copy(file, folder.join(file_name(file)?))?;
        }
        fs::copy(counting, folder.join(file_name(subject)?))?;
        let program = folder.join(file_name(program)?);
        let mut command = match machine {
            Machine::X86 if cfg!(target_arch = "x86_64") => Command::new(program),
            _ => {
                let mut command = Command::new(machine.emulator());
                command.args(machine.options()).arg(program);
                command
            }
        };
        command
            .args(&options.arguments)
            .env("POSTLINK_PROFILE", profile)
            .env("LD_LIBRARY_PATH", &folder);
        command.stdin(match &options.stdin {
            Some(path) => std::process::Stdio::from(fs::File::open(path)?),
            None => std::process::Stdio::null(),
        });
        // How it ends is its own affair: counters are complete at any moment.
        command.output().context("the program that counts")?;
        Ok(())
    })
}

/// In words.
fn report(done: &Done, seconds: f64) -> String {
    use std::fmt::Write as _;
    let outcome = &done.outcome;
    let mut text = String::new();
    let rate = outcome.events as f64 / done.seconds.max(1e-9);
    let _ = writeln!(
        text,
        "{} events, {} stores, {} loads and {} system calls compared in {:.1} s ({rate:.0} events a second; {seconds:.1} s in all)",
        outcome.events, outcome.stores, outcome.loads, outcome.systems, done.seconds
    );
    text += &outcome.report();
    if let Some((a, b)) = &done.ends {
        if a.status != b.status {
            let _ = writeln!(
                text,
                "THE RUNS END DIFFERENTLY: the input {}, the output {}",
                a.status, b.status
            );
        }
        if a.stdout != b.stdout {
            let _ = writeln!(text, "THE RUNS PRINT DIFFERENT THINGS");
        }
    }
    text += if done.is_good() {
        "every difference is explained\n"
    } else {
        "DIFFERENCES THAT ARE NOT EXPLAINED\n"
    };
    text
}

//! `postlink tune`: the whole job.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use postlink_elf::elf::Elf;
use postlink_elf::raw::{EM_AARCH64, EM_X86_64};
use postlink_measure::series::{Limits, Stop};
use postlink_measure::{Paired, Run, Verdict, compare_within, ending, interrupt};
use postlink_profile::Weighted;
use postlink_profile::any::Any;
use postlink_profile::windows::Windows;
use postlink_report::Room;

use super::bench::{INTERRUPTED, so_far};
use super::optimize::ProfileOf;
use super::trace::Purpose;
use super::{instrument, optimize, report, trace};
use crate::errors::Usage;
use crate::input::{Input, Parsed};
use crate::options::{self, Instrumenting, Optimizing};
use crate::rewriting::{self, Proof};
use crate::ui::{BAD, BOLD, Ui, seconds};
use crate::workload;

/// Make a program faster for a workload: instrument, run, optimise, prove
///
/// The command after `--` is the workload; wherever {} is in it, the path of the instrumented program is put, or that
/// of the program itself with --by-trace. It may run the program as often as it likes: all counts are added up. Its
/// output is passed on.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink tune ./app -o ./app.opt -- {} --benchmark
  postlink tune ./app -o ./app.opt -- ./run-workload.sh {}
  postlink tune ./app -o ./app.opt --measure -- sh -c '{} < input.txt'
  postlink tune ./app -o ./app.opt --by-trace -- {} --benchmark
  postlink tune ./app -o ./app.opt --runner 'qemu-aarch64 -L /usr/aarch64-linux-gnu' -- {} --benchmark

With --measure, the workload is run more times with the original and with the result, alternately, and processor
times are compared pair by pair, as `postlink bench` does. It ends with `do not ship` if no gain is shown.")]
pub struct Tune {
    /// The program, as a distribution ships it or linked with -Wl,-q, from which it gains more
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// The file to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// The workload; {} stands for the program
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub workload: Vec<OsString>,
    /// What runs the program: an emulator or a remote shell, for programs of another machine. It is put
    /// before the program's path
    #[arg(long, value_name = "COMMAND")]
    pub runner: Option<String>,
    /// Record a trace of the program itself, as `postlink trace` does, in place of running an instrumented one
    ///
    /// Where a program cannot be instrumented, or must run as it is. Works on x86-64 Linux.
    #[arg(long, conflicts_with_all = ["runner", "functions", "counters", "no_calls"])]
    pub by_trace: bool,
    /// Go on when the workload fails
    #[arg(long)]
    pub allow_failure: bool,
    /// Compare the result with the original in this many runs of the workload each [without N: until the
    /// difference is known to one per cent, at most 100 runs or five minutes]
    #[arg(long, value_name = "N", num_args = 0..=1, value_parser = clap::value_parser!(u32).range(1..))]
    pub measure: Option<Option<u32>>,
    /// End with exit code 1 unless the result is shown to be faster
    #[arg(long, requires = "measure")]
    pub fail_unless_faster: bool,
    /// Keep the instrumented program, the profile, and the trace, if there is one, in this directory
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Write a page that shows what was found and done, see `postlink report`
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub instrumenting: Instrumenting,
    #[command(flatten)]
    pub optimizing: Optimizing,
    #[command(flatten)]
    pub reading: options::Reading,
}

impl Tune {
    /// The workload with a program in it.
    fn command(&self, program: &Path) -> Result<Command> {
        let mut command = workload::command(&self.workload, program)?;
        command.env_remove("POSTLINK_PROFILE");
        Ok(command)
    }

    /// What is put in the place of {}.
    fn runnable(&self, program: &Path, scripts: &Path, name: &str) -> Result<PathBuf> {
        workload::runnable(program, self.runner.as_deref(), scripts, name)
    }

    /// What may be the matter if the program does not run, in brackets: it is for another machine and nothing
    /// is named that runs it, or what is named does not know where its libraries are.
    fn other_machine(&self, elf: &Elf<'_>) -> String {
        let (machine, arch) = match elf.machine {
            EM_X86_64 => ("x86-64", "x86_64"),
            EM_AARCH64 => ("AArch64", "aarch64"),
            _ => return String::new(),
        };
        let host = match std::env::consts::ARCH {
            "x86_64" => "x86-64",
            "aarch64" => "AArch64",
            other => other,
        };
        let library = elf.interpreter().map(String::from_utf8_lossy);
        let runner = match &library {
            None => format!("--runner qemu-{arch}"),
            Some(_) => format!("--runner 'qemu-{arch} -L /usr/{arch}-linux-gnu'"),
        };
        let where_to_look = library.map_or(String::new(), |library| {
            format!(", where the directory after -L is the one that {library} is in")
        });
        let name = self.input.display();
        match &self.runner {
            _ if machine == host => String::new(),
            None => format!(
                " ({name} is {machine}, this machine is {host}: name what runs it, as in {runner}{where_to_look})"
            ),
            Some(given)
                if !where_to_look.is_empty()
                    && given.contains("qemu-")
                    && !given.contains("-L") =>
            {
                format!(
                    " ({name} is {machine} and needs libraries, so {given} may need to know where they are, as in {runner}{where_to_look})"
                )
            }
            Some(_) => String::new(),
        }
    }

    /// The workload, as it was given.
    fn shown(&self) -> String {
        self.workload
            .join(" ".as_ref())
            .to_string_lossy()
            .into_owned()
    }

    /// What the program is called in the place of {}.
    fn kind(&self) -> &'static str {
        if self.by_trace {
            "program"
        } else {
            "instrumented program"
        }
    }

    /// Runs the workload with the program, which writes its counts to `profile` if it is instrumented. The result is
    /// how long it took.
    fn run_workload(
        &self,
        program: &Path,
        profile: Option<&Path>,
        hint: &str,
        ui: &Ui,
    ) -> Result<Duration> {
        let mut command = self.command(program)?;
        command.envs(profile.map(|profile| ("POSTLINK_PROFILE", profile)));
        let shown = self.shown();
        ui.say(format_args!("{BOLD}running{BOLD:#} {shown}"));
        let run = postlink_measure::run(&mut command)
            .with_context(|| format!("the workload cannot be started: {shown}{hint}"))?;
        if !run.status.success() {
            let what = format!(
                "the workload {} with the {}: {shown}{hint}",
                ending(run.status),
                self.kind()
            );
            if !self.allow_failure {
                bail!("{what} (--allow-failure continues with what was counted)");
            }
            ui.warn(what);
        }
        ui.say(format_args!("  the workload took {}", seconds(run.wall)));
        Ok(run.wall)
    }

    /// Runs the workload once more with the original, in windows step by step, if layouts are searched: they are judged
    /// by what is recorded, which --keep keeps.
    fn trace(
        &self,
        input: &Parsed<'_>,
        took: Duration,
        folder: &Path,
        ui: &Ui,
    ) -> Result<Option<Arc<Windows>>> {
        if self.optimizing.search.is_none_or(|n| n < 2) || self.optimizing.search_trace.is_some() {
            return Ok(None);
        }
        if self.runner.is_some() {
            ui.warn("no trace is recorded of a program that is run by another one: layouts are judged by a walk by its counts");
            return Ok(None);
        }
        // The original takes less time than the instrumented program.
        let time = took.mul_f64(if self.by_trace { 1.0 } else { 0.7 });
        let Some(windows) = self.record(input, Purpose::Search, time, ui)? else {
            return Ok(None);
        };
        if !trace::has_own_code(&windows) {
            ui.warn("no instruction of the program was executed in any window of the trace: layouts are judged by a walk by its counts");
            return Ok(None);
        }
        if self.keep.is_some() {
            windows.write(&folder.join("run.pltrace"))?;
        }
        Ok(Some(Arc::new(windows)))
    }

    /// Runs the workload with the original, which takes so long, and records what it executes.
    fn record(
        &self,
        input: &Parsed<'_>,
        purpose: Purpose,
        time: Duration,
        ui: &Ui,
    ) -> Result<Option<Windows>> {
        let program = rewriting::runnable(&self.input)?;
        ui.say(format_args!("{BOLD}tracing{BOLD:#} {}", self.shown()));
        let command = || {
            let mut command = self.command(&program)?;
            command.stdout(std::process::Stdio::null());
            Ok(command)
        };
        let plan = purpose.plan_of(time);
        trace::record(input, &plan, self.allow_failure, command, ui)
    }

    /// Counts by an instrumented program, in `profile`, and how long its run took.
    fn counts(
        &self,
        input: &Parsed<'_>,
        instrumented: &Path,
        profile: &Path,
        scripts: &Path,
        ui: &Ui,
    ) -> Result<(ProfileOf, Duration)> {
        if profile.exists() {
            // Counts would be added to those of a run that has nothing to do with this one.
            std::fs::remove_file(profile).with_context(|| profile.display().to_string())?;
        }
        let mut watched = ui.phases("instrument");
        let done = rewriting::instrument(
            input,
            &self.instrumenting.options(None),
            instrumented,
            Proof::YES,
            &mut watched.phases,
        )?;
        watched.finish();
        instrument::say(ui, "instrumented", &done);

        let program = self.runnable(instrumented, scripts, "instrumented")?;
        let hint = self.other_machine(&input.elf);
        let took = self.run_workload(&program, Some(profile), &hint, ui)?;
        let counts = match postlink_profile::open(profile) {
            Ok(opened) => opened.read()?,
            Err(postlink_profile::Error::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                bail!(
                    "the workload has not run the instrumented program: no profile was written (does it use the path that is put in place of {{}}?){hint}"
                )
            }
            Err(error) => return Err(error.into()),
        };
        Ok((ProfileOf::Any(Any::Counters(counts.into())), took))
    }

    /// Branches by a trace of the program as it is, in `profile`, and how long its run takes.
    fn branches(
        &self,
        input: &Parsed<'_>,
        profile: &Path,
        ui: &Ui,
    ) -> Result<(ProfileOf, Duration)> {
        let program = rewriting::runnable(&self.input)?;
        let hint = self.other_machine(&input.elf);
        let took = self.run_workload(&program, None, &hint, ui)?;
        let Some(windows) = self.record(input, Purpose::Profile, took, ui)? else {
            bail!("{}: no trace, so no profile", self.input.display());
        };
        trace::must_have_own_code(&windows, &self.input, &self.shown())?;
        windows.write(profile)?;
        let inputs = [Weighted {
            path: profile.to_owned(),
            weight: 1,
        }];
        let profile = optimize::read_weighted(ui, input, &inputs, false)?;
        Ok((profile, took))
    }

    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        if !workload::names_the_program(&self.workload) {
            return Err(Usage(format!(
                "the workload '{}' has no {{}}: it must run the {}, whose path is put there",
                self.shown(),
                self.kind()
            ))
            .into());
        }
        let input = Input::open(&self.input)?.using(self.reading.relocations)?;
        let input = input.parse()?;
        input.must_differ_from(&self.output)?;
        let temporary;
        let folder = match &self.keep {
            Some(folder) => {
                std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
                rewriting::runnable(folder)?
            }
            None => {
                temporary = tempfile::Builder::new()
                    .prefix("postlink-tune.")
                    .tempdir()
                    .context("a temporary directory")?;
                temporary.path().to_owned()
            }
        };
        let name = self
            .input
            .file_name()
            .with_context(|| format!("{}: names no file", self.input.display()))?;
        let scripts = tempfile::Builder::new()
            .prefix("postlink-run.")
            .tempdir()
            .context("a temporary directory")?;
        let file = folder.join(self.profile_name());
        let (profile, took) = if self.by_trace {
            self.branches(&input, &file, ui)?
        } else {
            self.counts(&input, &folder.join(name), &file, scripts.path(), ui)?
        };
        let windows = self.trace(&input, took, &folder, ui)?;

        let mut options = self.optimizing.options()?;
        options.windows = options.windows.or(windows);
        let mut watched = ui.phases("optimize");
        let phases = &mut watched.phases;
        let done = profile.with_source(|source| {
            rewriting::optimize(&input, source, &options, &self.output, Proof::YES, phases)
        })?;
        watched.finish();
        optimize::say(ui, &self.output.display().to_string(), &done);
        let measured = match self.measure {
            Some(rounds) => Some(self.measured(rounds, scripts.path(), ui)?),
            None => None,
        };
        let compared = measured.as_ref().map(|measured| &measured.0);
        if let Some(target) = &self.report {
            self.write_report(ui, &input, &profile, &done, compared, target)?;
        }
        match measured {
            Some((_, result)) => result,
            None => Ok(ExitCode::SUCCESS),
        }
    }

    fn write_report(
        &self,
        ui: &Ui,
        input: &Input,
        profile: &ProfileOf,
        done: &rewriting::Optimized,
        measured: Option<&Paired>,
        target: &Path,
    ) -> Result<()> {
        profile.with_source(|source| {
            let page = report::Page {
                input,
                profile: source,
                profile_names: vec![self.profile_name().into()],
                optimized: Some(&self.output),
                startup: &[],
                compare: None,
                measured,
                certificate: done.certificate.as_ref(),
                prove: true,
                with_source: true,
                room: Room::default(),
                json: false,
                target,
            };
            report::write(ui, &page, ui.phases("report"))
        })
    }

    /// The profile's name in the directory of --keep.
    fn profile_name(&self) -> &'static str {
        if self.by_trace {
            "profile.pltrace"
        } else {
            "run.plraw"
        }
    }

    /// Compares both programs: what was measured, and how that ends the command.
    fn measured(
        &self,
        rounds: Option<u32>,
        scripts: &Path,
        ui: &Ui,
    ) -> Result<(Paired, Result<ExitCode>)> {
        let plain = self.runnable(&rewriting::runnable(&self.input)?, scripts, "plain")?;
        let tuned = self.runnable(&rewriting::runnable(&self.output)?, scripts, "tuned")?;
        let quiet = |program: &Path| {
            // The workload was found startable before; an empty one fails when it is spawned.
            let mut command = self.command(program).unwrap_or_else(|_| Command::new(""));
            command.stdout(std::process::Stdio::null());
            command
        };
        let both: [Box<dyn FnMut() -> Command>; 2] =
            [Box::new(|| quiet(&plain)), Box::new(|| quiet(&tuned))];
        let limits = rounds.map_or_else(Limits::default, Limits::rounds);
        interrupt::catch();
        let progress = ui.progress("measure");
        let accept = |run: &Run| {
            if run.status.success() || self.allow_failure {
                return Ok(());
            }
            bail!("the workload {} while it was measured", ending(run.status))
        };
        let (paired, stop, result) = compare_within(&limits, both, accept, |done| {
            progress.set(|| so_far(&done, limits.precision * 100.0));
        });
        drop(progress);
        let verdict = say_measured(&paired, ui);
        let code = match (stop, verdict) {
            (Stop::Interrupted, _) => ExitCode::from(INTERRUPTED),
            (_, Verdict::NoDifference | Verdict::Slower) if self.fail_unless_faster => {
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        };
        Ok((paired, result.map(|()| code)))
    }
}

/// Says how the programs compare, and whether the result is worth shipping.
fn say_measured(compared: &Paired, ui: &Ui) -> Verdict {
    let Some(ratio) = compared.cpu_ratio() else {
        ui.say("do not ship: nothing was measured");
        return Verdict::NoDifference;
    };
    let [wall, cpu] = [compared.wall(), compared.cpu()]
        .map(|[before, after]| format!("{} -> {}", seconds(before), seconds(after)));
    ui.say(format_args!(
        "{BOLD}measured{BOLD:#}: wall time {wall}, processor time {cpu} (medians)"
    ));
    ui.say(format_args!(
        "  {}",
        ratio.sentence("The tuned program", "processor time")
    ));
    match ratio.verdict() {
        Verdict::Faster => {}
        Verdict::NoDifference => ui.say(format_args!("{BAD}do not ship: no gain shown{BAD:#}")),
        Verdict::Slower => ui.say(format_args!("{BAD}do not ship: slower{BAD:#}")),
    }
    ratio.verdict()
}

//! `postlink trace`: what a run executes, instruction by instruction, in a few windows.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use postlink_measure::stepping::{self, At, Object, Plan};
use postlink_measure::{ending, interrupt};
use postlink_profile::windows::{LINE, Step, Window, Windows};
use postlink_rewrite::identity;

use crate::errors::Usage;
use crate::input::{Input, Parsed};
use crate::rewriting;
use crate::ui::{BOLD, Ui, count, counted, seconds};
use crate::workload;

/// Windows of a trace to search layouts with, unless another number is asked for.
const WINDOWS: usize = 32;
/// Steps of such a window. Shorter ones do not show what competes for the cache: see `docs/layout-search.md`.
const STEPS: usize = 100_000;
/// What a trace is recorded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    /// `optimize --search-trace`: 32 windows of 100,000 instructions
    Search,
    /// `optimize -p`: 5,000 windows of 300 instructions
    Profile,
}

impl Purpose {
    /// Windows, and the steps of each.
    fn plan(self) -> (usize, usize) {
        match self {
            Purpose::Search => (WINDOWS, STEPS),
            Purpose::Profile => (5000, 300),
        }
    }

    /// What is recorded of a workload that takes so long.
    pub fn plan_of(self, time: Duration) -> Plan {
        let (windows, steps) = self.plan();
        Plan {
            windows,
            steps,
            every: time.div_f64(windows as f64),
        }
    }
}

/// Most runs of a workload that is too short for all windows.
const MOST_RUNS: usize = 16;

/// Record what a run executes, instruction by instruction, in a few windows
///
/// The workload after `--` is run as a debugger does it, or processes that run already are attached to (--pid): from
/// time to time a running thread of the program is stepped through some instructions. Works on x86-64 Linux, without
/// hardware for it; 100,000 instructions take 0.6 to 3 s.
///
/// A trace is a profile (`optimize -p`) that needs neither an instrumented program nor a processor that records
/// branches: its branches are exact, and many short windows are spread over the run. Its long windows say what runs at
/// the same time, which counts do not: `optimize --search` judges layouts by them.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink trace --for profile ./app -o app.pltrace -- {} --benchmark
  postlink trace --for profile ./app -o app.pltrace --pid 1234
  postlink optimize ./app -p app.pltrace -o ./app.opt

  postlink trace ./app -o app.pltrace -- {} --benchmark
  postlink optimize ./app -p run.plraw --search 30 --search-trace app.pltrace -o ./app.opt

`postlink tune --search N` does both itself.")]
pub struct Trace {
    /// The program or shared library
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// The file to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// The workload; {} stands for the program
    #[arg(
        last = true,
        required_unless_present = "pid",
        conflicts_with = "pid",
        value_name = "COMMAND"
    )]
    pub workload: Vec<OsString>,
    /// Attach to this process, which runs on as before when it is done; may be given several times
    ///
    /// What it starts meanwhile is followed. System calls that wait may be interrupted as a debugger does it. Ctrl-C
    /// ends it early and keeps what was recorded.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(1..=0x7fff_ffff))]
    pub pid: Vec<u32>,
    /// For how long processes are attached to; windows are spread over that time
    #[arg(long, value_name = "S", requires = "pid", default_value = "60", value_parser = a_time)]
    pub seconds: Duration,
    /// What the trace is recorded for
    #[arg(long = "for", value_name = "PURPOSE", default_value = "search")]
    pub purpose: Purpose,
    /// Most windows [default: 32, for a profile 5000]
    #[arg(long, value_name = "N", value_parser = number(1_000_000))]
    pub windows: Option<usize>,
    /// Steps of each window [default: 100000, for a profile 300]
    #[arg(long, value_name = "N", value_parser = number(100_000_000))]
    pub steps: Option<usize>,
    /// Milliseconds from one window to the next [default: the windows are spread over the time that the workload takes,
    /// for which it is run once before, or over that of --seconds]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub every: Option<Duration>,
    /// Go on when the workload fails
    #[arg(long)]
    pub allow_failure: bool,
}

fn number(most: u64) -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u64).range(1..=most).map(|n| n as usize)
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.01..=1e7).contains(&value) {
        Ok(Duration::from_secs_f64(value / 1e3))
    } else {
        Err("from 0.01 to 10000000 milliseconds are possible".to_owned())
    }
}

fn a_time(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.001..=1e7).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err("from 0.001 to 10000000 seconds are possible".to_owned())
    }
}

/// What is told from other code: a file that is mapped into processes.
fn object(input: &Parsed<'_>) -> Object {
    Object {
        identity: input.device_and_inode(),
        segments: input.elf.loads().map(|s| (s.offset, s.addr)).collect(),
    }
}

/// Runs a workload until there are windows enough. `None`, with a warning, where nothing can be traced.
///
/// # Errors
///
/// The workload cannot be started, or fails and must not.
pub fn record(
    input: &Parsed<'_>,
    plan: &Plan,
    allow_failure: bool,
    mut workload: impl FnMut() -> Result<Command>,
    ui: &Ui,
) -> Result<Option<Windows>> {
    let object = object(input);
    let mut windows = Vec::new();
    let progress = ui.progress("trace");
    let start = Instant::now();
    for run in 0..MOST_RUNS {
        let before = windows.len();
        // All of the workload has the same chance, in each run.
        let missing = plan.windows - before;
        let rest = Plan {
            windows: missing,
            every: plan.every.mul_f64(plan.windows as f64 / missing as f64),
            ..*plan
        };
        progress.set(|| format!("{before} of {} windows, run {}", plan.windows, run + 1));
        let mut command = workload()?;
        if run > 0 {
            // Its output was passed on.
            command.stdout(std::process::Stdio::null());
        }
        let status = match stepping::record(&mut command, &object, &rest, |steps| {
            windows.push(window(&steps));
        }) {
            Ok(status) => status,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Unsupported | ErrorKind::PermissionDenied
                ) =>
            {
                ui.warn(format_args!("the workload cannot be traced: {error}"));
                return Ok(None);
            }
            Err(error) => return Err(error).context("the workload cannot be run and traced"),
        };
        if !status.success() {
            let what = format!("the workload {} while it was traced", ending(status));
            if !allow_failure {
                bail!("{what} (--allow-failure continues with what was recorded)");
            }
            ui.warn(what);
        }
        // A later run may be over before its first window, where the windows of the first one were nearly all.
        if windows.len() >= plan.windows || windows.is_empty() {
            break;
        }
    }
    drop(progress);
    Ok(Some(recorded(input, windows, start, ui)))
}

/// The windows that were taken since `start`, with a line that says how many.
fn recorded(input: &Parsed<'_>, windows: Vec<Window>, start: Instant, ui: &Ui) -> Windows {
    let windows = Windows {
        identity: identity(&input.elf),
        windows,
    };
    ui.say(format_args!(
        "  {} of {} steps in {}",
        counted(windows.windows.len(), "window", "windows"),
        count(windows.steps() as u64),
        seconds(start.elapsed())
    ));
    windows
}

fn window(steps: &[At]) -> Window {
    let mut window = Window::default();
    for step in steps {
        window.push(match step {
            At::Object(address) => Step::Inside(*address),
            At::Elsewhere(address) => Step::Elsewhere(address / LINE),
        });
    }
    window
}

/// Whether a step of a trace is an instruction of the binary.
pub fn has_own_code(windows: &Windows) -> bool {
    let own = |step: Step| matches!(step, Step::Inside(_));
    windows.windows.iter().any(|window| window.steps().any(own))
}

/// A trace without a step of the binary is an error, which says what may be the matter.
pub fn must_have_own_code(windows: &Windows, input: &Path, shown: &str) -> Result<()> {
    if has_own_code(windows) {
        return Ok(());
    }
    let why = match windows.windows.len() {
        0 => "no window was recorded: when one was to begin, no thread with it mapped was running (processes that ignore SIGTRAP are not stepped)".to_owned(),
        number => format!("no instruction of it was executed in {}", counted(number, "window", "windows")),
    };
    bail!("{}: {why}: {shown}", input.display())
}

impl Trace {
    fn command(&self, program: &Path) -> Result<Command> {
        workload::command(&self.workload, program)
    }

    /// What is recorded, in so long a time.
    fn plan(&self, time: impl FnOnce() -> Result<Duration>) -> Result<Plan> {
        let (windows, steps) = self.purpose.plan();
        let windows = self.windows.unwrap_or(windows);
        let every = match self.every {
            Some(every) => every,
            None => time()?.div_f64(windows as f64),
        };
        Ok(Plan {
            windows,
            steps: self.steps.unwrap_or(steps),
            every,
        })
    }

    /// Runs the workload. `None`, with a warning, where nothing can be traced.
    fn of_workload(&self, input: &Parsed<'_>, shown: &str, ui: &Ui) -> Result<Option<Windows>> {
        if !workload::names_the_program(&self.workload) {
            return Err(Usage(format!(
                "the workload '{shown}' has no {{}}: it must run the program, whose path is put there"
            ))
            .into());
        }
        let program = rewriting::runnable(&self.input)?;
        ui.say(format_args!("{BOLD}tracing{BOLD:#} {shown}"));
        let plan = self.plan(|| {
            let mut command = self.command(&program)?;
            command.stdout(std::process::Stdio::null());
            let run = postlink_measure::run(&mut command)
                .with_context(|| format!("the workload cannot be started: {shown}"))?;
            Ok(run.wall)
        })?;
        let command = || self.command(&program);
        record(input, &plan, self.allow_failure, command, ui)
    }

    /// Attaches to processes.
    fn of_processes(&self, input: &Parsed<'_>, shown: &str, ui: &Ui) -> Result<Windows> {
        ui.say(format_args!("{BOLD}tracing{BOLD:#} {shown}"));
        interrupt::catch();
        let plan = self.plan(|| Ok(self.seconds))?;
        let mut windows = Vec::new();
        let start = Instant::now();
        let progress = ui.progress("trace");
        progress.set(|| format!("up to {} windows", plan.windows));
        let (object, time) = (object(input), self.seconds);
        stepping::attach(&self.pid, time, &object, &plan, |steps| {
            windows.push(window(&steps));
        })
        .with_context(|| format!("{}: cannot be traced", self.input.display()))?;
        drop(progress);
        Ok(recorded(input, windows, start, ui))
    }

    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let input = Input::open(&self.input)?;
        let input = input.parse()?;
        input.must_differ_from(&self.output)?;
        let shown = match self.pid.as_slice() {
            [] => self
                .workload
                .join(" ".as_ref())
                .to_string_lossy()
                .into_owned(),
            ids => {
                let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
                format!("process {}", ids.join(", "))
            }
        };
        let windows = if self.pid.is_empty() {
            self.of_workload(&input, &shown, ui)?
        } else {
            Some(self.of_processes(&input, &shown, ui)?)
        };
        let Some(windows) = windows else {
            return Ok(ExitCode::FAILURE);
        };
        must_have_own_code(&windows, &self.input, &shown)?;
        windows.write(&self.output)?;
        Ok(ExitCode::SUCCESS)
    }
}

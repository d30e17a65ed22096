//! `postlink bench`: two programs compared on the same work.
//!
//! | file | subject |
//! |---|---|
//! | this | options, and the command from beginning to end |
//! | [`lab`] | what is run: programs, workloads, servers |
//! | [`layouts`] | programs that the command makes itself |
//! | [`results`] | what was found |
//! | [`say`] | the same in the terminal |
//! | [`export`] | the same as JSON, Markdown, CSV |
//!
//! Statistics and the running of programs are in crate `measure`. Method and units: `docs/bench.md`.

mod export;
mod lab;
mod layouts;
mod results;
mod say;

pub use lab::so_far;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use postlink_measure::ratio::FEWEST_PAIRS;
use postlink_measure::series::{Limits, measure};
use postlink_measure::server::{Plan, Ready};
use postlink_measure::{Counters, Measure, Verdict, interrupt};

use crate::errors::Usage;
use crate::ui::Ui;
use crate::workload;
use export::Export;
use lab::{Lab, Workload};
use results::Results;

/// Exit code after Ctrl-C, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Processor time, user and system, of all processes
    Cpu,
    /// Time by the clock on the wall
    Wall,
}

/// Compare two programs on the same work: faster, slower, or no difference shown
///
/// Runs of both alternate until the difference is known well enough: times, memory, page faults and, where the system
/// gives them, hardware counters. A difference is called one only if a 95 % interval does not hold zero. Ctrl-C ends
/// the measuring and keeps what was measured.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink bench ./app ./app.opt -- {} --benchmark
  postlink bench ./app ./app.opt --workload 'parse={} parse big.json' --workload 'print={} print < big.json'
  postlink bench ./app ./app.opt --fail-if-slower --export json=result.json --export markdown -- {} --benchmark
  postlink bench ./server ./server.opt --until-ready tcp:8080 --load 'wrk -d 5 http://127.0.0.1:8080/' -- {} --port 8080
  postlink bench ./app --profile run.plraw --layouts 8 -- {} --benchmark

Without a second program, --profile has postlink make one from the first. With --layouts, layouts of the first
that differ in nothing that matters run as well: how far their times scatter is luck, and a gain should be larger.

Exit codes: 0 done; 1 an error, or what --fail-... asks for; 2 wrong command line; 130 after Ctrl-C.")]
pub struct Bench {
    /// The program to compare with
    #[arg(value_name = "A")]
    pub first: PathBuf,
    /// The program that may be better [default: what `optimize` makes of A with --profile]
    #[arg(value_name = "B")]
    pub second: Option<PathBuf>,
    /// The workload; {} stands for the program
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "workload"
    )]
    pub command: Vec<OsString>,
    /// A workload as a line for the shell, in which {} stands for the program; may be given several times. Several
    /// are summed up as a geometric mean
    #[arg(long, value_name = "NAME=COMMAND", value_parser = named)]
    pub workload: Vec<(String, String)>,
    /// What decides the verdict, and until when is measured
    #[arg(long, value_name = "WHAT", default_value = "cpu")]
    pub by: By,
    /// Measure until the interval reaches no more than this many per cent to either side
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percentage)]
    pub precision: f64,
    /// Fewest runs of each program on each workload
    #[arg(long, value_name = "N", default_value_t = Limits::default().fewest, value_parser = clap::value_parser!(u32).range(i64::from(FEWEST_PAIRS)..))]
    pub min_runs: u32,
    /// Most runs of each program on each workload
    #[arg(long, value_name = "N", default_value_t = Limits::default().most, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_runs: u32,
    /// No run begins after this many seconds, if there are enough for an interval
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub max_time: Duration,
    /// Runs of each program on each workload that are not counted, before the others; of a server: loads of each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warmup: u32,
    /// A line for the shell that is run before each run, outside of the time; {} stands for the program
    #[arg(long, value_name = "COMMAND")]
    pub setup: Option<String>,
    /// The same after each run, also after one that failed
    #[arg(long, value_name = "COMMAND")]
    pub cleanup: Option<String>,
    /// The workload starts a server, which is ready when this shell command succeeds, when a port accepts
    /// connections (tcp:PORT, tcp:HOST:PORT), or when it has written a text (text:WORDS)
    #[arg(long, value_name = "WHEN", requires = "load")]
    pub until_ready: Option<Ready>,
    /// A line for the shell that puts the server under load: what is measured is from its start to its end
    #[arg(long, value_name = "COMMAND", requires = "until_ready")]
    pub load: Option<String>,
    /// Seconds that a server may take to be ready
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub ready_within: Duration,
    /// Profile of A, of any kind: B is made with it if it is not given, and so are the layouts
    #[arg(long, short, value_name = "FILE")]
    pub profile: Vec<String>,
    /// Measure layout luck with this many layouts of A, in the order that it has
    #[arg(long, value_name = "N", requires = "profile", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub layouts: Option<u32>,
    /// What runs the programs: an emulator or a remote shell, for programs of another machine
    #[arg(long, value_name = "COMMAND")]
    pub runner: Option<String>,
    /// Count runs that fail like others
    #[arg(long)]
    pub allow_failure: bool,
    /// Pass on what the programs write
    #[arg(long)]
    pub show_output: bool,
    /// Write the results: json (everything), csv (a line for each run), or markdown (tables); to standard output
    /// without a file. May be given several times
    #[arg(long, value_name = "FORMAT[=FILE]")]
    pub export: Vec<Export>,
    /// End with exit code 1 if B is slower
    #[arg(long)]
    pub fail_if_slower: bool,
    /// End with exit code 1 unless B is faster
    #[arg(long)]
    pub fail_unless_faster: bool,
}

fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, command)) if !name.trim().is_empty() && command.contains("{}") => {
            Ok((name.trim().to_owned(), command.to_owned()))
        }
        Some((_, command)) if !command.contains("{}") => Err(format!(
            "'{command}' has no {{}}: it must run the program, whose path is put there"
        )),
        _ => Err("NAME=COMMAND is needed".to_owned()),
    }
}

fn percentage(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.01..=100.0).contains(&value) {
        Ok(value)
    } else {
        Err("from 0.01 to 100 per cent are possible".to_owned())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.1..=1e7).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("from 0.1 to 10000000 seconds are possible".to_owned())
    }
}

impl Bench {
    fn limits(&self) -> Limits {
        Limits {
            fewest: self.min_runs.min(self.max_runs),
            most: self.max_runs,
            time: Some(self.max_time),
            precision: self.precision / 100.0,
            by: match self.by {
                By::Cpu => Measure::ProcessorTime,
                By::Wall => Measure::WallTime,
            },
        }
    }

    fn plan(&self) -> Option<(Plan, String)> {
        let (ready, load) = self.until_ready.clone().zip(self.load.clone())?;
        let plan = Plan {
            ready,
            patience: self.ready_within,
            warm_up: self.warmup,
        };
        Some((plan, load))
    }

    fn workloads(&self) -> Result<Vec<Workload>> {
        let mut all = vec![];
        if !self.command.is_empty() {
            let shown = self.command.join(" ".as_ref());
            let shown = shown.to_string_lossy().into_owned();
            if !workload::names_the_program(&self.command) {
                return Err(Usage(format!(
                    "the workload '{shown}' has no {{}}: it must run the program, whose path is put there"
                ))
                .into());
            }
            all.push(Workload::words(shown, self.command.clone()));
        }
        let lines = self.workload.iter();
        all.extend(lines.map(|(name, line)| Workload::line(name.clone(), line.clone())));
        Ok(all)
    }

    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        if self.second.is_none() && self.profile.is_empty() {
            return Err(Usage(
                "a second program is needed, or --profile to have one made from the first"
                    .to_owned(),
            )
            .into());
        }
        let limits = self.limits();
        let workloads = self.workloads()?;
        let folder = tempfile::Builder::new()
            .prefix("postlink-bench.")
            .tempdir()
            .context("a temporary directory")?;
        let programs = layouts::programs(&self, folder.path(), ui)?;
        let counters = Counters::open();
        if let Err(why) = &counters {
            ui.say(why);
        }
        interrupt::catch();
        let mut lab = Lab::new(&self, &programs, &workloads, counters.as_ref().ok(), ui);
        let (series, result) = match lab.warm_up() {
            Ok(()) => measure(workloads.len(), programs.len(), &limits, &mut lab),
            Err(error) => (vec![], Err(error)),
        };
        drop(lab);
        let results = Results::new(&programs, &workloads, &series, &limits, counters.err());
        if results.has_pairs() {
            say::table(&results);
        }
        for export in &self.export {
            export.write(&results)?;
        }
        if !interrupt::was_asked() {
            result?;
        }
        if let Some(sentence) = results.sentence() {
            say::verdict(&results, &sentence);
        }
        if interrupt::was_asked() {
            ui.warn(if results.has_pairs() {
                "interrupted: the results are those of the runs until then"
            } else {
                "interrupted before there was a pair of runs"
            });
            return Ok(ExitCode::from(INTERRUPTED));
        }
        let fails = match results.verdict() {
            Verdict::Faster => false,
            Verdict::NoDifference => self.fail_unless_faster,
            Verdict::Slower => self.fail_unless_faster || self.fail_if_slower,
        };
        Ok(if fails {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

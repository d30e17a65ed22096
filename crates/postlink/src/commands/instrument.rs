//! `postlink instrument`: an instrumented binary.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use postlink_rewrite::coverage::{CoverageMode, CoverageOptions};
use postlink_rewrite::{Counters, InstrumentReport};
use rustc_hash::FxHashSet;
use serde::Serialize;

use super::optimize::{say_pinned, say_reverted};
use crate::input::{Input, Parsed};
use crate::options::{self, Instrumenting};
use crate::refused::Refused;
use crate::rewriting::{self, Instrumented, Proof};
use crate::ui::{BOLD, GOOD, Ui, Watched, bytes, change, count, counted};

/// Make a copy of an instrumented program where it goes
///
/// The counters of the copy are the profile file itself, mapped into the running program: they are complete
/// at any moment, however the program ends, and can be read while it runs. The file is named by the
/// environment variable POSTLINK_PROFILE, or by --profile.
///
/// An independent checker proves that each instrumented function is equivalent to the original; one that it cannot
/// prove stays as it was.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink instrument ./app -o ./app.inst
  POSTLINK_PROFILE=run.plraw ./app.inst
  postlink show run.plraw --binary ./app

  Which functions run, and in which order, as a machine profile (see `postlink mip`):
    postlink instrument --mode call-graph ./app -o ./app.inst
    LLVM_MIP_PROFILE_FILENAME=run.%p.mipraw ./app.inst
    postlink mip create -p app.mip ./app.inst.mipmap
    postlink mip merge -p app.mip run.*.mipraw

  A server with many processes, one file for each:
    postlink instrument ./server -o ./server.inst --profile '/var/tmp/%b.%p.plraw'
    postlink merge /var/tmp/*.plraw -o all.plprof

A shared library is instrumented in the same way; every object has its own profile, so use %b in --profile
or POSTLINK_PROFILE when a program loads several.")]
pub struct Instrument {
    /// The program or shared library
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// The copy to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Name of the profile where POSTLINK_PROFILE is not set: %p process, %b build-id, %h host, %m one file
    /// for all, %% a percent sign
    ///
    /// [default: postlink.%p.plraw] For a machine profile the variable is LLVM_MIP_PROFILE_FILENAME, %h is
    /// the module hash, and the default is default.mipraw.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    pub profile: Option<String>,
    /// What to count
    #[arg(long, value_name = "WHAT", default_value = "edges")]
    pub mode: Mode,
    /// Where the map of a machine profile goes [default: OUTPUT.mipmap]
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// Space for this many different edges, 16 bytes each; the most frequent stay
    #[arg(long, value_name = "N", default_value_t = 16384)]
    pub edges: u32,
    /// Write where every block went: a line each, its address in the input and in the output, hexadecimal
    ///
    /// For tools that look at the running program: what they see at the second address happened at the first.
    /// Profiles need no such file.
    #[arg(long, value_name = "FILE")]
    pub blocks: Option<PathBuf>,
    #[command(flatten)]
    pub instrumenting: Instrumenting,
    #[command(flatten)]
    pub reading: options::Reading,
    /// Write the copy without having it proved
    #[arg(long)]
    pub no_verify: bool,
    /// Write what was proved, and what the proof rests on, as JSON: what `postlink verify --json` prints
    #[arg(long, value_name = "FILE", conflicts_with = "no_verify")]
    pub certificate: Option<PathBuf>,
    /// For tests: refuse this function while it moves, as if it could not be proved
    #[arg(long, value_name = "NAME", hide = true, value_parser = NonEmptyStringValueParser::new())]
    pub refuse: Option<String>,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

/// What `--json` prints: the account itself, and what the checker says.
#[derive(Serialize)]
struct Account<'a> {
    #[serde(flatten)]
    instrument: &'a InstrumentReport,
    reverted: Vec<&'a str>,
    refused: &'a [Refused],
    /// How often it was written until the checker was content.
    rounds: usize,
    proved: Option<u64>,
    identical: Option<u64>,
}

/// What an instrumented program counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Every branch and call: a profile for `optimize` (.plraw)
    Edges,
    /// Whether functions ran, one store each: a machine profile (.mipraw)
    FunctionCoverage,
    /// Whether blocks ran, with as few stores as possible: a machine profile
    BlockCoverage,
    /// Calls and the order of first calls: a machine profile
    CallGraph,
    /// The same, and a sample of where calls come from
    CallEdges,
}

impl Mode {
    fn coverage(self) -> Option<CoverageMode> {
        match self {
            Mode::Edges => None,
            Mode::FunctionCoverage => Some(CoverageMode::FunctionCoverage),
            Mode::BlockCoverage => Some(CoverageMode::BlockCoverage),
            Mode::CallGraph => Some(CoverageMode::CallGraph),
            Mode::CallEdges => Some(CoverageMode::CallEdges),
        }
    }
}

/// Refuses a pattern that the program could not expand when it starts.
fn pattern(text: &str) -> Result<String, String> {
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter == '%' {
            match letters.next() {
                Some('p' | 'b' | 'h' | 'm' | '%') => {}
                Some(other) => {
                    return Err(format!(
                        "'%{other}' is not known; there are %p, %b, %h, %m and %%"
                    ));
                }
                None => {
                    return Err(
                        "it ends with a single '%'; write '%%' for a percent sign".to_owned()
                    );
                }
            }
        }
    }
    match text.len() {
        0 => Err("it is empty".to_owned()),
        1..=1024 if !text.contains('\0') => Ok(text.to_owned()),
        length => Err(format!(
            "it has {length} bytes; at most 1024 are possible, and none may be zero"
        )),
    }
}

impl Instrument {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("instrument");
        let input = Input::open(&self.input)?.using(self.reading.relocations)?;
        let input = input.parse()?;
        if let Some(mode) = self.mode.coverage() {
            if self.blocks.is_some() {
                bail!(
                    "--blocks is for --mode edges: the other modes leave blocks where they are, or record their place in the map"
                );
            }
            return self.machine_profile(mode, &input, watched, ui);
        }
        let mut options = self.instrumenting.options(self.profile.as_deref());
        options.blocks = self.blocks.is_some();
        let done = rewriting::instrument(
            &input,
            &options,
            &self.output,
            Proof {
                wanted: !self.no_verify,
                refuse: self.refuse.as_deref(),
            },
            &mut watched.phases,
        )?;
        if let Some(file) = &self.blocks {
            let blocks = done.report.blocks.iter();
            let lines = blocks.map(|(from, to)| format!("{from:x} {to:x}\n"));
            fs::write(file, lines.collect::<String>())
                .with_context(|| file.display().to_string())?;
        }
        watched.finish();
        rewriting::save_certificate(self.certificate.as_deref(), done.certificate.as_ref())?;
        if self.json {
            let account = Account {
                instrument: &done.report,
                reverted: done.reverted.iter().map(|r| r.name.as_str()).collect(),
                refused: &done.reverted,
                rounds: done.rounds,
                proved: done.certificate.as_ref().map(|c| c.proved),
                identical: done.certificate.as_ref().map(|c| c.identical),
            };
            println!("{}", serde_json::to_string_pretty(&account)?);
        }
        say(ui, &self.output.display().to_string(), &done);
        Ok(ExitCode::SUCCESS)
    }
}

impl Instrument {
    /// The modes that make machine profiles.
    fn machine_profile(
        self,
        mode: CoverageMode,
        input: &Parsed<'_>,
        mut watched: Watched,
        ui: &Ui,
    ) -> Result<ExitCode> {
        let refuse = self.refuse.clone();
        let proof = Proof {
            wanted: !self.no_verify,
            refuse: refuse.as_deref(),
        };
        let options = CoverageOptions {
            mode,
            pattern: self.profile.unwrap_or_else(|| "default.mipraw".to_owned()),
            functions: self.instrumenting.functions.clone(),
            edges: self.edges,
            keep: FxHashSet::default(),
            reuse: mode == CoverageMode::BlockCoverage,
            sealed: FxHashSet::default(),
        };
        let map = self.map.unwrap_or_else(|| {
            let mut name = self.output.clone().into_os_string();
            name.push(".mipmap");
            name.into()
        });
        let done = rewriting::instrument_coverage(
            input,
            &options,
            &self.output,
            &map,
            proof,
            &mut watched.phases,
        )?;
        let report = &done.report;
        watched.finish();
        rewriting::save_certificate(self.certificate.as_deref(), done.certificate.as_ref())?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        }
        ui.say(format_args!(
            "{BOLD}{}{BOLD:#}: {} of {} functions instrumented; {} of their {} blocks have a counter",
            self.output.display(),
            count(report.instrumented),
            count(report.functions),
            count(report.counted),
            count(report.blocks),
        ));
        if let Some(c) = &done.certificate {
            say_proved(ui, c);
        }
        say_reverted(ui, &done.reverted);
        done.warn(ui);
        say_pinned(ui, &report.pinned);
        ui.say(format_args!(
            "  size {} -> {} ({}); map {} in {}; each run {}",
            bytes(report.input_size),
            bytes(report.output_size),
            change(report.input_size as f64, report.output_size as f64),
            bytes(report.map.len() as u64),
            map.display(),
            bytes(report.raw_size),
        ));
        Ok(ExitCode::SUCCESS)
    }
}

fn say_proved(ui: &Ui, certificate: &postlink_verify::Report) {
    ui.say(format_args!(
        "  {GOOD}proved{GOOD:#}: {}, {}",
        counted(
            certificate.proved,
            "instrumented function is equivalent to the input's",
            "instrumented functions are equivalent to the input's"
        ),
        counted(certificate.identical, "is unchanged", "are unchanged")
    ));
}

/// The few lines at the end.
pub fn say(ui: &Ui, output: &str, done: &Instrumented) {
    let report = &done.report;
    let kind = match report.counting {
        Counters::PerThread => "per-thread",
        Counters::Biased => "biased",
        Counters::Atomic => "atomic",
        Counters::Plain | Counters::Auto => "plain",
    };
    ui.say(format_args!(
        "{BOLD}{output}{BOLD:#}: {} of {} functions instrumented, with {} and {}",
        count(report.instrumented),
        count(report.functions),
        counted(
            report.counters,
            &format!("{kind} counter"),
            &format!("{kind} counters")
        ),
        counted(
            report.sites,
            "recorder of indirect calls",
            "recorders of indirect calls"
        ),
    ));
    if let Some(c) = &done.certificate {
        say_proved(ui, c);
    }
    say_reverted(ui, &done.reverted);
    done.warn(ui);
    if let Some(why) = &report.not_per_thread {
        ui.say(format_args!("  {kind} and not per-thread counters: {why}"));
    }
    // A reason for both is said once.
    if let Some(why) = &report.not_biased
        && report.not_per_thread.as_ref() != Some(why)
    {
        ui.say(format_args!("  {kind} and not biased counters: {why}"));
    }
    say_pinned(ui, &report.pinned);
    ui.say(format_args!(
        "  size {} -> {} ({})",
        bytes(report.input_size),
        bytes(report.output_size),
        change(report.input_size as f64, report.output_size as f64)
    ));
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn patterns_that_no_start_up_routine_could_expand_are_refused() {
        for good in ["run.plraw", "%p", "/tmp/%b.%h.%p.%%.plraw"] {
            assert!(pattern(good).is_ok(), "{good}");
        }
        for bad in ["", "%", "x%", "%q", "a%%%"] {
            assert!(pattern(bad).is_err(), "{bad}");
        }
    }
}

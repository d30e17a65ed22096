//! `postlink optimize`: a program laid out for its profile, and proved.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use postlink_profile::{Profile, Weighted};
use postlink_rewrite::{OptimizeReport, Pin};
use serde::Serialize;

use crate::input::Input;
use crate::options::Optimizing;
use crate::rewriting::{self, Optimized};
use crate::ui::{BOLD, GOOD, Ui, bytes, change, count};

/// Lay a program out for its profile, and prove the result
///
/// Functions that ran move together, in the order in which they call each other; in each, blocks follow each other
/// along the paths that were taken, and blocks that never ran move out of the way. Nothing else changes: an independent
/// checker compares every moved instruction, and a function that it cannot prove stays where it was.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink optimize ./app -p run.plraw -o ./app.opt
  postlink optimize ./app -p monday.plraw -p tuesday.plraw:2 -o ./app.opt --dyno-stats
  postlink optimize ./app -p all.plprof -o ./app.opt --preset size")]
pub struct Optimize {
    /// The program or shared library that was instrumented (not its instrumented copy)
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// Profile, raw or merged, with a weight if it counts more than once; may be given several times
    #[arg(long, short, value_name = "FILE[:WEIGHT]", required = true)]
    pub profile: Vec<String>,
    /// The file to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub optimizing: Optimizing,
    /// Write the output without having it checked
    #[arg(long)]
    pub no_verify: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Account<'a> {
    optimize: &'a OptimizeReport,
    reverted: &'a [String],
    proved: Option<u64>,
    identical: Option<u64>,
}

/// Adds up profiles from the command line.
pub fn read_profiles(ui: &Ui, files: &[String]) -> Result<Profile> {
    let inputs = files
        .iter()
        .map(|file| Weighted::parse(file))
        .collect::<Result<Vec<_>, _>>()?;
    let merged = postlink_profile::merge(&inputs)?;
    for skipped in &merged.skipped {
        ui.warn(format_args!(
            "{}: holds no counts yet, left out",
            skipped.display()
        ));
    }
    Ok(merged.profile)
}

impl Optimize {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("optimize");
        let input = Input::open(&self.input)?;
        let options = self.optimizing.options()?;
        watched.phases.begin("profile");
        let profile = read_profiles(ui, &self.profile)?;
        let done = rewriting::optimize(
            &input,
            &profile,
            &options,
            &self.output,
            !self.no_verify,
            &mut watched.phases,
        )
        .with_context(|| format!("with the profile {}", self.profile.join(", ")))?;
        watched.finish();
        if self.json {
            let account = Account {
                optimize: &done.report,
                reverted: &done.reverted,
                proved: done.certificate.as_ref().map(|c| c.proved),
                identical: done.certificate.as_ref().map(|c| c.identical),
            };
            println!("{}", serde_json::to_string_pretty(&account)?);
        }
        say(ui, &self.output.display().to_string(), &done);
        Ok(ExitCode::SUCCESS)
    }
}

/// The few lines at the end.
pub fn say(ui: &Ui, output: &str, done: &Optimized) {
    let report = &done.report;
    ui.say(format_args!(
        "{BOLD}{output}{BOLD:#}: {} of {} functions ran, {} moved",
        count(report.profiled),
        count(report.functions),
        count(report.moved),
    ));
    match &done.certificate {
        Some(c) => ui.say(format_args!(
            "  {GOOD}proved{GOOD:#}: {} moved functions do what they did, {} are as they were",
            count(c.proved),
            count(c.identical)
        )),
        None => ui.warn("not checked, as you asked"),
    }
    if !done.reverted.is_empty() {
        ui.warn(format_args!(
            "{} functions could not be proved and stay: {}",
            done.reverted.len(),
            done.reverted
                .iter()
                .take(5)
                .map(|n| crate::ui::demangle(n))
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    if report.not_emitted > 0 {
        ui.say(format_args!(
            "  {} functions that ran stay:",
            count(report.not_emitted)
        ));
        say_pinned(ui, &report.pinned);
    }
    if report.inconsistent_functions > 0 {
        ui.warn(format_args!(
            "the counters of {} functions contradict each other a little (plain counters in threads, or read while the program ran)",
            count(report.inconsistent_functions)
        ));
    }
    ui.say(format_args!(
        "  size {} -> {} ({}), {} hot code, {} cold",
        bytes(report.input_size),
        bytes(report.output_size),
        change(report.input_size as f64, report.output_size as f64),
        bytes(report.hot_bytes),
        bytes(report.cold_bytes)
    ));
    if report.bat_bytes > 0 {
        ui.say(format_args!(
            "  address translation tables {}",
            bytes(report.bat_bytes)
        ));
    }
    ui.say(format_args!(
        "  ext-TSP score {:.4e} -> {:.4e} ({})",
        report.score_before,
        report.score_after,
        change(report.score_before, report.score_after)
    ));
    if let Some((before, after)) = &report.dyno_stats {
        ui.say(format_args!(
            "  {BOLD}{:<34} {:>18} {:>18}{BOLD:#}",
            "executed by the profile", "before", "after"
        ));
        for ((name, before), (_, after)) in before.rows().into_iter().zip(after.rows()) {
            ui.say(format_args!(
                "  {name:<34} {:>18} {:>18} {:>9}",
                count(before),
                count(after),
                change(before as f64, after as f64)
            ));
        }
    }
}

/// Which functions stay, by reason.
pub fn say_pinned(ui: &Ui, pinned: &[(Pin, usize)]) {
    for (pin, n) in pinned {
        ui.say(format_args!("  {:>9} {}", count(*n), pin.explain()));
    }
}

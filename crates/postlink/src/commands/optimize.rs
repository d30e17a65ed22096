//! `postlink optimize`: a program laid out for its profile, and proved.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use postlink_aggregate as aggregate;
use postlink_aggregate::{Placer, Quality, is_translated};
use postlink_profile::address::AddressProfile;
use postlink_profile::any::{self, Any, Model};
use postlink_profile::samples::Options;
use postlink_profile::{Profile, Weighted, bolt_yaml, fdata};
use postlink_rewrite::attach::{Account as Found, Samples, Source};
use postlink_rewrite::{DebugInfo, DebugReport, Fitted, OptimizeReport, Pin, SearchReport};
use postlink_verify::Report;
use serde::Serialize;

use super::aggregate::say_samples;
use crate::input::{Input, Parsed};
use crate::options::{self, Optimizing};
use crate::profiles::{self, Reading, Target};
use crate::refused::{self, Refused};
use crate::rewriting::{self, Optimized, Proof};
use crate::ui::{BOLD, GOOD, Ui, bytes, change, count, counted};

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
  postlink optimize ./app -p all.plprof -o ./app.opt --preset size
  postlink optimize ./app -p perf.data -o ./app.opt
  postlink optimize ./app -p last-release.yaml -o ./app.opt")]
pub struct Optimize {
    /// The program or shared library (not its instrumented copy)
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// Profile of any kind, with a weight if it counts more than once; may be given several times
    ///
    /// Counters of an instrumented program (raw or merged) are exact. Profiles by names (fdata) and by blocks
    /// (BOLT YAML) and samples (perf.data, text of perf script, pre-aggregated) are fitted to the program,
    /// and their counts balanced. They may be of an older build: what has changed since is matched by hashes
    /// of the code where the profile has them.
    #[arg(long, short, value_name = "FILE[:WEIGHT]", required = true)]
    pub profile: Vec<String>,
    /// The file to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Take samples of another version of the binary
    #[arg(long)]
    pub ignore_build_id: bool,
    /// Write the counts that the program was laid out for, fitted and balanced, as a profile of it: by names,
    /// or by blocks if FILE ends in .yaml
    ///
    /// So the profile of an older build becomes one of this build.
    #[arg(long, value_name = "FILE")]
    pub save_profile: Option<PathBuf>,
    #[command(flatten)]
    pub optimizing: Optimizing,
    #[command(flatten)]
    pub reading: options::Reading,
    /// Write the output without having it checked
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

/// What `--json` prints.
#[derive(Serialize)]
struct Account<'a> {
    optimize: &'a OptimizeReport,
    reverted: Vec<&'a str>,
    refused: &'a [Refused],
    proved: Option<u64>,
    identical: Option<u64>,
}

/// Adds up counters of an instrumented program from the command line.
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

/// A profile of a program, ready for the rewriter.
pub enum ProfileOf {
    /// Counters, or a profile by names or blocks.
    Any(Any),
    /// Samples of this file: they need no names.
    Samples(AddressProfile, Placer),
    /// What ran.
    Machine(postlink_mip::Profile),
}

impl ProfileOf {
    /// Calls something with what the rewriter makes of it.
    pub fn with_source<R>(&self, then: impl FnOnce(Source<'_>) -> Result<R>) -> Result<R> {
        match self {
            ProfileOf::Any(Any::Counters(profile)) => then(Source::Exact(profile)),
            ProfileOf::Any(Any::Symbols(profile)) => then(Source::Named(profile)),
            ProfileOf::Any(Any::Blocks(profile)) => then(Source::Blocks(profile)),
            ProfileOf::Any(Any::Addresses(_)) => {
                bail!("internal error: samples that were not aggregated")
            }
            ProfileOf::Samples(profile, placer) => then(Source::Addresses(Samples {
                profile,
                address: &|place| placer.address(place),
                same_code: placer.is_same_build(),
            })),
            ProfileOf::Machine(profile) => then(Source::Machine(profile)),
        }
    }
}

/// Reads and adds up profiles of any kind from the command line. Samples by address stay by address; where
/// they are of a program that was optimised before, or meet profiles of other kinds, they are aggregated with
/// the binary. Profiles of several kinds meet as one by names.
pub fn read_any(
    ui: &Ui,
    input: &Parsed<'_>,
    files: &[String],
    ignore_build_id: bool,
) -> Result<ProfileOf> {
    read_weighted(ui, input, &profiles::weighted(files)?, ignore_build_id)
}

/// The same of files with their weights.
pub fn read_weighted(
    ui: &Ui,
    input: &Parsed<'_>,
    inputs: &[Weighted],
    ignore_build_id: bool,
) -> Result<ProfileOf> {
    let models = any::models(inputs)?;
    let alike = models.iter().all(|m| *m == models[0]);
    let addresses = alike
        && models
            .first()
            .is_some_and(|model| model.may_be_by_address());
    let by_address = addresses && !is_translated(&input.elf)?;
    let reading = Reading {
        relocations: options::Relocations::Auto,
        binary: None,
        aggregate: aggregate::Options {
            ignore_build_id,
            ..aggregate::Options::default()
        },
        samples: Options {
            even: true,
            ..Options::default()
        },
    };
    let wanted = (!alike || addresses && !by_address).then_some(Model::Symbols);
    match profiles::read_of(ui, inputs, wanted, &reading, Some(input))? {
        Any::Addresses(profile) => {
            let placer = Placer::of_file(&input.path, &input.elf, &profile, ignore_build_id)?;
            say_samples(ui, &Quality::new(&profile, &placer));
            Ok(ProfileOf::Samples(profile, placer))
        }
        other => Ok(ProfileOf::Any(other)),
    }
}

/// Reads and adds up machine profiles (.mip); `None` if the files are of another kind.
fn machine_profile(files: &[String]) -> Result<Option<postlink_mip::Profile>> {
    use postlink_mip::MAGIC;
    use std::io::Read;
    let mut sum: Option<(postlink_mip::Profile, std::path::PathBuf)> = None;
    for (place, file) in files.iter().enumerate() {
        let Weighted { path, weight } = Weighted::parse(file)?;
        let mut magic = [0; MAGIC.len()];
        let is_machine = std::fs::File::open(&path)
            .and_then(|mut file| file.read_exact(&mut magic))
            .is_ok_and(|()| magic == MAGIC);
        match (is_machine, place > 0 && sum.is_none()) {
            (false, _) if sum.is_none() => return Ok(None),
            (true, false) => {}
            _ => bail!(
                "{}: machine profiles cannot be added to profiles of other kinds",
                path.display()
            ),
        }
        let profile = postlink_mip::mip::open(&path)?;
        let (sum, first) = sum.get_or_insert_with(|| (profile.emptied(), path.clone()));
        postlink_mip::merge::add_profile(sum, &profile, weight, (first, &path))?;
    }
    Ok(sum.map(|(profile, _)| profile))
}

/// Writes the counts that a program is laid out for.
pub fn save_fitted(input: &Input, fitted: &dyn Fitted<'_>, path: &Path) -> Result<()> {
    input.must_differ_from(path)?;
    if Target::of(path) == Some(Target::Yaml) {
        let name = input.path.as_os_str().as_encoded_bytes();
        Ok(bolt_yaml::write(path, &fitted.yaml(name))?)
    } else {
        Ok(fdata::write(path, &fitted.symbolic())?)
    }
}

impl Optimize {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("optimize");
        let input = Input::open(&self.input)?.using(self.reading.relocations)?;
        let input = input.parse()?;
        let options = self.optimizing.options()?;
        watched.phases.begin("profile");
        let profile = match machine_profile(&self.profile)? {
            Some(profile) => ProfileOf::Machine(profile),
            None => read_any(ui, &input, &self.profile, self.ignore_build_id)?,
        };
        if let (Some(path), ProfileOf::Machine(_)) = (&self.save_profile, &profile) {
            bail!(
                "a machine profile has no counts that could be saved to {}",
                path.display()
            );
        }
        let proof = Proof {
            wanted: !self.no_verify,
            refuse: self.refuse.as_deref(),
        };
        let save = |fitted: &dyn Fitted<'_>| match &self.save_profile {
            Some(path) => save_fitted(&input, fitted, path),
            None => Ok(()),
        };
        let phases = &mut watched.phases;
        let fit = profile
            .with_source(|source| rewriting::fit_and_save(&input, source, &options, phases, save));
        // As large as all counters of a program.
        drop(profile);
        let optimize = |fit| rewriting::optimize_fitted(&input, fit, &self.output, proof, phases);
        let done = fit
            .and_then(optimize)
            .with_context(|| format!("with the profile {}", self.profile.join(", ")))?;
        watched.finish();
        rewriting::save_certificate(self.certificate.as_deref(), done.certificate.as_ref())?;
        if self.optimizing.poison {
            rewriting::poison(&self.output, &done.report.old_bodies)?;
        }
        if self.json {
            let account = Account {
                optimize: &done.report,
                reverted: done.reverted.iter().map(|r| r.name.as_str()).collect(),
                refused: &done.reverted,
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
            "  {GOOD}proved{GOOD:#}: {}, {}",
            counted(
                c.proved,
                "moved function is equivalent to the input's",
                "moved functions are equivalent to the input's"
            ),
            counted(c.identical, "is unchanged", "are unchanged")
        )),
        None => ui.warn("not checked, because of --no-verify"),
    }
    for pass in &report.passes {
        ui.say(format_args!(
            "  --{}: {} of {} {} changed, which ran {} times",
            pass.pass,
            count(pass.changed),
            count(pass.sites),
            pass.what,
            count(pass.executions)
        ));
    }
    if let Some(why) = &report.pointers_stay {
        ui.say(format_args!(
            "  pointers to functions keep their values: {why}"
        ));
    }
    say_reverted(ui, &done.reverted);
    done.warn(ui);
    if let Some(found) = &report.profile {
        say_found(ui, found);
    }
    if report.not_emitted > 0 {
        ui.say(format_args!(
            "  {}:",
            counted(
                report.not_emitted,
                "function that ran stays",
                "functions that ran stay"
            )
        ));
        say_pinned(ui, &report.not_emitted_for);
    }
    if report.inconsistent_functions > 0 {
        let more = if report.inconsistent_functions > report.most_inconsistent.len() {
            ", …"
        } else {
            ""
        };
        ui.warn(format_args!(
            "the counters of {} ({}{more}) contradict each other a little (plain counters in threads, threads that ended inside of them, a secondary entry whose control continues in the old code, or a profile that was read while the program ran)",
            counted(report.inconsistent_functions, "function", "functions"),
            report.most_inconsistent.join(", ")
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
    if let Some(search) = &report.search {
        say_search(ui, search);
    }
    if report.bat_bytes > 0 {
        ui.say(format_args!(
            "  address translation tables {}",
            bytes(report.bat_bytes)
        ));
    }
    if let Some(debug) = &report.debug {
        say_debug(ui, debug, done.certificate.as_ref());
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

/// Which of the layouts that were tried was taken.
fn say_search(ui: &Ui, search: &SearchReport) {
    let (Some(given), Some(taken)) = (search.layouts.first(), search.layouts.get(search.chosen))
    else {
        return;
    };
    let tried = counted(search.layouts.len(), "layout was", "layouts were");
    let by = if search.by_trace {
        "the trace"
    } else {
        "counts"
    };
    match search.chosen {
        0 => ui.say(format_args!(
            "  {tried} tried: by a model of the instruction cache, fed with {by}, none is better than the usual one by more than 1 % and chance"
        )),
        _ => ui.say(format_args!(
            "  {tried} tried, taken: {}: {} misses of the instruction cache by a model fed with {by}, {} with the usual one ({})",
            taken.name,
            count(taken.cost.round() as u64),
            count(given.cost.round() as u64),
            change(given.cost, taken.cost)
        )),
    }
}

/// What became of debug information.
fn say_debug(ui: &Ui, debug: &DebugReport, certificate: Option<&Report>) {
    let compared = certificate.and_then(|c| c.debug);
    match (debug.what, &debug.kept_because, compared) {
        (_, Some(why), _) => ui.warn(format_args!(
            "debug information was kept and describes old code: {why}"
        )),
        (DebugInfo::Keep, None, _) => ui.say(format_args!(
            "  debug information kept: it describes old code"
        )),
        (DebugInfo::Drop, None, _) => ui.say(format_args!("  debug information left out")),
        (DebugInfo::Update, None, Some(c)) => ui.say(format_args!(
            "  {GOOD}proved{GOOD:#}: debug information describes code where it is now: {} scopes, {} places, {} rows, {} ({})",
            count(c.scopes),
            count(c.places),
            count(c.rows),
            bytes(debug.output_bytes),
            change(debug.input_bytes as f64, debug.output_bytes as f64)
        )),
        (DebugInfo::Update, None, None) => ui.say(format_args!(
            "  debug information updated: {} ({})",
            bytes(debug.output_bytes),
            change(debug.input_bytes as f64, debug.output_bytes as f64)
        )),
    }
    if debug.package_bytes > 0 {
        ui.say(format_args!(
            "  split debug information: {} in a package beside the output (.dwp), from {}",
            bytes(debug.package_bytes),
            counted(debug.split_files, "file", "files")
        ));
    }
    say_losses(ui, debug);
}

/// What is described less well than before.
pub fn say_losses(ui: &Ui, debug: &DebugReport) {
    for (what, times) in &debug.losses {
        ui.say(format_args!("  {times:>9} {what}"));
    }
    if debug.probes > 0 {
        let probes = counted(debug.probes, "static probe", "static probes");
        ui.say(format_args!("  {probes} in moved code (.note.stapsdt)"));
    }
    if debug.probes_left > 0 {
        let probes = counted(debug.probes_left, "static probe", "static probes");
        ui.warn(format_args!(
            "{probes} (.note.stapsdt) in old code, which control no longer reaches: tracers will see nothing of them"
        ));
    }
    if let Some(first) = debug.stale_units.first() {
        let all = debug.stale_units.len();
        ui.warn(format_args!(
            "{} of debug information cannot be updated and {} old code: {first}",
            counted(all, "unit", "units"),
            if all == 1 { "describes" } else { "describe" }
        ));
    }
}

/// Functions that the checker refused: which, and why the first.
pub fn say_reverted(ui: &Ui, reverted: &[Refused]) {
    let (of_program, reverted): (Vec<&Refused>, Vec<&Refused>) =
        reverted.iter().partition(|r| r.of_program);
    let names = |list: &[&Refused]| {
        let names = list.iter().take(5);
        let names: Vec<String> = names.map(|r| crate::ui::demangle(&r.name)).collect();
        names.join(", ")
    };
    if let Some(first) = of_program.first() {
        ui.say(format_args!(
            "  {}, as a word or number of the program may be an address inside: {}",
            counted(of_program.len(), "function stays", "functions stay"),
            names(&of_program)
        ));
        let name = crate::ui::demangle(&first.name);
        ui.say(format_args!("  {name}: {}", first.reason));
    }
    let Some(first) = reverted.first() else {
        return;
    };
    ui.warn(format_args!(
        "{}: {}",
        counted(
            reverted.len(),
            "function could not be proved and stays",
            "functions could not be proved and stay"
        ),
        names(&reverted)
    ));
    ui.warn(format_args!(
        "{} runs where it is in the input, since the checker refused its new code: {}; {}",
        crate::ui::demangle(&first.name),
        first.reason,
        refused::how_to_report()
    ));
}

/// How much of a profile that is not exact was found again in the program.
fn say_found(ui: &Ui, found: &Found) {
    let share = |part: u64, all: u64| match all {
        0 => "100.0 %".to_owned(),
        _ => format!("{:.1} %", 100.0 * part as f64 / all as f64),
    };
    let all = found.counts.saturating_add(found.lost_counts);
    let kept = found.counts.saturating_sub(found.bad_counts);
    ui.say(format_args!(
        "  profile: {} of {} functions with counts attached, {} of all counts fit",
        count(found.attached),
        count(found.functions),
        share(
            kept.saturating_sub(found.stale_counts.saturating_sub(found.matched_counts)),
            all
        )
    ));
    if found.stale > 0 {
        ui.say(format_args!(
            "  stale: {} of other code, {} of them beyond recognition",
            counted(found.stale, "function is", "functions are"),
            count(found.dropped)
        ));
        if found.stale_blocks > 0 {
            ui.say(format_args!(
                "  recovered in them: {} of {} blocks ({}), {} of the counts; the rest is inferred",
                count(found.matched_blocks),
                count(found.stale_blocks),
                share(found.matched_blocks, found.stale_blocks),
                share(found.matched_counts, found.stale_counts)
            ));
        }
    }
    if found.impossible_runs > 0 {
        let runs = format!(
            "{} without a branch contradict the code",
            counted(found.impossible_runs, "run", "runs")
        );
        if found.impossible_runs > all / 10 {
            ui.warn(format_args!(
                "{runs}: the samples are probably of another version of the binary"
            ))
        } else {
            ui.say(format_args!("  {runs}"))
        }
    }
    if found.renamed > 0 {
        ui.say(format_args!(
            "  {} another name now",
            counted(found.renamed, "function has", "functions have")
        ));
    }
    if found.unknown_names > 0 {
        ui.warn(format_args!(
            "{} not in the binary, with {} of the counts: {}{}",
            counted(
                found.unknown_names,
                "function of the profile is",
                "functions of the profile are"
            ),
            share(found.lost_counts, all),
            found
                .examples
                .iter()
                .map(|n| crate::ui::demangle(n))
                .collect::<Vec<_>>()
                .join(", "),
            if found.unknown_names > found.examples.len() as u64 {
                ", …"
            } else {
                ""
            }
        ));
    }
}

/// Which functions stay, by reason.
pub fn say_pinned(ui: &Ui, pinned: &[(Pin, usize)]) {
    for (pin, n) in pinned {
        ui.say(format_args!("  {:>9} {}", count(*n), pin.explain()));
    }
}

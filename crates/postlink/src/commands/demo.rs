//! `postlink demo`: the whole job on a real program: postlink itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use postlink_measure::ratio::{FEWEST_PAIRS, percent};
use postlink_measure::{Paired, Ratio, Verdict, ending};

use super::{instrument, optimize};
use crate::input::Input;
use crate::options::{Instrumenting, Optimizing};
use crate::rewriting::{self, Proof};
use crate::ui::{BAD, BOLD, GOOD, Ui, bytes, change, count, seconds};

/// See all of it on a real program: postlink makes itself faster
///
/// Instruments a copy of the running postlink, lets the copy inspect, instrument and optimise postlink,
/// optimises it with that profile, has the result proved, and compares the two. No files are left unless
/// --keep says so.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink demo
  postlink demo --runs 15 --keep /tmp/demo")]
pub struct Demo {
    /// Pairs of runs that the comparison rests on
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(i64::from(FEWEST_PAIRS)..))]
    pub runs: u32,
    /// Keep all files in this directory
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    #[command(flatten)]
    pub instrumenting: Instrumenting,
    #[command(flatten)]
    pub optimizing: Optimizing,
}

/// Files of the demonstration.
struct Files {
    folder: PathBuf,
    plain: PathBuf,
    instrumented: PathBuf,
    optimized: PathBuf,
    first: PathBuf,
    second: PathBuf,
}

impl Files {
    fn new(folder: PathBuf) -> Files {
        let file = |name: &str| folder.join(name);
        Files {
            plain: file("postlink"),
            instrumented: file("postlink.inst"),
            optimized: file("postlink.opt"),
            first: file("inspect.plraw"),
            second: file("optimize.plraw"),
            folder,
        }
    }

    /// The workload: what this copy of postlink is to do with the plain one.
    fn work(&self, program: &Path, arguments: &[&str], profile: Option<&Path>) -> Command {
        let mut command = Command::new(program);
        command
            .args(["--quiet", "--threads", "1"])
            .args(arguments)
            .current_dir(&self.folder);
        command
            .env_remove("POSTLINK_PROFILE")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(profile) = profile {
            command.env("POSTLINK_PROFILE", profile);
        }
        command
    }

    fn must_succeed(mut command: Command) -> Result<Duration> {
        let run = postlink_measure::run(&mut command).with_context(|| format!("{command:?}"))?;
        if !run.status.success() {
            bail!("{command:?} {}", ending(run.status));
        }
        Ok(run.wall)
    }
}

const INSPECT: &[&str] = &["inspect", "postlink", "--json"];
const INSTRUMENT: &[&str] = &["instrument", "postlink", "-o", "work.inst"];
const OPTIMIZE: &[&str] = &[
    "optimize",
    "postlink",
    "-p",
    "inspect.plraw",
    "-o",
    "work.opt",
    "--dyno-stats",
];

impl Demo {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let temporary;
        let folder = match &self.keep {
            Some(folder) => {
                fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
                rewriting::runnable(folder)?
            }
            None => {
                temporary = tempfile::Builder::new()
                    .prefix("postlink-demo.")
                    .tempdir()
                    .context("a temporary directory")?;
                temporary.path().to_owned()
            }
        };
        let files = Files::new(folder);
        for old in [&files.first, &files.second] {
            let _ = fs::remove_file(old);
        }
        let this = std::env::current_exe().context("the path of the running program")?;
        fs::copy(&this, &files.plain).with_context(|| this.display().to_string())?;
        let input = Input::open(&files.plain)?;
        let input = input.parse()?;
        if !input.elf.has_kept_relocs() {
            bail!(
                "{}: was linked without kept relocations; build it in its own repository, where .cargo/config.toml has the linker keep them (RUSTFLAGS in the environment override that file), or add -Clink-arg=-Wl,--emit-relocs to RUSTFLAGS",
                this.display()
            );
        }

        ui.say(format_args!(
            "{BOLD}1. instrument{BOLD:#} a copy of postlink ({})",
            bytes(input.bytes().len() as u64)
        ));
        let mut watched = ui.phases("instrument");
        let done = rewriting::instrument(
            &input,
            &self.instrumenting.options(None),
            &files.instrumented,
            Proof::YES,
            &mut watched.phases,
        )?;
        watched.finish();
        instrument::say(ui, "postlink.inst", &done);

        ui.say(format_args!("{BOLD}2. run{BOLD:#} it: it inspects postlink, instruments it, and optimises it with the profile of the first two"));
        let instrumented = &files.instrumented;
        let mut slow = Files::must_succeed(files.work(instrumented, INSPECT, Some(&files.first)))?;
        slow += Files::must_succeed(files.work(instrumented, INSTRUMENT, Some(&files.first)))?;
        slow += Files::must_succeed(files.work(instrumented, OPTIMIZE, Some(&files.second)))?;
        ui.say(format_args!("  that took {}", seconds(slow)));

        ui.say(format_args!(
            "{BOLD}3. optimise{BOLD:#} postlink with the merged counts, and prove the result"
        ));
        let mut watched = ui.phases("optimize");
        let profiles = [&files.first, &files.second].map(|file| file.display().to_string());
        let profile = optimize::read_profiles(ui, &profiles)?;
        let mut options = self.optimizing.options()?;
        options.dyno_stats = true;
        let done = rewriting::optimize(
            &input,
            &profile,
            &options,
            &files.optimized,
            Proof::YES,
            &mut watched.phases,
        )?;
        watched.finish();
        optimize::say(ui, "postlink.opt", &done);

        ui.say(format_args!(
            "{BOLD}4. compare{BOLD:#}: both do the same work {} times in pairs, each first in every second pair",
            self.runs
        ));
        // Instrumenting takes as long as both, and would make the whole take longer than a new user waits.
        let jobs = [("inspect", INSPECT), ("optimize", OPTIMIZE)];
        anstream::println!(
            "{BOLD}{:<16} {:>10} {:>10} {:>9}  {:<21} {}{BOLD:#}",
            "processor time",
            "before",
            "after",
            "change",
            "95 % interval",
            "verdict"
        );
        let mut all = vec![];
        for (name, arguments) in jobs {
            let compared = self.compare(&files, arguments)?;
            print_times(name, &compared);
            all.push(compared);
        }
        if let Some((before, after)) = &done.report.dyno_stats {
            for ((name, before), (_, after)) in before.rows().into_iter().zip(after.rows()) {
                if ["taken branches", "total branches", "executed instructions"].contains(&name) {
                    let (b, a) = (before as f64, after as f64);
                    anstream::println!(
                        "{name:<26} {:>12} {:>12} {:>10}",
                        format!("{b:.3e}"),
                        format!("{a:.3e}"),
                        change(b, a)
                    );
                }
            }
        }
        if let Some(certificate) = &done.certificate {
            anstream::println!(
                "{GOOD}proved{GOOD:#}: {} moved functions are equivalent to the input's, {} are unchanged",
                count(certificate.proved),
                count(certificate.identical)
            );
        }
        if let Some(ratio) = all_together(&all) {
            let style = match ratio.verdict() {
                Verdict::Faster => GOOD,
                Verdict::NoDifference => BOLD,
                Verdict::Slower => BAD,
            };
            anstream::println!(
                "{style}{}{style:#}",
                ratio.sentence(
                    "postlink as optimised by itself",
                    "processor time for both jobs together"
                )
            );
        }
        if self.keep.is_some() {
            ui.say(format_args!("kept in {}", files.folder.display()));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn compare(&self, files: &Files, arguments: &[&str]) -> Result<Paired> {
        let [plain, optimized] = [&files.plain, &files.optimized];
        let both: [Box<dyn FnMut() -> Command>; 2] = [
            Box::new(|| files.work(plain, arguments, None)),
            Box::new(|| files.work(optimized, arguments, None)),
        ];
        postlink_measure::compare(self.runs, both, |run| {
            if !run.status.success() {
                bail!("postlink {} {}", arguments.join(" "), ending(run.status));
            }
            Ok(())
        })
    }
}

fn print_times(name: &str, compared: &Paired) {
    let [before, after] = compared.cpu();
    let Some(ratio) = compared.cpu_ratio() else {
        return;
    };
    anstream::println!(
        "{name:<16} {:>10} {:>10} {:>9}  {:<21} {}",
        seconds(before),
        seconds(after),
        percent(ratio.estimate),
        ratio.interval_words(),
        ratio.verdict().words()
    );
}

/// The jobs as one: the n-th pair is the sum of the n-th pairs.
fn all_together(jobs: &[Paired]) -> Option<Ratio> {
    let pairs = jobs.iter().map(|job| job.pairs.len()).min()?;
    Ratio::of((0..pairs).map(|n| {
        let runs = jobs.iter().filter_map(|job| job.pairs.get(n));
        runs.fold((0.0, 0.0), |(before, after), pair| {
            let [first, second] = [pair.0.cpu, pair.1.cpu].map(|time| time.as_secs_f64());
            (before + first, after + second)
        })
    }))
}

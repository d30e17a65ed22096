//! `postlink demo`: the whole job on a real program: postlink itself.
//!
//! Its workload is a program of the system of a megabyte, which it inspects and instruments in half a second. Many
//! short runs in alternation show a difference of two percent in a quarter of a minute; a few long ones, on postlink's
//! own file, take several times as long for an interval twice as wide, as what the machine does beside drifts.

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
/// Instruments a copy of the running postlink, lets the copy inspect and instrument a program of this system,
/// optimises it with that profile, has the result proved, and compares the two. No files are left unless
/// --keep says so.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink demo
  postlink demo --runs 100 --keep /tmp/demo")]
pub struct Demo {
    /// Pairs of runs that the comparison rests on
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(i64::from(FEWEST_PAIRS)..))]
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
    profile: PathBuf,
    /// What the workload is about.
    subject: PathBuf,
}

impl Files {
    fn new(folder: PathBuf) -> Files {
        let file = |name: &str| folder.join(name);
        Files {
            plain: file("postlink"),
            instrumented: file("postlink.inst"),
            optimized: file("postlink.opt"),
            profile: file("demo.plraw"),
            subject: file(SUBJECT),
            folder,
        }
    }

    /// Copies a program that postlink can read into the folder: the first of [`SUBJECTS`], or postlink itself. Tells
    /// where it was.
    fn find_subject(&self) -> Result<PathBuf> {
        for path in SUBJECTS.iter().map(Path::new) {
            if fs::copy(path, &self.subject).is_ok() {
                let mut tried = self.work(&self.plain, INSTRUMENT, None);
                tried.stderr(Stdio::null());
                if Files::must_succeed(tried).is_ok() {
                    return Ok(path.to_owned());
                }
            }
        }
        fs::copy(&self.plain, &self.subject).with_context(|| self.subject.display().to_string())?;
        Ok(self.plain.clone())
    }

    /// The workload: what this copy of postlink is to do.
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

/// The program that the workload is about, in the folder.
const SUBJECT: &str = "program";

/// Programs that nearly every system has.
const SUBJECTS: [&str; 3] = ["/bin/bash", "/usr/bin/bash", "/bin/sh"];

const INSPECT: &[&str] = &["inspect", SUBJECT, "--json"];
const INSTRUMENT: &[&str] = &["instrument", SUBJECT, "-o", "work.inst"];

/// The jobs of the workload. The instrumented copy does them to be profiled, and they are what is compared.
const JOBS: [(&str, &[&str]); 2] = [("inspect", INSPECT), ("instrument", INSTRUMENT)];

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
        // Counts of an earlier demonstration in the same folder would be added to.
        let _ = fs::remove_file(&files.profile);
        let this = std::env::current_exe().context("the path of the running program")?;
        fs::copy(&this, &files.plain).with_context(|| this.display().to_string())?;
        let input = Input::open(&files.plain)?;
        let input = input.parse()?;

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

        let subject = files.find_subject()?;
        ui.say(format_args!(
            "{BOLD}2. run{BOLD:#} it: it inspects and instruments {} ({})",
            subject.display(),
            bytes(fs::metadata(&files.subject).map_or(0, |file| file.len()))
        ));
        let mut slow = Duration::ZERO;
        for (_, arguments) in JOBS {
            let work = files.work(&files.instrumented, arguments, Some(&files.profile));
            slow += Files::must_succeed(work)?;
        }
        ui.say(format_args!("  that took {}", seconds(slow)));

        ui.say(format_args!(
            "{BOLD}3. optimise{BOLD:#} postlink with these counts, and prove the result"
        ));
        let mut watched = ui.phases("optimize");
        let profile = optimize::read_profiles(ui, &[files.profile.display().to_string()])?;
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
        for (name, arguments) in JOBS {
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

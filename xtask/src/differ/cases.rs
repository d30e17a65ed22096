//! `cargo xtask differ --cases`: the programs of `tests/cases`, each in every way that postlink makes an output of it.
//!
//! Each case is built in one kind of this machine and one of AArch64, which change from case to case as for
//! `cargo xtask digests` (`--all`: in all kinds that the tests have). Of each program the outputs of
//! [`STATES`] are compared. What is printed: a line for each comparison that is not good, then how often each
//! class of differences was found.
//!
//! Some things can keep a comparison from saying anything, or anything more, and are counted apart: the output
//! cannot be made (of a program that does not end by itself there is no profile), the program enters the module
//! nowhere in its own process, there are threads whose order decides, it opens its own file, it runs for longer than
//! [`EVENTS`], and the limit of time was reached. Only the last makes the job fail.
//!
//! A comparison runs in three processes, of which mostly one works. All comparisons of all kinds take more
//! than an hour of one processor, so several programs can be compared at a time (`--jobs`), and a run for
//! each program counts for all that is optimised.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use super::deadline::Late;
use super::outcome::Outcome;
use super::values::Class;
use super::{Options, Preset, build_postlink, differ, emulator};
use crate::digests::cases::build;
use crate::digests::cases::directives::Case;
use crate::digests::inputs::{self, Wanted};

/// How an output is made.
struct State {
    name: &'static str,
    preset: Preset,
    mode: Option<&'static str>,
    stress: Option<&'static str>,
    optimize: &'static [&'static str],
}

const fn optimized(name: &'static str, preset: Preset) -> State {
    State {
        name,
        preset,
        mode: None,
        stress: None,
        optimize: &[],
    }
}

const fn counting(name: &'static str, mode: &'static str) -> State {
    State {
        name,
        preset: Preset::Safe,
        mode: Some(mode),
        stress: None,
        optimize: &[],
    }
}

/// All of them.
const STATES: &[State] = &[
    optimized("safe", Preset::Safe),
    optimized("fast", Preset::Fast),
    optimized("size", Preset::Size),
    State {
        // A call that is not there has no event to compare.
        optimize: &["--inline-small-functions=false"],
        ..optimized("max", Preset::Max)
    },
    State {
        stress: Some("1"),
        ..optimized("stress", Preset::Safe)
    },
    counting("edges", "edges"),
    counting("function-coverage", "function-coverage"),
    counting("block-coverage", "block-coverage"),
    counting("call-edges", "call-edges"),
];

/// What came of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// All differences are explained.
    Explained,
    /// Nothing differs at all.
    Same,
    /// The runs part, and there are threads.
    Threads,
    /// The program opens its own file.
    OwnFile,
    /// There were more events than are compared.
    Limited,
    /// The module is not entered.
    NotEntered,
    /// The output cannot be made.
    NotMade,
    /// The limit of time was reached.
    Late,
    /// A difference is not explained, or the runs end differently.
    Bad,
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Verdict::Explained => "every difference is explained",
            Verdict::Same => "nothing differs",
            Verdict::Threads => "threads: compared up to where their order decides",
            Verdict::OwnFile => "compared up to where the program opens its own file",
            Verdict::Limited => "compared up to the limit of events",
            Verdict::NotEntered => "the module is not entered",
            Verdict::NotMade => "no output is made",
            Verdict::Late => "not compared to the end: the limit of time was reached",
            Verdict::Bad => "NOT EXPLAINED",
        }
    }
}

/// All sums.
#[derive(Default)]
struct Sums {
    verdicts: BTreeMap<Verdict, u64>,
    /// Values, and comparisons in which there are some.
    classes: BTreeMap<Class, (u64, u64)>,
    events: u64,
}

impl Sums {
    fn add(&mut self, verdict: Verdict, outcome: Option<&Outcome>) {
        *self.verdicts.entry(verdict).or_default() += 1;
        let Some(outcome) = outcome else { return };
        self.events += outcome.events;
        for (class, found) in &outcome.classes {
            let sum = self.classes.entry(*class).or_default();
            sum.0 += found.count;
            sum.1 += 1;
        }
    }

    fn print(&self, seconds: f64) {
        println!("{} events compared in {seconds:.0} s", self.events);
        for (verdict, count) in &self.verdicts {
            println!("{count:>8}  {}", verdict.words());
        }
        println!("   values  comparisons");
        for (class, (values, comparisons)) in &self.classes {
            let mark = if class.is_explained() { "" } else { "BUG " };
            println!("{values:>9}  {comparisons:>11}  {mark}{class}");
        }
    }
}

/// Reads `N/M`, where N is 1 to M.
pub(super) fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text
        .split_once('/')
        .and_then(|(number, parts)| Some((number.parse().ok()?, parts.parse().ok()?)));
    match numbers {
        Some((number, parts)) if (1..=parts).contains(&number) => Ok((number, parts)),
        _ => Err(format!("`{text}` is not N/M with N from 1 to M")),
    }
}

/// The job; `false` if a difference is not explained.
pub(super) fn run(options: &Options) -> Result<bool> {
    let began = Instant::now();
    let filter = options.program.as_deref().map(Path::to_string_lossy);
    let mut wanted = inputs::select(options.all, options.quick, filter.as_deref())?;
    wanted.retain(|wanted| match emulators_lack(&wanted.case) {
        None => true,
        Some(reason) => {
            eprintln!("SKIPPED: {}: {reason}", wanted.name);
            false
        }
    });
    if let Some((number, parts)) = options.only {
        // Neighbours are kinds of one case, and take alike.
        wanted = wanted.into_iter().skip(number - 1).step_by(parts).collect();
    }
    if options.list {
        for program in &wanted {
            println!("{}", program.name);
        }
        return Ok(true);
    }
    let postlink = match &options.postlink {
        Some(postlink) => postlink.clone(),
        None => build_postlink()?,
    };
    let asked =
        |s: &&State| options.states.is_empty() || options.states.iter().any(|n| n == s.name);
    let states: Vec<&State> = STATES.iter().filter(asked).collect();
    if states.len() < options.states.len() {
        let names: Vec<&str> = STATES.iter().map(|s| s.name).collect();
        return Err(anyhow!("--states: there are {}", names.join(", ")));
    }
    let folder = tempfile::tempdir().context("a folder for the plugin")?;
    let all = All {
        options: Options {
            plugin: Some(emulator::plugin(folder.path())?),
            ..options.clone()
        },
        wanted,
        states,
        postlink,
        next: AtomicUsize::new(0),
        sums: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.jobs.max(1))
            .map(|_| scope.spawn(|| all.work()))
            .collect();
        let mut done = threads
            .into_iter()
            .map(|t| t.join().map_err(|_| anyhow!("a comparison panicked"))?);
        done.try_for_each(|done| done)
    })?;
    let sums = all
        .sums
        .into_inner()
        .map_err(|_| anyhow!("a comparison panicked"))?;
    sums.print(began.elapsed().as_secs_f64());
    Ok(!sums.verdicts.contains_key(&Verdict::Bad) && !sums.verdicts.contains_key(&Verdict::Late))
}

/// What all threads work on.
struct All<'a> {
    options: Options,
    wanted: Vec<Wanted>,
    states: Vec<&'a State>,
    postlink: PathBuf,
    /// The program that is next.
    next: AtomicUsize,
    sums: Mutex<Sums>,
}

impl All<'_> {
    /// Compares one program after the other until none is left.
    fn work(&self) -> Result<()> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(wanted) = self.wanted.get(number) else {
                return Ok(());
            };
            let began = Instant::now();
            self.program(wanted).inspect_err(|_| {
                // Others need not begin with another.
                self.next.store(self.wanted.len(), Ordering::Relaxed);
            })?;
            let (count, name) = (self.wanted.len(), &wanted.name);
            let seconds = began.elapsed().as_secs_f64();
            eprintln!("[{}/{count}] {name}: {seconds:.1} s", number + 1);
        }
    }

    /// Compares all outputs of a program.
    fn program(&self, wanted: &Wanted) -> Result<()> {
        let folder = tempfile::tempdir().context("a folder for a program")?;
        let built = build::build(&wanted.case, wanted.kind, &wanted.flags, folder.path())
            .map_err(|what| anyhow!("{}: {what}", wanted.name))?;
        // One run counts for all that is optimised.
        let mut profile = None;
        for state in &self.states {
            let mut one = of_case(&self.options, wanted, &built, state, &self.postlink);
            if state.mode.is_none() {
                one.profile.clone_from(&profile);
                one.keep_profile = profile.is_none().then(|| folder.path().join("train.plraw"));
            }
            let (verdict, outcome, text) = judge(&wanted.name, state, &one);
            profile = profile.or(one.keep_profile.filter(|file| file.is_file()));
            print!("{text}");
            let mut sums = self
                .sums
                .lock()
                .map_err(|_| anyhow!("a comparison panicked"))?;
            sums.add(verdict, outcome.as_ref());
        }
        Ok(())
    }
}

/// So many events of a program are compared: what it does then it has done before.
const EVENTS: u64 = 2_000_000;

/// What the emulator cannot do of a case. On this machine the tests run it without one.
fn emulators_lack(case: &Case) -> Option<&str> {
    let mut reasons = case.not.iter().map(|(_, reason)| reason.as_str());
    reasons.find(|reason| reason.starts_with("the emulator cannot"))
}

/// The options that compare one output of a case.
fn of_case(
    all: &Options,
    wanted: &Wanted,
    built: &build::Built,
    state: &State,
    postlink: &Path,
) -> Options {
    let case = &wanted.case;
    let library = built.subject != built.program;
    Options {
        program: Some(built.program.clone()),
        module: library.then(|| built.subject.clone()),
        beside: built.beside.clone(),
        preset: state.preset,
        stress: state.stress.map(str::to_owned),
        mode: state.mode.map(str::to_owned),
        optimize: if state.mode.is_none() {
            let of_state = state.optimize.iter().map(|option| (*option).to_owned());
            case.optimize.iter().cloned().chain(of_state).collect()
        } else {
            vec![]
        },
        // What the case asks for is for counters at edges.
        instrument: match state.mode {
            None | Some("edges") => case.instrument.clone(),
            Some(_) => vec![],
        },
        postlink: Some(postlink.to_owned()),
        arguments: case.args.clone(),
        output: None,
        profile: None,
        stdin: None,
        keep: None,
        cases: false,
        limit: all.limit.min(EVENTS),
        ..all.clone()
    }
}

/// Compares, and says what came of it, in words as well if it is not good.
fn judge(name: &str, state: &State, options: &Options) -> (Verdict, Option<Outcome>, String) {
    let done = match differ(options) {
        Ok(done) => done,
        Err(error) => {
            let verdict = if error.is::<Late>() {
                Verdict::Late
            } else {
                Verdict::NotMade
            };
            let text = format!("{name} {}: {}: {error:#}\n", state.name, verdict.words());
            return (verdict, None, text);
        }
    };
    let mut text = String::new();
    let outcome = &done.outcome;
    let verdict = if done.is_good() {
        if outcome.opens_itself {
            Verdict::OwnFile
        } else if outcome.limited {
            Verdict::Limited
        } else if outcome.classes.is_empty() {
            Verdict::Same
        } else {
            Verdict::Explained
        }
    } else if outcome.events == 0 && done.end_alike() {
        Verdict::NotEntered
    } else if outcome.parts_by_threads() {
        Verdict::Threads
    } else {
        text = format!("{name} {}: {}\n", state.name, Verdict::Bad.words());
        for line in super::report(&done, done.seconds).lines() {
            text += &format!("    {line}\n");
        }
        Verdict::Bad
    };
    (verdict, Some(done.outcome), text)
}

#[cfg(test)]
mod tests {
    use super::{emulators_lack, part};
    use crate::digests::cases::directives::Case;

    #[test]
    fn a_case_that_the_emulator_cannot_run_is_left_out() {
        let lack = |line: &str| {
            let folder = tempfile::tempdir().unwrap();
            let source = folder.path().join("case.c");
            std::fs::write(&source, format!("//# about: forks\n{line}\n")).unwrap();
            let case = Case::read(&source).unwrap();
            emulators_lack(&case).map(str::to_owned)
        };
        let forks = lack("//# not aarch64: the emulator cannot fork while threads run");
        assert!(forks.is_some_and(|reason| reason.ends_with("while threads run")));
        assert_eq!(lack("//# not static: it needs a shared library"), None);
        // That does not keep this machine's from running.
        let name = "//# not aarch64: the emulator is what /proc calls the program";
        assert_eq!(lack(name), None);
    }

    #[test]
    fn a_part_is_a_number_of_a_number() {
        assert_eq!(part("1/1"), Ok((1, 1)));
        assert_eq!(part("3/8"), Ok((3, 8)));
        for wrong in ["", "3", "0/8", "9/8", "1/0", "a/b"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }
}

//! `cargo xtask differ --cases`: the programs of `tests/cases`, each in every way that postlink makes an output of it.
//!
//! Each case is built in one kind of this machine and one of AArch64, which change from case to case as for
//! `cargo xtask digests` (`--all`: in all kinds that the tests have). Of each program the outputs of
//! [`STATES`] are compared. What is printed: a line for each comparison that is not good, then how often each
//! class of differences was found.
//!
//! Three things can keep a comparison from saying anything, and are counted apart: the output cannot be made
//! (of a program that does not end by itself there is no profile), the program enters the module nowhere in
//! its own process, and there are threads whose order decides.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use super::outcome::Outcome;
use super::values::Class;
use super::{Options, Preset, build_postlink, differ};
use crate::digests::cases::build;
use crate::digests::inputs::{self, Wanted};

/// How an output is made.
struct State {
    name: &'static str,
    preset: Preset,
    mode: Option<&'static str>,
    stress: Option<&'static str>,
}

const fn optimized(name: &'static str, preset: Preset) -> State {
    State {
        name,
        preset,
        mode: None,
        stress: None,
    }
}

const fn counting(name: &'static str, mode: &'static str) -> State {
    State {
        name,
        preset: Preset::Safe,
        mode: Some(mode),
        stress: None,
    }
}

/// All of them.
const STATES: &[State] = &[
    optimized("safe", Preset::Safe),
    optimized("fast", Preset::Fast),
    optimized("size", Preset::Size),
    optimized("max", Preset::Max),
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
    /// The module is not entered.
    NotEntered,
    /// The output cannot be made.
    NotMade,
    /// A difference is not explained, or the runs end differently.
    Bad,
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Verdict::Explained => "every difference is explained",
            Verdict::Same => "nothing differs",
            Verdict::Threads => "threads: compared up to where their order decides",
            Verdict::NotEntered => "the module is not entered",
            Verdict::NotMade => "no output is made",
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

/// The job; `false` if a difference is not explained.
pub(super) fn run(options: &Options) -> Result<bool> {
    let began = Instant::now();
    let postlink = match &options.postlink {
        Some(postlink) => postlink.clone(),
        None => build_postlink()?,
    };
    let filter = options.program.as_deref().map(Path::to_string_lossy);
    let wanted = inputs::select(options.all, options.quick, filter.as_deref())?;
    let asked =
        |s: &&State| options.states.is_empty() || options.states.iter().any(|n| n == s.name);
    let states: Vec<&State> = STATES.iter().filter(asked).collect();
    if states.len() < options.states.len() {
        let names: Vec<&str> = STATES.iter().map(|s| s.name).collect();
        return Err(anyhow!("--states: there are {}", names.join(", ")));
    }
    let mut sums = Sums::default();
    let count = wanted.len();
    for (number, wanted) in wanted.iter().enumerate() {
        eprintln!("[{}/{count}] {}", number + 1, wanted.name);
        let folder = tempfile::tempdir().context("a folder for a program")?;
        let built = build::build(&wanted.case, wanted.kind, &wanted.flags, folder.path())
            .map_err(|what| anyhow!("{}: {what}", wanted.name))?;
        for state in &states {
            let one = of_case(options, wanted, &built, state, &postlink);
            let (verdict, outcome) = judge(&wanted.name, state, one);
            sums.add(verdict, outcome.as_ref());
        }
        // A build may have left much.
        fs::remove_dir_all(folder.path()).ok();
    }
    sums.print(began.elapsed().as_secs_f64());
    Ok(!sums.verdicts.contains_key(&Verdict::Bad))
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
            case.optimize.clone()
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
        ..all.clone()
    }
}

/// Compares, and says what came of it.
fn judge(name: &str, state: &State, options: Options) -> (Verdict, Option<Outcome>) {
    let done = match differ(&options) {
        Ok(done) => done,
        Err(error) => {
            println!(
                "{name} {}: {}: {error:#}",
                state.name,
                Verdict::NotMade.words()
            );
            return (Verdict::NotMade, None);
        }
    };
    let outcome = &done.outcome;
    let explained = outcome.classes.keys().all(|class| class.is_explained());
    let verdict = if done.is_good() {
        match outcome.classes.is_empty() {
            true => Verdict::Same,
            false => Verdict::Explained,
        }
    } else if outcome.events == 0 && done.end_alike() {
        Verdict::NotEntered
    } else if explained && outcome.threads && outcome.parted.is_some() {
        Verdict::Threads
    } else {
        println!("{name} {}: {}", state.name, Verdict::Bad.words());
        for line in super::report(&done, done.seconds).lines() {
            println!("    {line}");
        }
        Verdict::Bad
    };
    (verdict, Some(done.outcome))
}

//! Two commands compared in paired runs.
//!
//! A short form of [`crate::series`] for two programs and one workload: `tune`, `demo` and the project's own
//! benchmarks.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::ratio::Ratio;
use crate::run::{Measure, Run, median, run};
use crate::series::{Job, Limits, Progress, Runner, Series, Stop, measure};

/// Runs of two programs, pair by pair.
#[derive(Clone, Debug, Default)]
pub struct Paired {
    /// One entry for each pair: the run of the first program and that of the second.
    pub pairs: Vec<(Run, Run)>,
}

impl From<&Series> for Paired {
    /// The first two programs of a series.
    fn from(series: &Series) -> Paired {
        let pairs = series.rounds.iter().filter_map(|round| match round[..] {
            [first, second, ..] => Some((first, second)),
            _ => None,
        });
        Paired {
            pairs: pairs.collect(),
        }
    }
}

impl Paired {
    fn medians(&self, time: impl Fn(&Run) -> Duration) -> [Duration; 2] {
        let of = |which: fn(&(Run, Run)) -> &Run| {
            let mut times: Vec<Duration> =
                self.pairs.iter().map(|pair| time(which(pair))).collect();
            median(&mut times)
        };
        [of(|pair| &pair.0), of(|pair| &pair.1)]
    }

    /// Medians of processor time, before and after.
    pub fn cpu(&self) -> [Duration; 2] {
        self.medians(|run| run.cpu)
    }

    /// Medians of wall time, before and after.
    pub fn wall(&self) -> [Duration; 2] {
        self.medians(|run| run.wall)
    }

    /// Processor time, compared pair by pair.
    pub fn cpu_ratio(&self) -> Option<Ratio> {
        self.ratio(Measure::ProcessorTime)
    }

    /// Wall time, compared pair by pair.
    pub fn wall_ratio(&self) -> Option<Ratio> {
        self.ratio(Measure::WallTime)
    }

    /// Any measure, compared pair by pair.
    pub fn ratio(&self, by: Measure) -> Option<Ratio> {
        let values = |(a, b): &(Run, Run)| by.of(a).zip(by.of(b));
        Ratio::of(self.pairs.iter().filter_map(values))
    }
}

/// Runs commands as they are.
struct Commands<C, A, T> {
    commands: [C; 2],
    accept: A,
    told: T,
    start: Instant,
}

impl<C, A, T, E> Runner for Commands<C, A, T>
where
    C: FnMut() -> Command,
    A: FnMut(&Run) -> Result<(), E>,
    T: FnMut(Progress),
    E: From<std::io::Error>,
{
    type Error = E;

    fn run(&mut self, job: Job) -> Result<Run, E> {
        let run = run(&mut self.commands[job.program]())?;
        (self.accept)(&run)?;
        Ok(run)
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn progress(&mut self, progress: Progress) {
        (self.told)(progress);
    }
}

/// Runs two commands alternately within limits, and gives what was measured in any case; with an error if a run was not
/// possible, or did not end as `accept` wishes. After every round `told` hears how far it has come.
pub fn compare_within<E: From<std::io::Error>>(
    limits: &Limits,
    commands: [impl FnMut() -> Command; 2],
    accept: impl FnMut(&Run) -> Result<(), E>,
    told: impl FnMut(Progress),
) -> (Paired, Stop, Result<(), E>) {
    let mut runner = Commands {
        commands,
        accept,
        told,
        start: Instant::now(),
    };
    let (series, result) = measure(1, 2, limits, &mut runner);
    let stop = series.first().map_or(Stop::Failed, |series| series.stop);
    let paired = series.first().map(Paired::from).unwrap_or_default();
    (paired, stop, result)
}

/// Runs two commands alternately, `pairs` times each. Every run must end as `accept` wishes.
pub fn compare<E: From<std::io::Error>>(
    pairs: u32,
    commands: [impl FnMut() -> Command; 2],
    accept: impl FnMut(&Run) -> Result<(), E>,
) -> Result<Paired, E> {
    let (paired, _, result) = compare_within(&Limits::rounds(pairs), commands, accept, |_| {});
    result.map(|()| paired)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn commands_run_in_pairs_and_each_goes_first_in_every_second_pair() {
        let order = std::cell::RefCell::new(String::new());
        let named = |name: char| {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(name);
                Command::new("true")
            }) as Box<dyn FnMut() -> Command>
        };
        let paired = compare(3, [named('a'), named('b')], |_| Ok::<(), io::Error>(())).unwrap();
        assert_eq!(order.into_inner(), "abbaab");
        assert_eq!(paired.pairs.len(), 3);
    }
}

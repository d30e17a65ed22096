//! Runs of two or more programs in rounds, until the interval is narrow enough or a limit is reached.
//!
//! **Problem.** Machines drift: other load, clock rates, caches, temperature. What runs later is slower or faster for
//! reasons of its own.
//!
//! **Design.** A round runs every program once, and only runs of one round are compared: what drifts slower than a
//! round takes falls out of their ratio. The order turns round in every second round, so that each of two programs goes
//! first as often as the other, and what drifts evenly falls out even within rounds; of more than two the first one
//! changes as well. Several workloads take turns, a round each.
//!
//! **When to stop.** A workload is done when its interval ([`half_width`]) reaches no further than asked for. Not when
//! a difference shows: who looks after every run and stops at the first difference finds one sooner or later between
//! equal programs. The width says how well is measured and nothing of what comes out, so stopping by it is
//! nearly harmless (Y. S. Chow, H. Robbins, *On the Asymptotic Theory of Fixed-Width Sequential Confidence
//! Intervals*, Annals of Mathematical Statistics 36, 1965); `tests/calibration.rs` measures what is left.
//!
//! Nothing that was measured is lost: an interrupt or an error ends the series, which keeps its rounds, and the runs of
//! the round that was not finished.

use std::time::Duration;

use crate::interrupt;
use crate::ratio::{Ratio, differences, half_width};
use crate::run::{Measure, Run};

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Fewest rounds of a workload.
    pub fewest: u32,
    /// Most rounds of a workload.
    pub most: u32,
    /// No round begins after this time, of all workloads together, once each has its fewest rounds; without rounds
    /// enough the time is three times as long.
    pub time: Option<Duration>,
    /// How far the interval may reach to either side, as a share.
    pub precision: f64,
    /// What is compared.
    pub by: Measure,
}

impl Default for Limits {
    /// At least 10 rounds, then until one per cent of processor time is known; at most 100 rounds or five minutes.
    fn default() -> Limits {
        Limits {
            fewest: 10,
            most: 100,
            time: Some(Duration::from_secs(300)),
            precision: 0.01,
            by: Measure::ProcessorTime,
        }
    }
}

impl Limits {
    /// Exactly so many rounds.
    pub fn rounds(rounds: u32) -> Limits {
        Limits {
            fewest: rounds,
            most: rounds,
            time: None,
            precision: 0.0,
            by: Measure::ProcessorTime,
        }
    }
}

/// Why measuring a workload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The interval was narrow enough.
    Narrow,
    /// There were as many rounds as allowed.
    Rounds,
    /// The time was used up.
    Time,
    /// The user ended it.
    Interrupted,
    /// A run failed.
    Failed,
}

impl Stop {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Stop::Narrow => "the interval is narrow enough",
            Stop::Rounds => "the number of runs was reached",
            Stop::Time => "the time was used up",
            Stop::Interrupted => "interrupted",
            Stop::Failed => "a run failed",
        }
    }
}

/// Runs of all programs on one workload.
#[derive(Clone, Debug)]
pub struct Series {
    /// Of each round one run of each program, in the order of the programs.
    pub rounds: Vec<Vec<Run>>,
    /// Runs of a round that was not finished, with the program's number.
    pub rest: Vec<(usize, Run)>,
    /// Why there are no more.
    pub stop: Stop,
}

impl Series {
    /// A measure of two programs, round by round.
    pub fn pairs(&self, first: usize, second: usize, by: Measure) -> Vec<(f64, f64)> {
        let values = self.rounds.iter().filter_map(|round| {
            let (a, b) = (round.get(first)?, round.get(second)?);
            Some((by.of(a)?, by.of(b)?))
        });
        values.collect()
    }

    /// A measure of two programs as a ratio, second to first.
    pub fn ratio(&self, first: usize, second: usize, by: Measure) -> Option<Ratio> {
        Ratio::of(self.pairs(first, second, by))
    }

    /// The values of a measure of one program, in order of time.
    pub fn values(&self, program: usize, by: Measure) -> Vec<f64> {
        let finished = self.rounds.iter().filter_map(|round| round.get(program));
        let rest = self.rest.iter().filter(|(which, _)| *which == program);
        let runs = finished.chain(rest.map(|(_, run)| run));
        runs.filter_map(|run| by.of(run)).collect()
    }
}

/// A run that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of the workload.
    pub workload: usize,
    /// Number of the program.
    pub program: usize,
    /// Number of the round.
    pub round: usize,
}

/// How far measuring has come, after each round.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Number of the workload.
    pub workload: usize,
    /// Its finished rounds.
    pub rounds: usize,
    /// How far its interval reaches to either side, as a share; infinite in the beginning.
    pub width: f64,
    /// Time that has passed.
    pub elapsed: Duration,
    /// Estimate of the time that is left, of all workloads.
    pub left: Option<Duration>,
}

/// What runs programs, keeps time, and is told of progress.
pub trait Runner {
    /// Why a run is not possible.
    type Error;

    /// Makes a run.
    fn run(&mut self, job: Job) -> Result<Run, Self::Error>;

    /// Time since the beginning.
    fn elapsed(&self) -> Duration;

    /// After each round.
    fn progress(&mut self, _: Progress) {}

    /// Whether to stop now.
    fn is_interrupted(&self) -> bool {
        interrupt::was_asked()
    }
}

/// The order of programs in a round.
pub fn order(programs: usize, round: usize) -> Vec<usize> {
    // Of two, turning round is all there is.
    let first = if programs > 2 {
        round / 2 % programs
    } else {
        0
    };
    let mut order: Vec<usize> = (0..programs).map(|k| (first + k) % programs).collect();
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// One workload while it is measured.
struct Going {
    series: Series,
    differences: Vec<f64>,
    width: f64,
    is_done: bool,
}

impl Going {
    fn decide(&mut self, limits: &Limits, elapsed: Duration) {
        let rounds = self.series.rounds.len();
        let has_enough = rounds >= limits.fewest as usize;
        let is_late = limits
            .time
            .is_some_and(|time| elapsed >= time * if has_enough { 1 } else { 3 });
        let stop = if has_enough && self.width <= limits.precision {
            Stop::Narrow
        } else if rounds >= limits.most as usize {
            Stop::Rounds
        } else if is_late {
            Stop::Time
        } else {
            return;
        };
        self.series.stop = stop;
        self.is_done = true;
    }

    /// How many more rounds it takes, roughly: the width goes by the root of the rounds.
    fn rounds_left(&self, limits: &Limits) -> Option<f64> {
        let rounds = self.series.rounds.len() as f64;
        let fewest = f64::from(limits.fewest) - rounds;
        let most = (f64::from(limits.most) - rounds).max(0.0);
        let narrow = match self.width.is_finite() && limits.precision > 0.0 {
            true => rounds * (self.width / limits.precision).powi(2) - rounds,
            // Not known yet how the runs scatter.
            false if limits.fewest < limits.most => return None,
            false => most,
        };
        Some(narrow.max(fewest).clamp(0.0, most))
    }
}

/// Measures `programs` programs on `workloads` workloads. What was measured is given back in any case; with an error if
/// a run was not possible.
pub fn measure<R: Runner>(
    workloads: usize,
    programs: usize,
    limits: &Limits,
    runner: &mut R,
) -> (Vec<Series>, Result<(), R::Error>) {
    let mut all: Vec<Going> = (0..workloads)
        .map(|_| Going {
            series: Series {
                rounds: vec![],
                rest: vec![],
                stop: Stop::Interrupted,
            },
            differences: vec![],
            width: f64::INFINITY,
            is_done: limits.most == 0,
        })
        .collect();
    let mut result = Ok(());
    'all: while all.iter().any(|going| !going.is_done) {
        for workload in 0..all.len() {
            if all[workload].is_done {
                continue;
            }
            match one_round(workload, programs, &mut all[workload].series, runner) {
                Ok(true) => {}
                Ok(false) => break 'all,
                Err(error) => {
                    let failed = all.iter_mut().filter(|going| !going.is_done);
                    failed.for_each(|going| going.series.stop = Stop::Failed);
                    result = Err(error);
                    break 'all;
                }
            }
            let going = &mut all[workload];
            let last = &going.series.rounds[going.series.rounds.len() - 1];
            if let [first, second, ..] = &last[..] {
                let values = limits.by.of(first).zip(limits.by.of(second));
                going.differences.extend(differences(values));
            }
            going.width = half_width(&going.differences);
            let elapsed = runner.elapsed();
            going.decide(limits, elapsed);
            let (rounds, width) = (going.series.rounds.len(), going.width);
            let left = time_left(&all, limits, elapsed);
            runner.progress(Progress {
                workload,
                rounds,
                width,
                elapsed,
                left,
            });
        }
    }
    (all.into_iter().map(|going| going.series).collect(), result)
}

fn time_left(all: &[Going], limits: &Limits, elapsed: Duration) -> Option<Duration> {
    let rounds: usize = all.iter().map(|going| going.series.rounds.len()).sum();
    let mut left = 0.0;
    for going in all.iter().filter(|going| !going.is_done) {
        left += going.rounds_left(limits)?;
    }
    let seconds = elapsed.as_secs_f64() / rounds.max(1) as f64 * left;
    let limit = limits.time.map(|time| time.saturating_sub(elapsed));
    let left = Duration::try_from_secs_f64(seconds).ok()?;
    Some(limit.map_or(left, |limit| limit.min(left)))
}

/// `Ok(false)`: interrupted.
fn one_round<R: Runner>(
    workload: usize,
    programs: usize,
    series: &mut Series,
    runner: &mut R,
) -> Result<bool, R::Error> {
    let round = series.rounds.len();
    let mut runs: Vec<Option<Run>> = vec![None; programs];
    let mut outcome = Ok(true);
    for program in order(programs, round) {
        let job = Job {
            workload,
            program,
            round,
        };
        if runner.is_interrupted() {
            outcome = Ok(false);
            break;
        }
        match runner.run(job) {
            // What an interrupt has cut short says nothing.
            Ok(_) if runner.is_interrupted() => {
                outcome = Ok(false);
                break;
            }
            Ok(run) => runs[program] = Some(run),
            Err(_) if runner.is_interrupted() => {
                outcome = Ok(false);
                break;
            }
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    match runs.iter().copied().collect::<Option<Vec<Run>>>() {
        Some(complete) => series.rounds.push(complete),
        None => {
            let finished = runs.into_iter().enumerate();
            series.rest = finished
                .filter_map(|(program, run)| Some((program, run?)))
                .collect();
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    /// Programs that take a second each, and say who ran.
    #[derive(Default)]
    struct Log {
        ran: Vec<Job>,
        interrupt_after: Option<usize>,
        fail_after: Option<usize>,
        told: Vec<Progress>,
        /// Difference of the programs in round k, in thousandths.
        wobble: u64,
    }

    impl Runner for Log {
        type Error = &'static str;

        fn run(&mut self, job: Job) -> Result<Run, &'static str> {
            if self.fail_after == Some(self.ran.len()) {
                return Err("no more");
            }
            self.ran.push(job);
            let more = job.program as u64 * self.wobble * (job.round as u64 % 5);
            let time = Duration::from_millis(1000 + more);
            Ok(Run {
                wall: time,
                cpu: time,
                peak_memory: None,
                page_faults: 1,
                events: Default::default(),
                status: ExitStatus::from_raw(0),
            })
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(self.ran.len() as u64)
        }

        fn progress(&mut self, progress: Progress) {
            self.told.push(progress);
        }

        fn is_interrupted(&self) -> bool {
            self.interrupt_after.is_some_and(|n| self.ran.len() > n)
        }
    }

    const LIMITS: Limits = Limits {
        fewest: 6,
        most: 40,
        time: None,
        precision: 0.01,
        by: Measure::ProcessorTime,
    };

    #[test]
    fn each_program_goes_first_in_every_second_round() {
        let mut log = Log::default();
        let (series, result) = measure(1, 2, &Limits::rounds(3), &mut log);
        assert_eq!(result, Ok(()));
        assert_eq!(series[0].rounds.len(), 3);
        assert_eq!(series[0].stop, Stop::Rounds);
        let programs: Vec<usize> = log.ran.iter().map(|job| job.program).collect();
        assert_eq!(programs, [0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn of_several_programs_each_goes_first_and_last_as_often_as_the_others() {
        for programs in 2..7 {
            let (mut first, mut last) = (vec![0; programs], vec![0; programs]);
            for round in 0..2 * programs {
                let order = order(programs, round);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..programs).collect::<Vec<_>>());
                first[order[0]] += 1;
                last[order[programs - 1]] += 1;
            }
            if programs == 2 {
                assert_eq!((first, last), (vec![2, 2], vec![2, 2]));
            } else {
                assert_eq!((first, last), (vec![2; programs], vec![2; programs]));
            }
        }
    }

    #[test]
    fn measuring_ends_when_the_interval_is_narrow_enough_and_not_before() {
        let mut steady = Log::default();
        let (series, _) = measure(1, 2, &LIMITS, &mut steady);
        assert_eq!((series[0].rounds.len(), series[0].stop), (6, Stop::Narrow));
        let mut unsteady = Log {
            wobble: 10,
            ..Log::default()
        };
        let (series, _) = measure(1, 2, &LIMITS, &mut unsteady);
        assert_eq!(series[0].stop, Stop::Narrow);
        let rounds = series[0].rounds.len();
        assert!(rounds > 6, "{rounds}");
        let width = |rounds: &[Vec<Run>]| {
            let pairs = rounds
                .iter()
                .map(|r| (r[0].cpu.as_secs_f64(), r[1].cpu.as_secs_f64()));
            half_width(&differences(pairs))
        };
        assert!(width(&series[0].rounds) <= 0.01);
        assert!(width(&series[0].rounds[..rounds - 1]) > 0.01);
    }

    #[test]
    fn limits_of_rounds_and_time_end_it() {
        let mut log = Log {
            wobble: 100,
            ..Log::default()
        };
        let (series, _) = measure(1, 2, &LIMITS, &mut log);
        assert_eq!((series[0].rounds.len(), series[0].stop), (40, Stop::Rounds));
        let limits = Limits {
            time: Some(Duration::from_secs(20)),
            ..LIMITS
        };
        let mut log = Log {
            wobble: 100,
            ..Log::default()
        };
        let (series, _) = measure(1, 2, &limits, &mut log);
        assert_eq!((series[0].rounds.len(), series[0].stop), (10, Stop::Time));
        // Not even the fewest rounds in three times the time.
        let limits = Limits {
            time: Some(Duration::from_secs(2)),
            ..LIMITS
        };
        let (series, _) = measure(1, 2, &limits, &mut Log::default());
        assert_eq!((series[0].rounds.len(), series[0].stop), (3, Stop::Time));
    }

    #[test]
    fn workloads_take_turns_and_each_stops_by_itself() {
        let mut log = Log {
            wobble: 10,
            ..Log::default()
        };
        let (series, _) = measure(3, 2, &LIMITS, &mut log);
        let turns: Vec<usize> = log.ran.chunks(2).map(|pair| pair[0].workload).collect();
        assert_eq!(turns[..6], [0, 1, 2, 0, 1, 2]);
        assert!(series.iter().all(|s| s.stop == Stop::Narrow));
        let last = log.told.last().expect("it was told");
        assert_eq!(last.left, Some(Duration::ZERO));
        assert!(log.told[20].left.is_some_and(|left| left > Duration::ZERO));
    }

    #[test]
    fn an_interrupt_keeps_what_was_measured_and_drops_the_run_that_it_cut_short() {
        let mut log = Log {
            interrupt_after: Some(7),
            ..Log::default()
        };
        let (series, result) = measure(1, 2, &Limits::rounds(30), &mut log);
        assert_eq!(result, Ok(()));
        assert_eq!(series[0].stop, Stop::Interrupted);
        assert_eq!(series[0].rounds.len(), 3);
        // The first run of the fourth round was finished; its order is turned round.
        assert_eq!(series[0].rest.len(), 1);
        assert_eq!(series[0].rest[0].0, 1);
        assert_eq!(series[0].values(1, Measure::WallTime).len(), 4);
        assert_eq!(series[0].values(0, Measure::WallTime).len(), 3);
    }

    #[test]
    fn a_run_that_fails_keeps_what_was_measured_before() {
        let mut log = Log {
            fail_after: Some(5),
            ..Log::default()
        };
        let (series, result) = measure(2, 2, &Limits::rounds(30), &mut log);
        assert_eq!(result, Err("no more"));
        assert_eq!(series[0].rounds.len(), 1);
        assert_eq!(series[1].rounds.len(), 1);
        assert_eq!(series[0].rest.len(), 1);
        assert_eq!(series[0].stop, Stop::Failed);
    }
}

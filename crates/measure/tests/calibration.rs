//! Whether verdicts are right as often as they should be, on a model of a machine whose programs' times are known.
//!
//! The model is deterministic: a base time, noise that is skewed as that of real machines (most runs near the best,
//! some much slower), a machine that gets slower and faster by turns, and now and then a disturbance that hits several
//! runs in a row. The procedure is that of `postlink bench`, with its defaults.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use postlink_measure::bootstrap::Random;
use postlink_measure::series::{Job, Limits, Runner, Series, Stop, measure};
use postlink_measure::{Measure, Run, Verdict};

const TRIES: u64 = 100;

/// A machine on which program k takes `seconds[k]` at best.
struct Machine {
    seconds: Vec<f64>,
    random: Random,
    noise: f64,
    elapsed: f64,
    /// Runs that the current disturbance still hits, and its factor.
    disturbed: (u32, f64),
}

impl Machine {
    fn new(seed: u64, seconds: &[f64], noise: f64) -> Machine {
        Machine {
            seconds: seconds.to_vec(),
            random: Random::new(seed),
            noise,
            elapsed: 0.0,
            disturbed: (0, 1.0),
        }
    }

    fn time(&mut self, program: usize) -> f64 {
        // Exponential: skewed to the right.
        let skewed = -(1.0 - self.random.share()).ln() * self.noise;
        // Slower by up to 5 %, over two minutes.
        let drift = 0.05 * (1.0 + (self.elapsed / 120.0 * std::f64::consts::TAU).sin()) / 2.0;
        if self.disturbed.0 == 0 && self.random.below(40) == 0 {
            self.disturbed = (
                1 + self.random.below(4) as u32,
                1.0 + 0.3 * self.random.share(),
            );
        }
        let mut factor = 1.0;
        if self.disturbed.0 > 0 {
            self.disturbed.0 -= 1;
            factor = self.disturbed.1;
        }
        let seconds = self.seconds[program] * (1.0 + skewed) * (1.0 + drift) * factor;
        self.elapsed += seconds;
        seconds
    }
}

impl Runner for Machine {
    type Error = std::convert::Infallible;

    fn run(&mut self, job: Job) -> Result<Run, Self::Error> {
        let time = Duration::from_secs_f64(self.time(job.program));
        Ok(Run {
            wall: time,
            cpu: time,
            peak_memory: Some(1 << 20),
            page_faults: 100,
            events: Default::default(),
            status: ExitStatus::from_raw(0),
        })
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.elapsed)
    }
}

fn measured(seed: u64, seconds: &[f64], noise: f64) -> Series {
    let mut machine = Machine::new(seed, seconds, noise);
    let (mut series, Ok(())) = measure(1, seconds.len(), &Limits::default(), &mut machine);
    series.pop().expect("there is a workload")
}

/// How often each verdict came out: faster, no difference, slower.
fn verdicts(seconds: [f64; 2], noise: f64) -> [u64; 3] {
    let mut count = [0; 3];
    for seed in 0..TRIES {
        let series = measured(seed, &seconds, noise);
        let ratio = series
            .ratio(0, 1, Measure::ProcessorTime)
            .expect("it has pairs");
        count[match ratio.verdict() {
            Verdict::Faster => 0,
            Verdict::NoDifference => 1,
            Verdict::Slower => 2,
        }] += 1;
    }
    eprintln!("{seconds:?} with noise {noise}: faster, no difference, slower: {count:?}");
    count
}

#[test]
fn a_program_against_itself_shows_no_difference_in_95_of_100_tries() {
    for noise in [0.003, 0.01, 0.03, 0.1] {
        let [_, none, _] = verdicts([1.0, 1.0], noise);
        assert!(none >= 95, "noise {noise}: {none} of {TRIES}");
    }
}

#[test]
fn a_slowdown_of_two_percent_is_found_and_so_is_a_gain() {
    for noise in [0.003, 0.01, 0.02] {
        let [faster, _, slower] = verdicts([1.0, 1.02], noise);
        assert!(slower >= 95, "noise {noise}: {slower} of {TRIES}");
        assert_eq!(faster, 0);
        let [faster, _, slower] = verdicts([1.02, 1.0], noise);
        assert!(faster >= 95, "noise {noise}: {faster} of {TRIES}");
        assert_eq!(slower, 0);
    }
}

#[test]
fn intervals_hold_the_truth() {
    let held = (0..TRIES).filter(|seed| {
        let series = measured(1000 + seed, &[1.0, 0.95], 0.02);
        let ratio = series
            .ratio(0, 1, Measure::ProcessorTime)
            .expect("it has pairs");
        ratio.interval.0 <= 0.95 && 0.95 <= ratio.interval.1
    });
    let held = held.count();
    assert!(held >= 93, "{held} of {TRIES}");
}

#[test]
fn quiet_machines_need_fewer_runs_than_loud_ones() {
    let rounds = |noise: f64| {
        let all = (0..20).map(|seed| measured(seed, &[1.0, 1.0], noise));
        all.map(|series| series.rounds.len()).sum::<usize>() / 20
    };
    let (quiet, loud) = (rounds(0.003), rounds(0.03));
    assert!(quiet < loud, "{quiet} {loud}");
    let hopeless = measured(1, &[1.0, 1.0], 1.0);
    assert_ne!(hopeless.stop, Stop::Narrow);
}

//! Two programs compared in paired runs: an estimate, an interval, a verdict.
//!
//! **Problem.** Times of one program scatter by more than most optimisations gain, and machines drift: other
//! load, clock rates, caches. Two medians side by side say nothing about whether their difference would show
//! again.
//!
//! **Design.** The runs of both programs alternate, each goes first in every second pair, and only runs of
//! one pair are compared: what drifts slower than a pair takes falls out of their ratio.
//!
//! **Statistics.** Of each pair the logarithm of `after / before` is taken; if the programs are equal, its
//! distribution is symmetric about 0, whatever its shape, because the two runs could have been exchanged.
//! That is the assumption of Wilcoxon's signed-rank test and needs no normal distribution. The estimate is
//! Hodges and Lehmann's: the median of the means of all pairs of differences (Walsh averages). The interval
//! is what the test does not reject: it ends at the k-th smallest and the k-th largest Walsh average, where k
//! comes from the exact distribution of the rank sum. Nothing is drawn at random: the same times give the
//! same interval.
//!
//! | pairs | confidence that 95 % asked for gives |
//! |---|---|
//! | below 6 | too few: the interval is unbounded and the verdict always [`Verdict::NoDifference`] |
//! | 6 | 96.9 %, the smallest and the largest ratio |
//! | 10 | 95.1 % |
//! | 15 | 95.2 % |
//!
//! Source: M. Hollander, D. A. Wolfe, E. Chicken, *Nonparametric Statistical Methods*, 3rd edition, sections 3.1-3.3.

use std::io;
use std::process::Command;
use std::time::Duration;

use crate::run::{Run, median, run};

/// Confidence of the intervals that verdicts rest on.
pub const CONFIDENCE: f64 = 0.95;

/// Fewest pairs from which an interval of [`CONFIDENCE`] can be given: with n pairs the widest one has 1 - 2 / 2^n.
pub const FEWEST_PAIRS: u32 = 6;

/// What a comparison says about the second program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval is below 1.
    Faster,
    /// The interval holds 1.
    NoDifference,
    /// The whole interval is above 1.
    Slower,
}

impl Verdict {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::NoDifference => "no difference shown",
            Verdict::Slower => "slower",
        }
    }
}

/// Times of two programs as one ratio, `after / before`: below 1 is faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Hodges and Lehmann's estimate.
    pub estimate: f64,
    /// Lower and upper end of the interval; 0 and infinity if there were too few pairs.
    pub interval: (f64, f64),
    /// Number of pairs.
    pub pairs: usize,
}

impl Ratio {
    /// From the times of each pair, `(before, after)`. Pairs without a time above 0 on both sides are left
    /// out. `None` if none is left.
    pub fn of(pairs: impl IntoIterator<Item = (Duration, Duration)>) -> Option<Ratio> {
        let mut differences = vec![];
        for (before, after) in pairs {
            let difference = (after.as_secs_f64() / before.as_secs_f64()).ln();
            if difference.is_finite() {
                differences.push(difference);
            }
        }
        let (low, high) = interval(&differences, CONFIDENCE);
        Some(Ratio {
            estimate: estimate(&differences)?.exp(),
            interval: (low.exp(), high.exp()),
            pairs: differences.len(),
        })
    }

    /// Faster or slower only if the interval does not hold 1.
    pub fn verdict(&self) -> Verdict {
        match self.interval {
            (_, high) if high < 1.0 => Verdict::Faster,
            (low, _) if low > 1.0 => Verdict::Slower,
            _ => Verdict::NoDifference,
        }
    }

    /// The interval as changes in per cent: `-9.1 % to -7.3 %`.
    pub fn interval_words(&self) -> String {
        let (low, high) = self.interval;
        if low > 0.0 && high.is_finite() {
            format!("{} to {}", percent(low), percent(high))
        } else {
            format!("needs {FEWEST_PAIRS} pairs")
        }
    }

    /// A plain sentence:
    /// `The optimised program is faster: 8.2 % less processor time (95 % interval -9.1 % to -7.3 %, 15 pairs of runs).`
    pub fn sentence(&self, what: &str, time: &str) -> String {
        let change = (self.estimate - 1.0) * 100.0;
        let found = match self.verdict() {
            Verdict::Faster => format!(" is faster: {:.1} % less {time}", -change),
            Verdict::Slower => format!(" is slower: {change:.1} % more {time}"),
            Verdict::NoDifference => format!(
                ": no difference shown, {time} changed by {}",
                percent(self.estimate)
            ),
        };
        format!(
            "{what}{found} ({:.0} % interval {}, {} pairs of runs).",
            CONFIDENCE * 100.0,
            self.interval_words(),
            self.pairs
        )
    }
}

/// A ratio as a change: `-8.2 %`.
pub fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

/// Runs of two programs, pair by pair.
#[derive(Clone, Debug, Default)]
pub struct Paired {
    /// One entry for each pair: the run of the first program and that of the second.
    pub pairs: Vec<(Run, Run)>,
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
        Ratio::of(self.pairs.iter().map(|(a, b)| (a.cpu, b.cpu)))
    }

    /// Wall time, compared pair by pair.
    pub fn wall_ratio(&self) -> Option<Ratio> {
        Ratio::of(self.pairs.iter().map(|(a, b)| (a.wall, b.wall)))
    }
}

/// Runs two commands alternately, `pairs` times each. Every run must end as `accept` wishes.
pub fn compare<E: From<io::Error>>(
    pairs: u32,
    mut commands: [impl FnMut() -> Command; 2],
    mut accept: impl FnMut(&Run) -> Result<(), E>,
) -> Result<Paired, E> {
    let mut compared = Paired::default();
    for round in 0..pairs {
        let mut one = |which: usize| -> Result<Run, E> {
            let run = run(&mut commands[which]())?;
            accept(&run)?;
            Ok(run)
        };
        let pair = if round.is_multiple_of(2) {
            let first = one(0)?;
            (first, one(1)?)
        } else {
            let second = one(1)?;
            (one(0)?, second)
        };
        compared.pairs.push(pair);
    }
    Ok(compared)
}

/// The means of all pairs of values, each with itself too, in order.
fn walsh_averages(values: &[f64]) -> Vec<f64> {
    let mut averages = vec![];
    for (i, a) in values.iter().enumerate() {
        for b in &values[i..] {
            averages.push((a + b) / 2.0);
        }
    }
    averages.sort_by(f64::total_cmp);
    averages
}

/// The median of the Walsh averages.
fn estimate(values: &[f64]) -> Option<f64> {
    let averages = walsh_averages(values);
    let middle = averages.len() / 2;
    let upper = averages.get(middle)?;
    if averages.len().is_multiple_of(2) {
        Some((averages[middle - 1] + upper) / 2.0)
    } else {
        Some(*upper)
    }
}

/// The ends of the interval of at least this confidence; without bounds if there are too few values for one.
fn interval(values: &[f64], confidence: f64) -> (f64, f64) {
    let averages = walsh_averages(values);
    match trimmed(values.len(), confidence) {
        Some(k) => (averages[k], averages[averages.len() - 1 - k]),
        None => (f64::NEG_INFINITY, f64::INFINITY),
    }
}

/// How many Walsh averages are outside on each side: the largest k for which a rank sum of at most k has a
/// probability of at most half of what may be missed. `None` if even a rank sum of 0 is too likely.
///
/// The rank sum of n values is the sum of a random subset of 1..=n; the number of subsets with each sum is
/// counted one rank at a time.
fn trimmed(n: usize, confidence: f64) -> Option<usize> {
    // Beyond this an exact count gains nothing, and 2^n subsets go beyond what a double counts exactly.
    const EXACT: usize = 50;
    let half = (1.0 - confidence) / 2.0;
    if n > EXACT {
        let n = n as f64;
        let mean = n * (n + 1.0) / 4.0;
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        // 1.96 is the normal distribution's 97.5 % point; other confidences are asked for by tests only, with
        // few values.
        return Some((mean - 1.96 * deviation).floor().max(0.0) as usize);
    }
    let sums = n * (n + 1) / 2;
    let mut subsets = vec![0.0f64; sums + 1];
    subsets[0] = 1.0;
    for rank in 1..=n {
        for sum in (rank..=sums).rev() {
            subsets[sum] += subsets[sum - rank];
        }
    }
    let all = 2f64.powi(n as i32);
    let (mut below, mut k) = (0.0, None);
    for (sum, count) in subsets.iter().enumerate() {
        below += count / all;
        if below > half {
            break;
        }
        k = Some(sum);
    }
    k
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(times: &[(u64, u64)]) -> Ratio {
        let times = times.iter();
        let pairs = times.map(|&(a, b)| (Duration::from_millis(a), Duration::from_millis(b)));
        Ratio::of(pairs).expect("there are times")
    }

    #[test]
    fn critical_values_are_those_of_the_published_tables() {
        // Two-sided 5 % points of the signed-rank statistic.
        let table = [
            (6, 0),
            (7, 2),
            (8, 3),
            (9, 5),
            (10, 8),
            (12, 13),
            (15, 25),
            (20, 52),
            (25, 89),
        ];
        for (n, critical) in table {
            assert_eq!(trimmed(n, 0.95), Some(critical), "{n} values");
        }
        assert_eq!(trimmed(5, 0.95), None);
        assert_eq!(trimmed(0, 0.95), None);
        // Where the exact count ends, the approximation goes on within one.
        assert_eq!(trimmed(50, 0.95), Some(434));
        assert_eq!(trimmed(51, 0.95), Some(453));
    }

    #[test]
    fn six_pairs_give_the_smallest_and_the_largest_ratio() {
        let ratio = ms(&[
            (100, 90),
            (100, 91),
            (100, 92),
            (100, 93),
            (100, 94),
            (100, 95),
        ]);
        assert!((ratio.interval.0 - 0.90).abs() < 1e-9);
        assert!((ratio.interval.1 - 0.95).abs() < 1e-9);
        assert_eq!(ratio.verdict(), Verdict::Faster);
    }

    #[test]
    fn times_that_scatter_about_each_other_show_no_difference() {
        let ratio = ms(&[
            (100, 103),
            (101, 99),
            (99, 100),
            (102, 100),
            (100, 101),
            (98, 99),
            (103, 101),
        ]);
        assert_eq!(ratio.verdict(), Verdict::NoDifference);
        assert!(ratio.interval.0 < 1.0 && 1.0 < ratio.interval.1);
        assert!(
            ratio
                .sentence("It", "processor time")
                .starts_with("It: no difference shown, processor time changed by "),
            "{}",
            ratio.sentence("It", "processor time")
        );
    }

    #[test]
    fn drift_that_both_programs_share_falls_out() {
        // The machine gets three times slower while the second program always needs 5 % more.
        let times: Vec<(u64, u64)> = (0..10).map(|k| (1000 + 200 * k, 1050 + 210 * k)).collect();
        let ratio = ms(&times);
        assert_eq!(ratio.verdict(), Verdict::Slower);
        assert!((ratio.estimate - 1.05).abs() < 1e-6);
        assert_eq!(
            ratio.sentence("It", "processor time"),
            "It is slower: 5.0 % more processor time (95 % interval +5.0 % to +5.0 %, 10 pairs of runs)."
        );
    }

    #[test]
    fn one_run_that_was_disturbed_does_not_make_a_verdict() {
        let mut times = vec![(100, 92); 11];
        times.push((100, 400));
        assert_eq!(ms(&times).verdict(), Verdict::Faster);
        let mut times = vec![(100, 100); 11];
        times.push((100, 400));
        assert_eq!(ms(&times).verdict(), Verdict::NoDifference);
    }

    #[test]
    fn too_few_pairs_never_say_faster() {
        let ratio = ms(&[(100, 50), (100, 50), (100, 50), (100, 50), (100, 50)]);
        assert_eq!(ratio.verdict(), Verdict::NoDifference);
        assert_eq!(ratio.interval_words(), "needs 6 pairs");
        assert!(Ratio::of([]).is_none());
        assert!(Ratio::of([(Duration::ZERO, Duration::from_millis(1))]).is_none());
    }

    #[test]
    fn equal_programs_are_called_different_in_at_most_one_of_twenty_comparisons() {
        // Skewed noise from a fixed generator: a base, plus now and then a delay.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut time = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let noise = (state >> 40) as f64 / (1u64 << 24) as f64;
            Duration::from_secs_f64(0.1 + 0.02 * noise.powi(8))
        };
        let trials = 2000;
        let wrong = (0..trials)
            .filter(|_| {
                let pairs: Vec<_> = (0..11).map(|_| (time(), time())).collect();
                Ratio::of(pairs).expect("there are times").verdict() != Verdict::NoDifference
            })
            .count();
        assert!(wrong <= trials * 6 / 100, "{wrong} of {trials}");
    }

    #[test]
    fn each_program_goes_first_in_every_second_pair() {
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

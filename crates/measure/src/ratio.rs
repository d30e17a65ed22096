//! Values of two programs as one ratio: an estimate, an interval, a verdict.
//!
//! **Problem.** Times of one program scatter by more than most optimisations gain. Two medians side by side say nothing
//! about whether their difference would show again.
//!
//! **Statistics.** Of each pair of runs the logarithm of `after / before` is taken; if the programs are equal, its
//! distribution is symmetric about 0, whatever its shape, because the two runs could have been exchanged. That is the
//! assumption of Wilcoxon's signed-rank test ([`crate::signed_rank`]), from which the estimate comes. Where the
//! programs
//! differ there is no such argument; the bootstrap ([`crate::bootstrap`]) needs none, but its plain percentiles are too
//! narrow for few pairs. So both intervals are computed, and the one that is given reaches from the lower of the lower
//! ends to the higher of the higher ends. It is never narrower than either. Nothing depends on chance: the same values
//! give the same interval.
//!
//! | pairs | the signed-rank interval for 95 % |
//! |---|---|
//! | below 6 | unbounded: the verdict is always [`Verdict::NoDifference`] |
//! | 6 | 96.9 %, the smallest and the largest ratio |
//! | 10 | 95.1 % |
//! | 15 | 95.2 % |

use crate::bootstrap::{self, Percentiles};
use crate::signed_rank::Walsh;

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

/// Values of two programs as one ratio, `after / before`: below 1 is less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Hodges and Lehmann's estimate; of several workloads the geometric mean of theirs.
    pub estimate: f64,
    /// Lower and upper end of the interval; 0 and infinity if there were too few pairs.
    pub interval: (f64, f64),
    /// Number of pairs; of several workloads the smallest number.
    pub pairs: usize,
}

/// The logarithm of `after / before` of each pair of values above 0.
pub fn differences(pairs: impl IntoIterator<Item = (f64, f64)>) -> Vec<f64> {
    let logarithms = pairs
        .into_iter()
        .map(|(before, after)| (after / before).ln());
    logarithms
        .filter(|difference| difference.is_finite())
        .collect()
}

/// How far the signed-rank interval of differences reaches to either side of its middle, as a share: 0.01 is one per
/// cent. Infinite if there are too few.
pub fn half_width(differences: &[f64]) -> f64 {
    let (low, high) = Walsh::new(differences).interval(CONFIDENCE);
    ((high - low) / 2.0).exp_m1()
}

impl Ratio {
    /// From the values of each pair, `(before, after)`. Pairs without a value above 0 on both sides are left
    /// out. `None` if none is left.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Ratio> {
        Self::of_differences(&differences(pairs))
    }

    /// From [`differences`].
    pub fn of_differences(differences: &[f64]) -> Option<Ratio> {
        let walsh = Walsh::new(differences);
        let tested = walsh.interval(CONFIDENCE);
        let drawn = bootstrap::interval(&[differences], Percentiles::Plain);
        Some(Ratio {
            estimate: walsh.estimate()?.exp(),
            interval: (tested.0.min(drawn.0).exp(), tested.1.max(drawn.1).exp()),
            pairs: differences.len(),
        })
    }

    /// The geometric mean of the ratios of several workloads, from the [`differences`] of each. There is no exact test
    /// for it: the interval is the bootstrap's, which draws from each workload's pairs. `None` if there is no workload,
    /// or one without a pair.
    pub fn geometric_mean(workloads: &[Vec<f64>]) -> Option<Ratio> {
        if let [one] = workloads {
            return Self::of_differences(one);
        }
        let pairs = workloads.iter().map(Vec::len).min()?;
        let mut sum = 0.0;
        for differences in workloads {
            sum += Walsh::new(differences).estimate()?;
        }
        let lists: Vec<&[f64]> = workloads.iter().map(Vec::as_slice).collect();
        let interval = if pairs >= FEWEST_PAIRS as usize {
            bootstrap::interval(&lists, Percentiles::Expanded)
        } else {
            (f64::NEG_INFINITY, f64::INFINITY)
        };
        Some(Ratio {
            estimate: (sum / workloads.len() as f64).exp(),
            interval: (interval.0.exp(), interval.1.exp()),
            pairs,
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

    /// Whether there were enough pairs for an interval.
    pub fn is_bounded(&self) -> bool {
        self.interval.0 > 0.0 && self.interval.1.is_finite()
    }

    /// The interval as changes in per cent: `-9.1 % to -7.3 %`.
    pub fn interval_words(&self) -> String {
        let (low, high) = self.interval;
        if self.is_bounded() {
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
            "{what}{found} ({:.0} % interval {}, {} of runs).",
            CONFIDENCE * 100.0,
            self.interval_words(),
            match self.pairs {
                1 => "1 pair".to_owned(),
                n => format!("{n} pairs"),
            }
        )
    }
}

/// A ratio as a change: `-8.2 %`.
pub fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Random;

    fn ms(times: &[(u64, u64)]) -> Ratio {
        let pairs = times.iter().map(|&(a, b)| (a as f64, b as f64));
        Ratio::of(pairs).expect("there are times")
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
        assert!(Ratio::of([(0.0, 1.0)]).is_none());
        let few = vec![vec![-0.5; 5], vec![-0.5; 20]];
        let mean = Ratio::geometric_mean(&few).expect("there are times");
        assert_eq!(mean.verdict(), Verdict::NoDifference);
        assert_eq!(mean.pairs, 5);
    }

    #[test]
    fn equal_programs_are_called_different_in_at_most_one_of_twenty_comparisons() {
        // Skewed noise: a base, plus now and then a delay.
        let mut random = Random::new(5);
        let mut time = || 0.1 + 0.02 * random.share().powi(8);
        let trials = 400;
        let wrong = (0..trials)
            .filter(|_| {
                let pairs: Vec<_> = (0..11).map(|_| (time(), time())).collect();
                Ratio::of(pairs).expect("there are times").verdict() != Verdict::NoDifference
            })
            .count();
        assert!(wrong <= trials * 6 / 100, "{wrong} of {trials}");
    }

    #[test]
    fn workloads_count_the_same_however_long_they_take() {
        // One is 10 % faster, the other 10 % slower and takes a thousand times as long.
        let short =
            differences((0..8).map(|k| (1.0 + 0.01 * f64::from(k), 0.9 + 0.009 * f64::from(k))));
        let long = differences((0..8).map(|_| (900.0, 1000.0)));
        let mean = Ratio::geometric_mean(&[short.clone(), long]).expect("there are times");
        assert!((mean.estimate - 1.0).abs() < 1e-9, "{}", mean.estimate);
        let twice = Ratio::geometric_mean(&[short.clone(), short]).expect("there are times");
        assert!((twice.estimate - 0.9).abs() < 1e-9);
        assert_eq!(twice.verdict(), Verdict::Faster);
        assert!(Ratio::geometric_mean(&[]).is_none());
    }

    #[test]
    fn the_width_of_an_interval_is_a_share() {
        assert_eq!(half_width(&[0.0; 5]), f64::INFINITY);
        assert_eq!(half_width(&[0.1; 8]), 0.0);
        // Six values: from the smallest to the largest.
        let width = half_width(&[0.00, 0.01, 0.02, 0.02, 0.03, 0.04]);
        assert!((width - 0.0202).abs() < 1e-4, "{width}");
    }
}

//! Bootstrap intervals: what an estimate might have been, had other runs of the same kind been seen.
//!
//! Of n values n are drawn with replacement, [`RESAMPLES`] times, and the estimate is computed of each draw. Plain
//! percentiles of these are too narrow for few values, because a draw scatters less than what was drawn from, by
//! the factor sqrt((n - 1) / n), and because a normal quantile stands where Student's should. Hesterberg's *expanded*
//! percentiles take both into account: in place of a / 2 they are taken at Φ(-sqrt(n / (n - 1)) · t(a / 2, n - 1)).
//!
//! Draws come from a fixed generator: the same values give the same interval.
//!
//! Source: T. C. Hesterberg, *What Teachers Should Know About the Bootstrap*, The American Statistician 69 (2015),
//! section 5.3. Approximations of Φ and t: M. Abramowitz, I. A. Stegun, *Handbook of Mathematical Functions*, 26.2.17
//! and 26.7.5.

use crate::signed_rank::Walsh;

/// Number of draws.
pub const RESAMPLES: usize = 2000;

/// A generator of numbers that are spread well enough (SplitMix64, public domain, Sebastiano Vigna).
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// By a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number of 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// The next number below a bound, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// The next number from 0 to less than 1.
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Which percentiles of the draws are the ends of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Percentiles {
    /// 2.5 and 97.5: too narrow for few values, and what is joined with another interval that is not.
    Plain,
    /// Hesterberg's. A single value far off widens them more than plain ones: draws have it several times.
    Expanded,
}

/// The interval of a mean of estimates by Hodges and Lehmann, one of each list of values, at a confidence of 95 %.
///
/// With one list it is the interval of its estimate. Without bounds if a list has fewer than two values.
pub fn interval(lists: &[&[f64]], percentiles: Percentiles) -> (f64, f64) {
    let unbounded = (f64::NEG_INFINITY, f64::INFINITY);
    let Some(fewest @ 2..) = lists.iter().map(|values| values.len()).min() else {
        return unbounded;
    };
    let walsh: Vec<Walsh> = lists.iter().map(|values| Walsh::new(values)).collect();
    let mut times: Vec<Vec<u32>> = lists.iter().map(|values| vec![0; values.len()]).collect();
    let mut random = Random::new(0x706f_7374_6c69_6e6b);
    let mut estimates = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let mut sum = 0.0;
        for (walsh, times) in walsh.iter().zip(&mut times) {
            times.fill(0);
            for _ in 0..times.len() {
                let drawn = random.below(times.len());
                times[drawn] += 1;
            }
            sum += walsh.estimate_of(times);
        }
        estimates.push(sum / lists.len() as f64);
    }
    let share = match percentiles {
        Percentiles::Plain => 0.025,
        Percentiles::Expanded => expanded(fewest),
    };
    estimates.sort_by(f64::total_cmp);
    let low = ((RESAMPLES as f64 + 1.0) * share).floor().max(1.0) as usize - 1;
    (estimates[low], estimates[RESAMPLES - 1 - low])
}

/// The share of draws on each side that is left out, for n values, at least 2, and a confidence of 95 %.
fn expanded(n: usize) -> f64 {
    let n = n.max(2) as f64;
    normal(-(n / (n - 1.0)).sqrt() * student(n - 1.0))
}

/// The 97.5 % point of Student's t with so many degrees of freedom.
fn student(degrees: f64) -> f64 {
    // The series is for more degrees than these.
    const FEW: [f64; 4] = [12.706, 4.303, 3.182, 2.776];
    if let Some(exact) = FEW.get((degrees as usize).saturating_sub(1)) {
        return *exact;
    }
    let z: f64 = 1.959_964;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
        (79.0 * z.powi(9) + 776.0 * z.powi(7) + 1482.0 * z.powi(5)
            - 1920.0 * z.powi(3)
            - 945.0 * z)
            / 92160.0,
    ];
    let mut power = 1.0;
    terms.iter().fold(z, |sum, term| {
        power *= degrees;
        sum + term / power
    })
}

/// Φ: how much of the normal distribution is below x.
fn normal(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let series = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let above = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * series;
    if x > 0.0 { 1.0 - above } else { above }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_published_tables() {
        for (degrees, t) in [
            (1.0, 12.706),
            (4.0, 2.776),
            (5.0, 2.571),
            (9.0, 2.262),
            (30.0, 2.042),
            (1000.0, 1.962),
        ] {
            assert!((student(degrees) - t).abs() < 0.002, "{degrees} degrees");
        }
        for (x, share) in [(0.0, 0.5), (-1.96, 0.025), (1.96, 0.975), (-3.0, 0.00135)] {
            assert!((normal(x) - share).abs() < 2e-5, "{x}");
        }
        // Hesterberg's table: a nominal 2.5 % becomes 0.8 % or so with ten values.
        assert!((expanded(10) - 0.0086).abs() < 2e-4);
        assert!((expanded(100_000) - 0.025).abs() < 1e-4);
    }

    #[test]
    fn few_values_have_no_interval_and_equal_ones_a_point() {
        assert_eq!(
            interval(&[], Percentiles::Expanded),
            (f64::NEG_INFINITY, f64::INFINITY)
        );
        assert_eq!(
            interval(&[&[1.0]], Percentiles::Plain),
            (f64::NEG_INFINITY, f64::INFINITY)
        );
        assert_eq!(interval(&[&[0.5; 8]], Percentiles::Expanded), (0.5, 0.5));
    }

    #[test]
    fn the_interval_holds_the_truth_about_as_often_as_it_says() {
        // Skewed values with a centre that is known: the logarithms of a product of shares.
        let mut random = Random::new(11);
        let tries = 400;
        let held = (0..tries)
            .filter(|_| {
                let values: Vec<f64> = (0..14)
                    .map(|_| random.share().ln() - random.share().ln())
                    .collect();
                let (low, high) = interval(&[&values], Percentiles::Expanded);
                low <= 0.0 && 0.0 <= high
            })
            .count();
        assert!(held * 100 >= tries * 93, "{held} of {tries}");
        assert!(held < tries, "an interval that always holds says nothing");
    }

    #[test]
    fn the_mean_of_two_lists_is_between_their_estimates() {
        let (a, b) = (
            [0.9, 1.0, 1.1, 1.0, 0.95, 1.05],
            [2.9, 3.0, 3.1, 3.0, 2.95, 3.05],
        );
        let (low, high) = interval(&[&a, &b], Percentiles::Expanded);
        assert!(
            1.9 < low && low < 2.0 && 2.0 < high && high < 2.1,
            "{low} {high}"
        );
    }
}

//! Wilcoxon's signed-rank test turned round: an estimate and an interval for what values are symmetric about.
//!
//! The estimate is Hodges and Lehmann's: the median of the means of all pairs of values (Walsh averages). The interval
//! is what the test does not reject: it ends at the k-th smallest and the k-th largest Walsh average, where k
//! comes from the exact distribution of the rank sum. It needs no normal distribution.
//!
//! Source: M. Hollander, D. A. Wolfe, E. Chicken, *Nonparametric Statistical Methods*, 3rd edition, sections 3.1-3.3.

/// The means of all pairs of values, each with itself too, in order.
#[derive(Clone, Debug)]
pub struct Walsh {
    values: usize,
    /// Mean, and the positions of both values.
    averages: Vec<(f64, u32, u32)>,
}

impl Walsh {
    /// Of some values.
    pub fn new(values: &[f64]) -> Walsh {
        let mut averages = vec![];
        for (i, a) in values.iter().enumerate() {
            for (j, b) in values.iter().enumerate().skip(i) {
                averages.push(((a + b) / 2.0, i as u32, j as u32));
            }
        }
        averages.sort_by(|a, b| a.0.total_cmp(&b.0));
        Walsh {
            values: values.len(),
            averages,
        }
    }

    /// Hodges and Lehmann's estimate. `None` without values.
    pub fn estimate(&self) -> Option<f64> {
        let middle = self.averages.len() / 2;
        let upper = self.averages.get(middle)?.0;
        if self.averages.len().is_multiple_of(2) {
            Some((self.averages[middle - 1].0 + upper) / 2.0)
        } else {
            Some(upper)
        }
    }

    /// The estimate if each value were there so many times; the times add up to the number of values. 0 without values.
    pub fn estimate_of(&self, times: &[u32]) -> f64 {
        let middle = self.averages.len() as u64 / 2;
        let is_even = self.averages.len().is_multiple_of(2);
        let (mut seen, mut last) = (0u64, 0.0);
        for (mean, i, j) in &self.averages {
            let copies = copies(times, *i, *j);
            if seen + copies > middle {
                // Of an even number the median is between this one and the one before, which may be a copy.
                return if is_even && seen == middle {
                    (last + mean) / 2.0
                } else {
                    *mean
                };
            }
            if copies > 0 {
                last = *mean;
            }
            seen += copies;
        }
        last
    }

    /// The ends of the interval of at least this confidence; without bounds if there are too few values for one.
    pub fn interval(&self, confidence: f64) -> (f64, f64) {
        match trimmed(self.values, confidence) {
            Some(k) => (
                self.averages[k].0,
                self.averages[self.averages.len() - 1 - k].0,
            ),
            None => (f64::NEG_INFINITY, f64::INFINITY),
        }
    }
}

/// How many averages a pair of values represents, if each is there so many times.
fn copies(times: &[u32], i: u32, j: u32) -> u64 {
    let (a, b) = (u64::from(times[i as usize]), u64::from(times[j as usize]));
    if i == j { a * (a + 1) / 2 } else { a * b }
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
        // Where the exact count ends, the approximation continues within one.
        assert_eq!(trimmed(50, 0.95), Some(434));
        assert_eq!(trimmed(51, 0.95), Some(453));
    }

    #[test]
    fn copies_of_values_count_as_if_they_were_written_out() {
        let values = [3.0, -1.0, 0.5, 8.0, 2.0];
        for times in [
            [1, 1, 1, 1, 1],
            [2, 0, 1, 0, 2],
            [0, 0, 5, 0, 0],
            [0, 3, 0, 2, 0],
            [1, 2, 2, 0, 0],
        ] {
            let copies: Vec<f64> = values
                .iter()
                .zip(times)
                .flat_map(|(value, n)| std::iter::repeat_n(*value, n as usize))
                .collect();
            let written_out = Walsh::new(&copies).estimate().expect("there are values");
            let found = Walsh::new(&values).estimate_of(&times);
            assert!((found - written_out).abs() < 1e-12, "{times:?}");
        }
        // An even number of averages: 4 values give 10.
        let values = [1.0, 5.0, 2.0, 9.0];
        for times in [[2, 0, 2, 0], [1, 1, 1, 1], [0, 3, 1, 0], [2, 1, 0, 1]] {
            let copies: Vec<f64> = values
                .iter()
                .zip(times)
                .flat_map(|(value, n)| std::iter::repeat_n(*value, n as usize))
                .collect();
            let written_out = Walsh::new(&copies).estimate().expect("there are values");
            let found = Walsh::new(&values).estimate_of(&times);
            assert!((found - written_out).abs() < 1e-12, "{times:?}");
        }
    }

    #[test]
    fn no_values_have_no_estimate_and_no_bounds() {
        let none = Walsh::new(&[]);
        assert_eq!(none.estimate(), None);
        assert_eq!(none.interval(0.95), (f64::NEG_INFINITY, f64::INFINITY));
    }
}

//! Layout luck: how far a program's time scatters over layouts that differ in nothing that matters.
//!
//! **Problem.** Where code happens to be decides which branches share an entry of a predictor and which lines a set of
//! a cache. Any change moves code, so a program may become one percent faster because of a change that has nothing to
//! do with it (T. Mytkowicz and others, *Producing Wrong Data Without Doing Anything Obviously Wrong!*, ASPLOS 2009).
//! A gain is worth more than such luck only if it is larger.
//!
//! **Method.** Every layout runs once a round. The logarithm of its time is taken as the sum of a part of the round, a
//! part of the layout, and noise: the analysis of variance of a two-way layout without replication. What layouts
//! scatter by is the variance of their means over rounds, less what noise contributes to it.
//!
//! Source: H. Scheffé, *The Analysis of Variance*, section 4.2.

/// What layouts do to a program's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Luck {
    /// Standard deviation over layouts, as a share of time: 0.01 is one per cent. What noise contributes is taken off.
    pub deviation: f64,
    /// Of each layout: its time as a ratio to the geometric mean of all.
    pub of: Vec<f64>,
    /// Rounds that it rests on.
    pub rounds: usize,
}

impl Luck {
    /// From the values of each round, one of each layout. `None` with fewer than two layouts or rounds, or where a
    /// value
    /// is not above 0.
    pub fn of(rounds: &[Vec<f64>]) -> Option<Luck> {
        let layouts = rounds.first()?.len();
        if layouts < 2 || rounds.len() < 2 {
            return None;
        }
        let (n, m) = (layouts as f64, rounds.len() as f64);
        let mut table: Vec<Vec<f64>> = Vec::with_capacity(rounds.len());
        for round in rounds {
            let logarithms: Vec<f64> = round.iter().map(|value| value.ln()).collect();
            if logarithms.len() != layouts || logarithms.iter().any(|x| !x.is_finite()) {
                return None;
            }
            // Less what the round has in common.
            let mean = logarithms.iter().sum::<f64>() / n;
            table.push(logarithms.iter().map(|x| x - mean).collect());
        }
        let means: Vec<f64> = (0..layouts)
            .map(|k| table.iter().map(|round| round[k]).sum::<f64>() / m)
            .collect();
        let between = means.iter().map(|mean| mean * mean).sum::<f64>() / (n - 1.0);
        let residuals = table.iter().flat_map(|round| round.iter().zip(&means));
        let squares: f64 = residuals.map(|(x, mean)| (x - mean).powi(2)).sum();
        let noise = squares / ((n - 1.0) * (m - 1.0));
        Some(Luck {
            deviation: (between - noise / m).max(0.0).sqrt(),
            of: means.iter().map(|mean| mean.exp()).collect(),
            rounds: rounds.len(),
        })
    }

    /// The smallest and the largest ratio; noise is in them.
    pub fn range(&self) -> (f64, f64) {
        let ratios = self.of.iter().copied();
        ratios.fold((f64::INFINITY, 0.0), |(low, high), ratio| {
            (low.min(ratio), high.max(ratio))
        })
    }

    /// Whether a ratio is no further from 1 than two standard deviations: luck alone does as much.
    pub fn may_be(&self, ratio: f64) -> bool {
        ratio.ln().abs() <= 2.0 * self.deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Random;

    /// Rounds of layouts whose factors are known, with noise of a given width, and a machine that gets slower.
    fn model(factors: &[f64], noise: f64, rounds: usize) -> Vec<Vec<f64>> {
        let mut random = Random::new(3);
        let mut round = |k: usize| {
            let machine = 1.0 + 0.1 * k as f64;
            let run = |factor: &f64| machine * factor * (1.0 + noise * (random.share() - 0.5));
            factors.iter().map(run).collect()
        };
        (0..rounds).map(&mut round).collect()
    }

    #[test]
    fn layouts_that_differ_scatter_by_what_they_differ() {
        // Logarithms -0.02, 0, 0.02: a deviation of 2 %.
        let factors = [(-0.02f64).exp(), 1.0, 0.02f64.exp()];
        let luck = Luck::of(&model(&factors, 0.01, 30)).expect("there are rounds");
        assert!((luck.deviation - 0.02).abs() < 0.002, "{}", luck.deviation);
        for (found, factor) in luck.of.iter().zip(factors) {
            assert!((found / factor - 1.0).abs() < 0.003, "{found} {factor}");
        }
        assert!(luck.may_be(0.97) && !luck.may_be(0.94));
        let (low, high) = luck.range();
        assert!(low < 0.985 && high > 1.015);
    }

    #[test]
    fn noise_is_not_taken_for_luck() {
        let luck = Luck::of(&model(&[1.0; 12], 0.1, 40)).expect("there are rounds");
        // Noise has a deviation of 2.9 %, of the mean of 40 runs 0.46 %.
        assert!(luck.deviation < 0.004, "{}", luck.deviation);
        assert!(!luck.may_be(0.97));
    }

    #[test]
    fn too_little_has_no_luck() {
        assert_eq!(Luck::of(&[]), None);
        assert_eq!(Luck::of(&[vec![1.0, 1.0]]), None);
        assert_eq!(Luck::of(&[vec![1.0], vec![1.0]]), None);
        assert_eq!(Luck::of(&[vec![1.0, 0.0], vec![1.0, 1.0]]), None);
        assert_eq!(Luck::of(&[vec![1.0, 1.0], vec![1.0]]), None);
    }
}

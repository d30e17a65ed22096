//! Distances between functions of new code.
//!
//! Where functions are close together is decided by their order; how close is decided by alignment, and beyond that it
//! is left to chance on purpose only: for tests ([`super::stress`]), and to see what a layout owes to luck
//! (`postlink bench --layouts`). In the second case the order, the blocks and what is cold stay as they are; functions
//! move by a few times their alignment, so that they begin in other places of cache lines and of what predicts
//! branches, which no profile has a say in.

use super::stress::{self, Random};

/// How distances are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distances {
    /// As small as alignment allows.
    #[default]
    Least,
    /// By a seed, from nothing to [`MOST`] times the alignment.
    Chance(u64),
    /// By a seed, out of reach of branches here and there.
    Stress(u64),
}

/// Most alignments in front of a function: with 16 bytes it may begin anywhere in a cache line of 64.
const MOST: u64 = 3;

/// Distances of one section of new code.
pub enum Gaps {
    Least,
    Chance(Random),
    Stress(stress::Gaps),
}

impl Gaps {
    /// For one section with so many functions.
    pub fn new(distances: Distances, section: usize, functions: usize) -> Gaps {
        match distances {
            Distances::Least => Gaps::Least,
            Distances::Chance(seed) => Gaps::Chance(Random::of(seed, section as u64 + 1)),
            Distances::Stress(seed) => Gaps::Stress(stress::Gaps::new(seed, section, functions)),
        }
    }

    /// Bytes in front of the next function, which is aligned to `align` after them; a multiple of `step`.
    pub fn next(&mut self, step: u64, align: u64) -> u64 {
        match self {
            Gaps::Least => 0,
            Gaps::Chance(random) => random.below(MOST + 1) * align.next_multiple_of(step),
            Gaps::Stress(gaps) => gaps.next(step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_by_chance_are_small_differ_by_seed_and_are_repeated_by_it() {
        let of = |seed| {
            let mut gaps = Gaps::new(Distances::Chance(seed), 0, 50);
            (0..50).map(|_| gaps.next(1, 16)).collect::<Vec<u64>>()
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        let all = of(7);
        assert!(
            [0, 16, 32, 48].iter().all(|gap| all.contains(gap)),
            "{all:?}"
        );
        assert!(all.iter().all(|gap| *gap <= MOST * 16));
        let mut least = Gaps::new(Distances::Least, 0, 50);
        assert_eq!(least.next(1, 16), 0);
    }
}

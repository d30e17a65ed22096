//! What a profile is like as a whole: how much of it the hottest counts make up.

use rustc_hash::FxHashMap;

use super::{DUPLICATED_INTO_BASE, Function, NameId, Profile};

/// Shares of the sum, in millionths, for which a summary is made.
pub const CUTOFFS: [u32; 16] = [
    10_000, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 700_000, 800_000, 900_000,
    950_000, 990_000, 999_000, 999_900, 999_990, 999_999,
];

/// How many counts make up a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The share, in millionths.
    pub cutoff: u32,
    /// The smallest count that is needed for it.
    pub min_count: u64,
    /// How many counts are at least as large.
    pub counts: u64,
}

/// Where hot and cold begin, as asked for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Counts from this on are hot.
    pub hot_count: Option<u64>,
    /// Counts up to this are cold.
    pub cold_count: Option<u64>,
    /// Else hot are the counts that make up this share, in millionths.
    pub hot_cutoff: u32,
    /// And cold are those beyond this share.
    pub cold_cutoff: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            hot_count: None,
            cold_count: None,
            hot_cutoff: 990_000,
            cold_cutoff: 999_999,
        }
    }
}

/// Where hot and cold begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// Counts from this on are hot.
    pub hot: u64,
    /// Counts up to this are cold.
    pub cold: u64,
    /// Counts from this on make up the hottest tenth.
    pub hottest: u64,
}

/// What a profile is like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Sum of all counts.
    pub total: u64,
    /// The largest count.
    pub max: u64,
    /// The largest number of entries of a function.
    pub max_head: u64,
    /// Number of counts.
    pub counts: u64,
    /// Number of functions.
    pub functions: u64,
    /// One for each of [`CUTOFFS`].
    pub entries: Vec<Entry>,
}

impl Summary {
    /// Of a profile. In a context-sensitive one, the contexts of a function are added up first.
    pub fn of(profile: &Profile) -> Summary {
        let mut summary = Summary::default();
        let mut counts = Vec::new();
        if profile.context_sensitive {
            let mut merged: FxHashMap<NameId, Function> = FxHashMap::default();
            for (context, function) in &profile.functions {
                if let Some(leaf) = context.last() {
                    merged.entry(leaf.name).or_default().merge(function);
                }
            }
            merged
                .values()
                .for_each(|function| summary.add(function, true, &mut counts));
        } else {
            profile
                .functions
                .values()
                .for_each(|function| summary.add(function, true, &mut counts));
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        summary.counts = counts.len() as u64;
        summary.total = counts
            .iter()
            .fold(0, |sum: u64, count| sum.saturating_add(*count));
        summary.max = counts.first().copied().unwrap_or(0);
        let (mut sum, mut at) = (0u64, 0usize);
        for cutoff in CUTOFFS {
            let wanted = (u128::from(summary.total) * u128::from(cutoff) / 1_000_000) as u64;
            let mut min_count = at
                .checked_sub(1)
                .and_then(|at| counts.get(at))
                .copied()
                .unwrap_or(0);
            while sum < wanted
                && let Some(&next) = counts.get(at)
            {
                min_count = next;
                // All counts of this size belong together.
                while counts.get(at) == Some(&min_count) {
                    sum = sum.saturating_add(min_count);
                    at += 1;
                }
            }
            summary.entries.push(Entry {
                cutoff,
                min_count,
                counts: at as u64,
            });
        }
        summary
    }

    /// The smallest count needed for a share in millionths.
    pub fn threshold(&self, cutoff: u32) -> u64 {
        self.entries
            .iter()
            .find(|entry| entry.cutoff >= cutoff)
            .map_or(0, |entry| entry.min_count)
    }

    /// Where hot and cold begin; what is given replaces what follows from the profile.
    pub fn thresholds(&self, given: &Limits) -> Thresholds {
        Thresholds {
            hot: given
                .hot_count
                .unwrap_or_else(|| self.threshold(given.hot_cutoff)),
            cold: given
                .cold_count
                .unwrap_or_else(|| self.threshold(given.cold_cutoff)),
            hottest: self.threshold(100_000),
        }
    }

    fn add(&mut self, function: &Function, outermost: bool, counts: &mut Vec<u64>) {
        if outermost {
            self.functions += 1;
            self.max_head = self.max_head.max(function.head);
        } else if function.attributes & DUPLICATED_INTO_BASE != 0 {
            // Its counts are those of a function on its own too.
            return;
        }
        counts.extend(function.body.values().map(|record| record.count));
        for inlinee in function
            .inlinees
            .values()
            .flat_map(|functions| functions.values())
        {
            self.add(inlinee, false, counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Location;

    #[test]
    fn thresholds_are_the_smallest_counts_of_the_share() {
        let mut profile = Profile::default();
        let name = profile.names.intern(b"f");
        for (offset, count) in [(1, 900), (2, 90), (3, 9), (4, 1), (5, 0)] {
            profile.function(name).add_body(
                Location {
                    offset,
                    discriminator: 0,
                },
                count,
            );
        }
        let summary = Summary::of(&profile);
        assert_eq!(
            (
                summary.total,
                summary.max,
                summary.counts,
                summary.functions
            ),
            (1000, 900, 5, 1)
        );
        assert_eq!(summary.threshold(900_000), 900);
        assert_eq!(summary.threshold(990_000), 90);
        assert_eq!(summary.threshold(999_000), 9);
        assert_eq!(summary.threshold(999_999), 9, "999.999 is cut down to 999");
    }
}

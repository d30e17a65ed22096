//! What became of a profile by names or blocks: how much of it was found again in the program.

use serde::Serialize;

/// Sums over a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Functions of the program with records.
    pub functions: u64,
    /// Of these, with counts now.
    pub attached: u64,
    /// Of these, could not be moved for other reasons.
    pub pinned: u64,
    /// Functions whose code is not what the profile was taken of.
    pub stale: u64,
    /// Of these, so different that their counts were dropped.
    pub dropped: u64,
    /// Blocks in the profile's stale functions that have counts there.
    pub stale_blocks: u64,
    /// Of these, found again.
    pub matched_blocks: u64,
    /// Of these, with the same instructions and operands.
    pub same_blocks: u64,
    /// Counts of blocks in the profile's stale functions.
    pub stale_counts: u64,
    /// Of these, of blocks that were found again.
    pub matched_counts: u64,
    /// Names of functions that the program does not have.
    pub unknown_names: u64,
    /// Functions that were found under another name.
    pub renamed: u64,
    /// Some of the names that the program does not have.
    pub examples: Vec<String>,
    /// Records (of edges, entries, samples, or blocks) of functions that the program has.
    pub records: u64,
    /// The sum of their counts.
    pub counts: u64,
    /// Of these records, such that fit no edge of the function.
    pub bad_records: u64,
    /// The sum of their counts.
    pub bad_counts: u64,
    /// Runs without a branch that the code does not allow, by how often they were seen.
    pub impossible_runs: u64,
    /// Records of functions that the program does not have.
    pub lost_records: u64,
    /// The sum of their counts.
    pub lost_counts: u64,
}

impl Account {
    /// Adds up.
    pub fn add(&mut self, other: &Account) {
        let pairs = [
            (&mut self.functions, other.functions),
            (&mut self.attached, other.attached),
            (&mut self.pinned, other.pinned),
            (&mut self.stale, other.stale),
            (&mut self.dropped, other.dropped),
            (&mut self.stale_blocks, other.stale_blocks),
            (&mut self.matched_blocks, other.matched_blocks),
            (&mut self.same_blocks, other.same_blocks),
            (&mut self.stale_counts, other.stale_counts),
            (&mut self.matched_counts, other.matched_counts),
            (&mut self.unknown_names, other.unknown_names),
            (&mut self.renamed, other.renamed),
            (&mut self.records, other.records),
            (&mut self.counts, other.counts),
            (&mut self.bad_records, other.bad_records),
            (&mut self.bad_counts, other.bad_counts),
            (&mut self.impossible_runs, other.impossible_runs),
            (&mut self.lost_records, other.lost_records),
            (&mut self.lost_counts, other.lost_counts),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
    }
}

//! How good samples are: what of them could be attributed, and why the rest could not.

use postlink_profile::address::{AddressProfile, Statistics};

use crate::binary::Placer;

/// Counts of what became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// What the readers saw.
    pub read: Statistics,
    /// Samples of processes that had the binary mapped; all if that is not known.
    pub of_binary: u64,
    /// Distinct records of the input.
    pub records: usize,
    /// Runs between two branches that stay in one function.
    pub runs: u64,
    /// Runs that begin in one function and end in another.
    pub mismatching: u64,
    /// Runs that cross a boundary over which control cannot go, or are in functions that are not understood.
    pub impossible: u64,
    /// Runs that begin or end outside of all functions.
    pub out_of_range: u64,
    /// Branches that leave a cold part of a function that was split before.
    pub cold: u64,
    /// Samples of addresses.
    pub basic: u64,
    /// Of these, outside of all functions.
    pub basic_outside: u64,
    /// Functions with a profile.
    pub functions: usize,
}

impl Quality {
    /// What is known before samples are looked up in functions.
    pub fn new(samples: &AddressProfile, placer: &Placer) -> Quality {
        let modules = samples.modules().iter().enumerate();
        let ours = modules.filter(|(index, _)| placer.is_binary(*index));
        let of_binary = ours
            .filter_map(|(_, module)| samples.mapped.get(module))
            .fold(0u64, |sum, more| sum.saturating_add(*more));
        let all = samples.statistics.samples;
        Quality {
            read: samples.statistics,
            of_binary: if samples.mapped.is_empty() {
                all
            } else {
                of_binary.min(all)
            },
            records: samples.traces().len() + samples.samples().len(),
            ..Quality::default()
        }
    }

    pub(super) fn add(&mut self, other: &Quality) {
        self.runs = self.runs.saturating_add(other.runs);
        self.mismatching = self.mismatching.saturating_add(other.mismatching);
        self.out_of_range = self.out_of_range.saturating_add(other.out_of_range);
    }

    /// Samples of processes that did not have the binary mapped.
    pub fn ignored(&self) -> u64 {
        self.read.samples.saturating_sub(self.of_binary)
    }

    /// All runs.
    pub fn all_runs(&self) -> u64 {
        let known = self
            .runs
            .saturating_add(self.mismatching)
            .saturating_add(self.out_of_range);
        known.max(self.read.pairs)
    }

    /// Share of runs, in percent.
    pub fn percent(&self, part: u64) -> f64 {
        match self.all_runs() {
            0 => 0.0,
            all => part as f64 * 100.0 / all as f64,
        }
    }

    pub(super) fn why_empty(&self) -> String {
        let read = &self.read;
        let hint = match (self.all_runs(), self.basic) {
            (0, 0) if read.samples > 0 => {
                ". In call chains perf script prints offsets in files, which name no place: \
aggregate the perf.data itself, or print the sampled instruction as well (perf script -F pid,ip,brstack)"
            }
            _ => "",
        };
        format!(
            "nothing could be attributed to it: of {} samples {} have branches; {} of {} runs and {} of {} addresses are outside of its functions{hint}",
            read.samples,
            read.with_branches,
            self.all_runs().saturating_sub(self.runs),
            self.all_runs(),
            self.basic_outside,
            self.basic,
        )
    }
}

//! How good samples are: what of them could be attributed, and why the rest could not.

use postlink_profile::address::{AddressProfile, Seen, Statistics};

use crate::binary::Placer;

/// Counts of what became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// What the readers saw.
    pub read: Statistics,
    /// What was seen of processes that had the binary mapped; everything if that is not known.
    pub of_binary: Seen,
    /// Distinct records of the input.
    pub records: usize,
    /// Runs between two branches that stay in one function.
    pub runs: u64,
    /// Runs that begin in one function and end in another, or end in theirs before they begin.
    pub mismatching: u64,
    /// Runs that cross a boundary over which control cannot go, or are in functions that are not understood.
    pub impossible: u64,
    /// Runs that begin or end outside of all functions, as far as both ends are in one file; see
    /// [`Quality::outside`].
    pub out_of_range: u64,
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
        let mut of_binary = Seen::default();
        for seen in ours.filter_map(|(_, module)| samples.mapped.get(module)) {
            of_binary.add(*seen);
        }
        let read = samples.statistics;
        let all = Seen {
            samples: read.samples,
            with_branches: read.with_branches,
            entries: read.entries,
            pairs: read.pairs,
        };
        // A process may have had the binary mapped under two names.
        let unknown = samples.mapped.is_empty() || of_binary.samples > all.samples;
        let of_binary = if unknown { all } else { of_binary };
        Quality {
            read,
            of_binary,
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
        self.read.samples.saturating_sub(self.of_binary.samples)
    }

    /// Runs that cannot have been: they cross boundaries over which control does not go, leave their function, or end
    /// before they begin.
    pub fn wrong(&self) -> u64 {
        self.mismatching.saturating_add(self.impossible)
    }

    /// Runs that begin or end outside of all functions; of a recording, of the processes that had the binary mapped.
    pub fn outside(&self) -> u64 {
        self.all_runs().saturating_sub(self.inside())
    }

    fn inside(&self) -> u64 {
        self.runs.saturating_add(self.mismatching)
    }

    /// All runs.
    pub fn all_runs(&self) -> u64 {
        match self.of_binary.pairs {
            0 => self.inside().saturating_add(self.out_of_range),
            // Those of weighted recordings are more.
            pairs => pairs.max(self.inside()),
        }
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

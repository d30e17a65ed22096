//! Stub to be replaced below.

/// Which blocks get counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Signature of the function's graph.
    pub signature: u32,
    /// Blocks with counters, other than the entry.
    pub counters: Vec<usize>,
    /// Blocks without, and the numbers of the counters that they follow from: 0 is the entry's, `n` that of `counters[n - 1]`.
    pub inferred: Vec<(usize, Vec<u32>)>,
}

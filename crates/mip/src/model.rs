//! The profile in memory: what a map describes, with what any number of runs did.

use crate::header::{Header, Types};

/// Traces that a profile keeps at most.
pub const MAX_TRACES: usize = 128;
/// Functions of a trace that are kept at most: what comes later is not start-up.
pub const MAX_TRACE_LENGTH: usize = 10_000;

/// A map or a merged profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What is counted, and how.
    pub types: Types,
    /// Ties map, raws and profile together: a hash of the link unit.
    pub module_hash: u32,
    /// The first eight bytes of the program's build id, little endian; 0 if it is not known.
    pub identity: u64,
    /// In the order of the map.
    pub functions: Vec<Function>,
    /// With [`Types::MOVED_CALLERS`]: calls in code that was emitted again, ascending in the program that ran.
    pub callers: Vec<MovedCaller>,
    /// First-call orders of single runs, at most [`MAX_TRACES`], by key.
    pub traces: Vec<Trace>,
}

/// A function, its counters and its counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Mangled name; empty if a profile has none for the signature.
    pub name: Vec<u8>,
    /// [`md5_64`](crate::hash::md5_64) of the mangled name.
    pub signature: u64,
    /// Where its counters begin, from the start of the raw file.
    pub raw_offset: u64,
    /// Its address less that of the raw section.
    pub address: i64,
    /// Its size in bytes.
    pub size: u32,
    /// [`cfg_signature`](crate::hash::cfg_signature) of its control flow graph.
    pub cfg_signature: u32,
    /// Number of runs in which it was called.
    pub raw_count: u32,
    /// Number of calls; with function coverage 1 if there were any.
    pub call_count: u64,
    /// Sum over all runs of its place in the order of first calls, from 1.
    pub order_sum: u64,
    /// Blocks that have counters, other than the entry.
    pub blocks: Vec<Block>,
    /// Blocks that have none.
    pub inferred: Vec<InferredBlock>,
    /// Where it was called from, by address, each once.
    pub edges: Vec<Edge>,
}

/// A block with a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// From the start of the function.
    pub offset: u32,
    /// Whether it ran in any run.
    pub covered: bool,
}

/// A block whose coverage follows from that of others: it ran if, and only if, any of them did. The first may
/// be the entry ([`Function::entry_sources`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferredBlock {
    /// From the start of the function.
    pub offset: u32,
    /// Numbers of counters: 0 is the entry, `n` is `blocks[n - 1]`.
    pub from: Vec<u32>,
}

/// Calls of a function from one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// The return address, less that of the raw section.
    pub source: i64,
    /// How many calls.
    pub weight: u64,
}

/// A call that is in another place in the program that ran than in the input, which functions' addresses are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MovedCaller {
    /// Its return address in the program that ran, less that of the raw section: what samples have.
    pub ran: i64,
    /// The same in the input: what edges have.
    pub source: i64,
}

/// The order in which one run called functions for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trace {
    /// A hash of the order. Of too many traces those with the smallest keys stay, which makes a fair sample
    /// that does not depend on the order of merging.
    pub key: u64,
    /// Indexes of functions, at most [`MAX_TRACE_LENGTH`].
    pub functions: Vec<u32>,
    /// How many runs had this order.
    pub weight: u64,
}

impl Function {
    /// Whether it ran at all.
    pub fn is_covered(&self) -> bool {
        self.raw_count > 0
    }

    /// Whether its entry block ran.
    pub fn entry_covered(&self) -> bool {
        self.call_count > 0 || self.raw_count > 0
    }

    /// Number of blocks that are known, the entry among them.
    pub fn block_count(&self) -> usize {
        1 + self.blocks.len() + self.inferred.len() - usize::from(self.entry_sources().is_some())
    }

    /// The counters that the entry's coverage follows from, where its own is never written: it is listed
    /// first among the blocks that have none.
    pub fn entry_sources(&self) -> Option<&[u32]> {
        let first = self.inferred.first()?;
        (first.offset == 0).then_some(&first.from)
    }

    /// Whether a counter was hit: 0 is that of the entry.
    fn counter(&self, number: u32) -> bool {
        match number.checked_sub(1) {
            None => self.entry_covered(),
            Some(index) => self
                .blocks
                .get(index as usize)
                .is_some_and(|block| block.covered),
        }
    }

    /// All blocks by offset, the entry first, with what follows about those without a counter.
    pub fn all_blocks(&self) -> Vec<Block> {
        let mut all = Vec::with_capacity(self.block_count());
        all.push(Block {
            offset: 0,
            covered: self.entry_covered(),
        });
        all.extend_from_slice(&self.blocks);
        if !self.inferred.is_empty() {
            let others = &self.inferred[usize::from(self.entry_sources().is_some())..];
            all.extend(others.iter().map(|block| Block {
                offset: block.offset,
                covered: block.from.iter().any(|&number| self.counter(number)),
            }));
            // Stable, and the entry is at 0: it stays in front.
            all.sort_by_key(|block| block.offset);
        }
        all
    }

    /// The name, or the signature of a function without.
    pub fn display_name(&self) -> std::borrow::Cow<'_, str> {
        if self.name.is_empty() {
            format!("{:#018X}", self.signature).into()
        } else {
            String::from_utf8_lossy(&self.name)
        }
    }

    /// Bytes of its counters in the raw section.
    pub fn counter_bytes(&self, types: Types) -> u64 {
        types.entry_bytes() + self.blocks.len() as u64
    }
}

impl Profile {
    /// An empty profile under a map's header.
    pub(crate) fn of(header: &Header) -> Profile {
        Profile {
            types: header.types,
            module_hash: header.module_hash,
            ..Profile::default()
        }
    }

    /// The same in which nothing has run.
    pub fn emptied(&self) -> Profile {
        let mut empty = self.clone();
        empty.traces.clear();
        for function in &mut empty.functions {
            (function.raw_count, function.call_count, function.order_sum) = (0, 0, 0);
            function.edges.clear();
            for block in &mut function.blocks {
                block.covered = false;
            }
        }
        empty
    }

    /// Whether it holds something that version 8 of the format has no place for.
    pub fn needs_version_9(&self) -> bool {
        self.identity != 0
            || self.types.has_extensions()
            || !self.traces.is_empty()
            || self
                .functions
                .iter()
                .any(|f| !f.edges.is_empty() || !f.inferred.is_empty())
    }

    /// Takes traces in, adds up those that are the same, and keeps those with the smallest keys.
    pub(crate) fn add_traces(&mut self, traces: Vec<Trace>) {
        self.traces.extend(traces);
        keep_traces(&mut self.traces);
    }

    /// Length that a raw file must have at least for all counters to be inside.
    pub fn raw_len(&self) -> u64 {
        let ends = self
            .functions
            .iter()
            .map(|f| f.raw_offset.saturating_add(f.counter_bytes(self.types)));
        ends.max().unwrap_or(0)
    }
}

/// See [`Profile::add_traces`].
pub(crate) fn keep_traces(traces: &mut Vec<Trace>) {
    traces.sort_unstable();
    traces.dedup_by(|next, kept| {
        let same = next.key == kept.key && next.functions == kept.functions;
        if same {
            kept.weight = kept.weight.saturating_add(next.weight);
        }
        same
    });
    traces.truncate(MAX_TRACES);
}

//! What an update did, and what it could not do.

use std::collections::BTreeMap;

/// Something that is described less well than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// A unit that could not be read, or its line program, or whose entries are in another file. It is as it was, and
    /// describes old code.
    Unit,
    /// A scope of several intervals whose entry has no space to say so: only its first interval is described.
    NoRoomForRanges,
    /// An index of the address pool whose users want different addresses, and no way to give them.
    SharedIndex,
    /// An address of an instruction that is gone, with nothing left after it.
    AddressGone,
    /// An operation in an expression that is not known, in front of what may be an address.
    UnknownOperation,
    /// An address given as an index and an offset.
    IndexWithOffset,
    /// An offset into another section with an attribute that is not known.
    UnknownOffset,
    /// An index that could not be read or rewritten. It goes on describing old code.
    Index,
    /// Unwind entries that could not be read. There are none for new code.
    Frame,
}

impl Loss {
    /// What was lost, as part of a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Loss::Unit => "units that still describe old code",
            Loss::NoRoomForRanges => "scopes of which only the first interval is described",
            Loss::SharedIndex => "addresses by an index that others need for another address",
            Loss::AddressGone => "addresses of instructions that are gone",
            Loss::UnknownOperation => "expressions with unknown operations",
            Loss::IndexWithOffset => "addresses by index and offset",
            Loss::UnknownOffset => "offsets in unknown attributes",
            Loss::Index => "indexes that still describe old code",
            Loss::Frame => "sections of unwind entries (.debug_frame) without any for new code",
        }
    }
}

/// Counts of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Units.
    pub units: u64,
    /// Entries of all units.
    pub entries: u64,
    /// Entries that got an alternate abbreviation.
    pub alternates: u64,
    /// Range lists that were written.
    pub range_lists: u64,
    /// Location lists that were written.
    pub location_lists: u64,
    /// Line programs that were written.
    pub line_programs: u64,
    /// Rows for new code.
    pub rows: u64,
    /// What was lost, and how often. What is not listed did not happen.
    pub losses: BTreeMap<Loss, u64>,
    /// The first reason of losses that have one, as a sentence.
    pub reasons: Vec<String>,
}

impl Report {
    pub(crate) fn lose(&mut self, loss: Loss) {
        *self.losses.entry(loss).or_default() += 1;
    }

    /// How often something was lost.
    pub(crate) fn count(&self, loss: Loss) -> u64 {
        self.losses.get(&loss).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Report) {
        self.units += other.units;
        self.entries += other.entries;
        self.alternates += other.alternates;
        self.range_lists += other.range_lists;
        self.location_lists += other.location_lists;
        self.line_programs += other.line_programs;
        self.rows += other.rows;
        for (loss, count) in &other.losses {
            *self.losses.entry(*loss).or_default() += count;
        }
        self.reasons.extend_from_slice(&other.reasons);
    }
}

//! What should be small rather than fast: functions and blocks that never ran, or functions that are hardly called.
//!
//! A function that never ran is a candidate for `-Oz` (and for the outliner, with all it has). In one that
//! ran, blocks that did not are candidates for outlining; how large they are follows from where the next
//! block begins.

use crate::model::{Function, Profile};

/// What the profile says about a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// It never ran: compile it for size, let the outliner have all of it.
    NeverRan,
    /// It ran, but was hardly called: compile it for size, unless it has a loop that runs for long. No count
    /// says that it has.
    Rare,
    /// It ran, and some of its blocks never did: these can be moved out.
    ColdBlocks,
}

/// A function with something to gain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Index of the function.
    pub function: u32,
    /// Why.
    pub advice: Advice,
    /// Bytes that could be smaller: of the function, or of its cold blocks.
    pub bytes: u64,
    /// Offset and size of each run of blocks that never ran.
    pub cold: Vec<(u32, u32)>,
}

/// Looks for candidates, the largest first. A function that was called at most `rare` times a run on average
/// counts as hardly run; blocks of less than `least` bytes in a row are not worth a call.
pub fn candidates(profile: &Profile, rare: u64, least: u32) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = (0u32..)
        .zip(&profile.functions)
        .filter_map(|(index, function)| candidate(index, function, rare, least))
        .collect();
    found.sort_by_key(|candidate| (std::cmp::Reverse(candidate.bytes), candidate.function));
    found
}

fn candidate(index: u32, function: &Function, rare: u64, least: u32) -> Option<Candidate> {
    let mut candidate = Candidate {
        function: index,
        advice: Advice::NeverRan,
        bytes: function.size.into(),
        cold: Vec::new(),
    };
    if function.is_covered() {
        candidate.cold = cold_runs(function);
        candidate.cold.retain(|(_, size)| *size >= least);
        let calls = u128::from(rare) * u128::from(function.raw_count);
        // Function coverage counts no calls: there one means any number.
        if function.order_sum > 0 && u128::from(function.call_count) <= calls {
            candidate.advice = Advice::Rare;
        } else {
            candidate.advice = Advice::ColdBlocks;
            candidate.bytes = candidate
                .cold
                .iter()
                .map(|(_, size)| u64::from(*size))
                .sum();
        }
    }
    (candidate.bytes > 0).then_some(candidate)
}

/// Offset and size of each run of blocks that never ran, of a function that did.
pub fn cold_runs(function: &Function) -> Vec<(u32, u32)> {
    let mut blocks = function.all_blocks();
    // A block that vanished has offset 0, as the entry has.
    let mut first = true;
    blocks.retain(|block| std::mem::take(&mut first) || block.offset != 0);
    blocks.sort_by_key(|block| block.offset);
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (place, block) in blocks.iter().enumerate() {
        let end = blocks
            .get(place + 1)
            .map_or(function.size, |next| next.offset)
            .min(function.size);
        if block.covered || block.offset >= end {
            continue;
        }
        match runs.last_mut() {
            // Runs are disjoint and ascending, so the sum is below the function's size.
            Some((start, size)) if *start + *size == block.offset => *size = end - *start,
            _ => runs.push((block.offset, end - block.offset)),
        }
    }
    runs
}

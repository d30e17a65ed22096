//! What a layout asks of the instruction cache, estimated from counts in milliseconds.
//!
//! # The problem
//!
//! Orders of functions are chosen by scores (calls over short distances, density). An instruction cache knows
//! nothing of distances: 32 KiB in 64 sets of 8 lines miss as soon as nine lines of one set take turns. Layouts of
//! nearly the same score differ by a factor in misses, and which one is better is known only when it is tried. A
//! simulator that runs the program takes fifty times the time of the run. But a few stretches of the run can be
//! recorded once; and where they are not, counts are known, so a run can be made up.
//!
//! # The way
//!
//! ```text
//!  instructions that were recorded ──► Recorder ─────┐
//!  counts of blocks, ways, calls ──► CodeGraph ──► Trace (once, one or the other)
//!                                                    │
//!  addresses of blocks (a layout) ───────────────────┴──► Trace::judge ──► Estimate
//! ```
//!
//! 1. [`CodeGraph`]: blocks with counts, the ways between them, and calls at their offsets.
//! 2. [`Trace::walk`]: a random walk by the counts. It starts at blocks drawn by how often they ran; from there each
//!    way and each call is taken as often as it was. Calls are put on a stack and return. What returns without a
//!    caller on the stack, as its call is older than the walk, returns to one of its callers, drawn by their calls.
//!    So blocks come in the walk as often as in the run, and what runs close together in time does so in the walk.
//!    What is lost: how one choice depends on another, and the order of a program's phases (each of the walk's
//!    stretches begins elsewhere). The walk is over blocks, not addresses: it is made once, by a fixed seed, for all
//!    layouts.
//! 3. [`Trace::judge`]: a layout says where each block is. The walk's lines go through a cache of the usual kind
//!    ([`caches`]: 32 KiB, 8 ways, lines of 64 bytes, least recently used) and a translation buffer of 64 pages.
//!
//! Code outside of the program (libraries) is in the cache too. A recording knows its addresses, of which those within
//! a page decide which set it goes to. A walk does not: a call out of the program touches a line of a set drawn by
//! chance, another in each stretch, which takes space from all layouts alike.
//!
//! Each stretch of a recording is gone through twice, and misses of the second time count: the program does more of the
//! same, and lines that all layouts have to fetch once tell them apart no better than their number does. Stretches have
//! weights, with which they have together the counts of the run.
//!
//! # What comes out
//!
//! Misses of the walk, scaled to as many blocks as ran, and at least one for each line that any executed code is in.
//! The first part is what long runs pay, the second what short ones do. How well it ranks layouts against cachegrind is
//! measured by `cargo xtask bench frontend` and is in `bench/frontend.md`.

mod caches;
mod graph;
mod trace;
mod walk;

pub use graph::{Callee, CodeGraph, Site, Way};
pub use trace::{Estimate, Place, Recorder, Trace};
pub use walk::WalkSize;

/// Numbers that are spread well enough (SplitMix64, public domain, Sebastiano Vigna).
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below a bound; 0 if that is 0.
    fn below(&mut self, bound: u64) -> u64 {
        // The product's upper half: no division.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

//! Where code goes: orders of blocks and functions, and what is hot enough to stay together.
//!
//! Pure functions on weighted graphs. Nothing here knows of files, instructions or addresses: a
//! block is a size and a count, a function is a size and samples, and the result is a permutation.
//!
//! | module | decides | from |
//! |---|---|---|
//! | [`ext_tsp`] | the order of the blocks of a function | counts of jumps |
//! | [`split`] | which blocks stay in the hot part of a function | counts of blocks, jumps and calls |
//! | [`cdsort`], [`hfsort`] | the order of functions | a [`call_graph`] |
//! | [`padding`] | which functions begin at a cache line | an order, sizes and samples |
//! | [`partition`] | the order of functions at start-up | traces of first calls |
//! | [`front_end`] | nothing: what a layout asks of the instruction cache | addresses, and counts of blocks, ways and calls |
//!
//! # Invariants of all of them
//!
//! * Results are permutations (or cover their input otherwise); inputs that contradict themselves,
//!   numbers out of range and counts of any size give some result, never a panic.
//! * The same input gives the same output, whatever the order in which edges are listed.
//! * The time is at most a little more than linear for what real programs look like, and bounded
//!   for what they do not.

pub mod call_graph;
pub mod cdsort;
pub mod ext_tsp;
pub mod front_end;
mod heap;
pub mod hfsort;
mod links;
pub mod padding;
pub mod partition;
pub mod split;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

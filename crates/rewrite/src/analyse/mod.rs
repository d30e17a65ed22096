//! What is found out about a function before it is known how often it ran.
//!
//! | file | subject |
//! |---|---|
//! | [`entry`] | old entries where a jump to the new code fits |
//! | [`unwind`] | what the function's unwind tables say |
//! | [`probes`] | what can be put into its code |
//! | [`frequency`] | a guess of how often each block runs |
//! | [`loops`] | natural loops |
//! | [`predict`] | a guess of which way each branch goes |
//! | [`flow_graph`] | the function's flow as a graph, with what counting each edge costs |
//! | [`counters`] | where counters are put, and what they say |
//! | [`number`] | how many counters a function has, without its graph |
//! | [`coverage_blocks`] | the fewest blocks that show which blocks ran |
//! | [`biased`] | whether one thread can count without locks |
//! | [`per_thread`] | whether and how each thread can count by itself |
//! | [`uncovered`] | whether code that belongs to no function has anything against that |
//! | [`prepare`] | all of that for a function, and the map of counters of the program |
//! | [`stub_registers`] | indirect calls that pass something in registers of linkers' stubs |
//! | [`bolt_blocks`], [`hashes`] | blocks as BOLT sees them, and their hashes |
//! | [`table_order`] | where indirect jumps lead, in the order of their tables |

pub mod biased;
pub mod bolt_blocks;
pub mod counters;
pub mod coverage_blocks;
mod entry;
mod flow_graph;
pub mod frequency;
pub mod hashes;
mod loops;
pub(crate) mod number;
pub mod per_thread;
pub mod predict;
pub mod prepare;
mod probes;
pub mod stub_registers;
pub mod table_order;
mod uncovered;
mod unwind;

pub use entry::{EntryPatch, SecondaryEntry, put_entry};
pub use prepare::{Analysed, CounterMap, FunctionCounters, Scratch, count_pins};
pub use probes::{EdgeCounter, NodeCounter, Probes, Target, counter_place};
pub use unwind::{FunctionUnwind, PieceRows, Rows};

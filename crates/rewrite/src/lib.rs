//! The rewriter: from a linked file to an instrumented one or one that runs faster.
//!
//! ```text
//!  Elf ─► discover ─► Program ─► per function, in parallel:                        ─► link ─► Writer ─► file
//!         refs, nonlocal_exits            cfg ─► counters ─► (attach, passes, layout) ─► emit, unwind
//! ```
//!
//! One direction: a phase reads what the one before made and changes nothing in it. The old image keeps its bytes; new
//! code is put after it, and the old entry of a moved function jumps to the new one. A function that is not
//! understood stays where it is ([`Pin`] says why) and continues working, as does every unknown reference.

mod analyse;
pub mod attach;
mod cfg;
mod discover;
mod drivers;
mod emit;
mod entries;
mod error;
#[cfg(test)]
mod golden;
mod link;
mod passes;
mod phases;
mod pin;
mod report;

pub use analyse::bolt_blocks::BoltBlocks;
pub use analyse::hashes;
pub use cfg::{Cfg, Scratch as CfgScratch, build as build_cfg};
pub use discover::{NonlocalExits, Program, identity};
pub use drivers::coverage;
pub use drivers::instrument::{
    Counters, InstrumentOptions, InstrumentReport, instrument, prepare_instrumented,
};
pub use drivers::optimize::{
    Fitted, FunctionOrder, OptimizeOptions, OptimizeReport, Preset, fit, optimize,
};
pub use postlink_elf::write::Onto;

pub use cfg::{ExplainedJump, JumpOutcome, JumpReason};
pub use drivers::{Answer, OutputFile, Refusal, Rewriting, SearchReport, Tried};
pub use error::Error;
pub use link::debug::{
    CompressDebug, DebugFile, DebugFileError, DebugInfo, DebugReport, SplitContents, SplitData,
    package_ids, skeletons, update_debug_file,
};
pub use link::stress;
pub use passes::{
    Folding, FoldingReport, Inlining, PassOptions, PassReport, Plt, Promotion, Threading,
};
pub use phases::{Phases, did, expect, worked};
pub use pin::Pin;
pub use report::inspect::{Inspection, JumpOfFunction, inspect};
pub use report::{branches, counts, export, facts, judge, stats};

//! The control flow of a function.
//!
//! | file | subject |
//! |---|---|
//! | [`graph`] | blocks, edges, fields, tables |
//! | [`build`] | from a function's bytes to its graph, step by step |
//! | [`indirect`], [`targets`] | where indirect jumps go |
//! | [`own_tables`], [`own_bases`], [`values`] | jump tables of its own for new code: data flow over what registers hold |
//! | [`explained`] | which indirect jumps are not understood, and why |
//! | [`blocks`] | cutting instructions into blocks |
//! | [`exclusive`] | pairs of exclusive loads and stores |

mod blocks;
mod build;
mod exclusive;
mod explained;
mod graph;
mod indirect;
mod own_bases;
mod own_tables;
mod targets;
mod values;

pub use build::{Scratch, build, build_for_now};
pub use explained::{ExplainedJump, JumpOutcome, JumpReason, fall_backs, keeps};
pub use graph::*;
pub use own_bases::OwnBase;
pub use own_tables::{Fallback, OwnEntry, OwnTable, Restored};

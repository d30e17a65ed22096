//! The control flow of a function.
//!
//! | file | subject |
//! |---|---|
//! | [`graph`] | blocks, edges, fields, tables |
//! | [`build`] | from a function's bytes to its graph, step by step |
//! | [`indirect`], [`targets`] | where indirect jumps go |
//! | [`blocks`] | cutting instructions into blocks |
//! | [`exclusive`] | pairs of exclusive loads and stores |

mod blocks;
mod build;
mod exclusive;
mod graph;
mod indirect;
mod targets;

pub use build::{Scratch, build};
pub use graph::*;

//! The three jobs, each from a file to a file.
//!
//! | file | job |
//! |---|---|
//! | [`instrument`] | count edges, for a profile |
//! | [`coverage`] | count entries or blocks, for a machine profile |
//! | [`optimize`] | order code by a profile, as [`layout`] says, the best of several layouts, as [`search`] does; [`entered`] says what stays |
//!
//! Each is a [`Rewriting`]: what a checker refuses of the output is taken back, and only what depends on it
//! is done again.

pub mod coverage;
mod entered;
pub mod instrument;
mod layout;
pub mod optimize;
mod rewriting;
mod search;

pub use rewriting::{Answer, OutputFile, Refusal, Rewriting};
pub use search::{SearchReport, Tried};

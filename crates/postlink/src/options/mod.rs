//! Groups of options that more than one command has: one type, one file for each.

mod instrumenting;
mod optimizing;

pub use instrumenting::Instrumenting;
pub use optimizing::Optimizing;

//! Groups of options that more than one command has: one type, one file for each.

mod branches;
mod instrumenting;
mod naming;
mod optimizing;
mod relocations;

pub use instrumenting::Instrumenting;
pub use naming::Naming;
pub use optimizing::{CompressDebugArg, Optimizing};
pub use relocations::{Reading, Relocations};

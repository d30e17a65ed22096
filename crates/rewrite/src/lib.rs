//! The rewriter: from a linked file to one that counts or one that runs faster.
//!
//! ```text
//!  Elf ─► discover ─► Program ─► per function, in parallel:                        ─► link ─► Writer ─► file
//!         refs, leaks            cfg ─► counters ─► (attach, layout) ─► emit, unwind
//! ```
//!
//! One direction: a phase reads what the one before made and changes nothing in it. The old image keeps its bytes; new
//! code is put behind it, and the old entry of a moved function jumps to the new one. A function that is not
//! understood stays where it is ([`Pin`] says why) and goes on working, as does every reference that nobody knew of.

pub mod attach;
pub mod bat;
pub mod bolt_blocks;
pub mod cfg;
pub mod counters;
pub mod counts;
pub mod coverage;
pub mod coverage_blocks;
pub mod discover;
pub mod emit;
pub mod entries;
pub mod entries_frames;
pub mod entries_overwritten;
pub mod export;
pub mod frequency;
pub mod hashes;
pub mod inspect;
pub mod instrument;
pub mod judge;
pub mod leaks;
pub mod library;
pub mod link;
pub mod names;
pub mod optimize;
pub mod per_thread;
pub mod phases;
pub mod pin;
pub mod prepare;
pub mod refs;
pub mod runtimes;
pub mod stats;
pub mod stress;
pub mod unwind;
mod veneers;
pub mod visible;

pub use inspect::{Inspection, inspect};
pub use instrument::{Counters, InstrumentOptions, InstrumentReport, instrument};
pub use optimize::{FunctionOrder, OptimizeOptions, OptimizeReport, Preset, optimize};

pub use phases::Phases;
pub use pin::Pin;

use postlink_image::FormatError;
use postlink_image::write::WriteError;

/// Why a file could not be rewritten.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is not as it should be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The output could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An address does not fit.
    #[error("in {function}: {source}")]
    Reach {
        /// Function.
        function: String,
        /// What does not fit.
        source: postlink_isa::OutOfRange,
    },
    /// The start-up routine could not be built.
    #[error(transparent)]
    Runtime(#[from] postlink_isa::RuntimeError),
    /// The profile belongs to something else, or says nothing.
    #[error("{0}")]
    Profile(String),
    /// The file is of a kind that cannot be rewritten; the sentence says what to do.
    #[error("{0}")]
    Unsupported(String),
    /// A broken invariant of ours: reported, never a panic.
    #[error("internal error: {0} (please report this)")]
    Internal(String),
}

impl Error {
    pub(crate) fn internal(what: impl Into<String>) -> Error {
        Error::Internal(what.into())
    }
}

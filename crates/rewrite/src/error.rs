//! Why a file could not be rewritten.

use postlink_elf::FormatError;
use postlink_elf::write::WriteError;

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

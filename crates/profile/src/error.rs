//! What can be wrong with a profile, in sentences: the file, the place in it, what was expected and what was found.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Where in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Offset in bytes from the start of the file.
    Byte(u64),
    /// Line of a text file, from 1.
    Line(u64),
    /// The file as a whole.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Byte(at) => write!(f, " at offset {at:#x}"),
            Place::Line(line) => write!(f, ":{line}"),
            Place::Whole => Ok(()),
        }
    }
}

/// Why a profile could not be read, merged or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb: "read", "rename to …".
        doing: String,
        /// Its answer.
        source: io::Error,
    },

    /// A raw profile whose program has not got as far as counting: an empty file or one with an all-zero header.
    #[error(
        "{}: nothing recorded yet (the header is empty: the instrumented program has not started up, or was killed while it did)",
        path.display()
    )]
    NothingRecorded {
        /// The file.
        path: PathBuf,
    },

    /// The file ends too early.
    #[error("{}: cut short: {what} needs {expected} bytes, the file has {found}", path.display())]
    CutShort {
        /// The file.
        path: PathBuf,
        /// The part that is not all there.
        what: String,
        /// Size that the file must have at least.
        expected: u64,
        /// Size that it has.
        found: u64,
    },

    /// The contents are wrong.
    #[error("{}{place}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// What was expected and what is there.
        what: String,
    },

    /// Two profiles that do not belong together.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),

    /// There is nothing to merge.
    #[error("no profile with counts among {count} input files")]
    NoInputs {
        /// How many files were looked at.
        count: usize,
    },

    /// A command-line spelling that is not `file` or `file:weight`.
    #[error("{text:?}: {why}")]
    Argument {
        /// As given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
}

/// What two profiles that should be merged disagree about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} and {} cannot be merged: {what} {a} in the first, {b} in the second{hint}", first.display(), second.display())]
pub struct Mismatch {
    /// One file.
    pub first: PathBuf,
    /// The other file.
    pub second: PathBuf,
    /// What they disagree about.
    pub what: &'static str,
    /// Its value in the first.
    pub a: String,
    /// Its value in the second.
    pub b: String,
    /// What is after it or what the user can do, starting with punctuation; may be empty.
    pub hint: &'static str,
}

impl Error {
    pub(crate) fn io(path: &Path, doing: impl Into<String>, source: io::Error) -> Error {
        Error::Io {
            path: path.to_owned(),
            doing: doing.into(),
            source,
        }
    }

    pub(crate) fn at_byte(path: &Path, at: u64, what: impl Into<String>) -> Error {
        Error::Format {
            path: path.to_owned(),
            place: Place::Byte(at),
            what: what.into(),
        }
    }
}

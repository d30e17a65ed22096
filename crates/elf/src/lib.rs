//! The file around the code: ELF structures ([`raw`]), reading ([`elf`]) and writing ([`mod@write`]), unwind
//! tables ([`unwind`]) the notes that postlink leaves in its outputs ([`note`], [`moves`]) and address
//! translation tables ([`bat`]). Knows nothing of instructions.

mod addr;
pub mod bat;
pub mod compressed;
pub mod debug_file;
pub mod elf;
mod leb128;
pub mod moves;
pub mod names;
pub mod note;
pub mod package;
pub mod probes;
pub mod raw;
pub mod unwind;
pub mod write;

pub use addr::{InputAddr, InputOffset, OutputAddr, OutputOffset};
pub use postlink_bytes::hex;

/// What is wrong with a file, in a sentence that names the place and the values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct FormatError {
    /// The sentence, without the file's name (the caller knows it).
    pub what: String,
}

impl FormatError {
    /// From a sentence.
    pub fn new(what: impl Into<String>) -> Self {
        FormatError { what: what.into() }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The file around the code: ELF structures ([`raw`]), reading ([`elf`]) and writing ([`mod@write`]), unwind
//! tables ([`unwind`]) the notes that postlink leaves in its outputs ([`note`], [`moves`]), address
//! translation tables ([`bat`]) and compilers' maps of basic blocks ([`bb_addr_map`]). Knows nothing of instructions.

mod addr;
pub mod bat;
pub mod bb_addr_map;
pub mod callers;
pub mod compressed;
pub mod debug_file;
pub mod elf;
mod error;
mod leb128;
pub mod memory;
pub mod moves;
pub mod names;
pub mod note;
pub mod package;
pub mod probes;
pub mod raw;
pub mod unwind;
pub mod write;

pub use addr::{InputAddr, InputOffset, OutputAddr, OutputOffset};
pub use error::{ErrorKind, FormatError, Place, Value};
pub use postlink_bytes::hex;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! From samples to sample profiles, as compilers read them for profile-guided optimisation: what `llvm-profgen` does.
//!
//! ```text
//!  .pseudo_probe_desc, .pseudo_probe ──► probe::Probes ─┐
//!                                                       ├──► functions, contexts, counts
//!  branch stacks ──► ranges and branches of addresses ──┘
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`accesses`] | samples of reads of data: virtual tables |
//! | [`context`] | from counters by chain of callers to context-sensitive profiles |
//! | [`context_key`] | chains of callers as keys |
//! | [`counters`] | runs and branches, and raw profiles |
//! | [`disasm`] | code as text, with its probes and source locations |
//! | [`discriminator`] | what compilers put into the discriminators of line tables |
//! | [`dwarf`] | addresses to source locations, through inlining |
//! | [`flat`] | from counters to flat profiles |
//! | [`fn@generate`] | everything in a row: from a binary and samples to a profile |
//! | [`guid`] | functions by the hash of their name |
//! | [`in_order`] | text that is made by many threads and written in its order |
//! | [`machine`] | what an instruction does to control |
//! | [`names`] | the name of the source function after a symbol |
//! | [`pe`] | Windows programs |
//! | [`probe`] | pseudo probes: which block or call of which source function is at an address |
//! | [`program`] | where instructions and functions are |
//! | [`sample`] | sample profiles: model, text, binary forms |
//! | [`script`] | samples as text |
//! | [`spread`] | from a sample profile back to code: how often each instruction ran |
//! | [`stack`] | a sample: branch stack and call chain |
//! | [`tally`] | samples added up: branch stacks and call chains to counters |
//! | `testing` (feature of this name) | made-up samples for tests and measurements |
//!
//! Nothing here panics, whatever the bytes: what a section says about its own size is believed only as far as
//! the section has bytes to back it.

#![deny(clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, reason = "a test that fails may panic")
)]

mod accesses;
mod context;
mod context_key;
mod counters;
mod disasm;
mod discriminator;
pub mod dwarf;
mod flat;
mod generate;
mod guid;
mod in_order;
mod machine;
mod names;
pub mod pe;
pub mod probe;
mod program;
pub mod sample;
mod script;
mod spread;
mod stack;
mod tally;
pub mod testing;

pub use accesses::Accesses;
pub use context::preinline;
pub use context_key::ContextLimits;
pub use counters::{Counters, read_raw_counters};
pub use disasm::Listing;
pub use generate::{Format, Input, Options, Report, generate};
pub use guid::Guid;
pub use machine::{EM_AARCH64, EM_X86_64, Machine};
pub use postlink_elf::{ErrorKind, FormatError};
pub use program::{EXTERNAL, Program};
pub use script::Options as ScriptOptions;
pub use spread::spread;

/// The beginning of a line, for a message.
fn beginning(line: &[u8]) -> String {
    let (shown, _) = line.split_at(line.len().min(100));
    String::from_utf8_lossy(shown).into_owned()
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

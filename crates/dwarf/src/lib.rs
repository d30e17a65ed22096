//! DWARF 2 to 5, updated in place after functions have moved and split.
//!
//! # Problem
//!
//! A tool that moves code in a linked program leaves its debug information speaking of where code was.
//! Reading all of it into a tree and writing it again is slow and takes many times its size in memory, and
//! every offset into it (references between entries, indexes by name, package files) has to be remade.
//!
//! # Idea
//!
//! **No entry moves.** What an entry cannot say with its abbreviation (a function in two ranges) it says with
//! another one of the same tag whose attributes take the same bytes (`abbrev`). So `.debug_info` keeps its
//! length, and every offset into it stays true. Lists and line programs grow, in sections that are referred
//! to by fields of fixed size alone, which are patched.
//!
//! | section | what happens |
//! |---|---|
//! | `.debug_info`, `.debug_types` | addresses, lengths and offsets are patched; scopes of several intervals get another abbreviation |
//! | `.debug_abbrev` | alternate declarations are inserted in front of each table's end |
//! | `.debug_ranges`, `.debug_rnglists`, `.debug_loc`, `.debug_loclists` | new lists after the old ones of each unit |
//! | `.debug_addr` | entries change, or are appended where users of one entry want different values |
//! | `.debug_line` | sequences with moved code are run, cut and encoded again |
//! | `.debug_aranges`, `.gdb_index` | units gain their new code |
//! | `.debug_frame` | entries for new code are appended |
//! | `.debug_macro` | offsets of line programs |
//! | all others | no addresses: they stay |
//!
//! Units whose entries are in files of their own are updated together with these ([`split`]).
//!
//! Where code is now is told by an [`AddressMap`]. This crate knows nothing of instructions, nor of ELF: it
//! takes the contents of [`Sections`] and gives back [`Changes`].
//!
//! # What is described
//!
//! New code alone. A copy of a function whose entry is a jump now is no place for breakpoints, so old bodies
//! have no rows and no scopes any more, but for one row at each entry jump. Units keep their old bodies, and
//! gain their new code.
//!
//! # Invariants
//!
//! * Entries keep their offsets, and every section but those above its bytes.
//! * The same sections and the same map give the same bytes, at any number of threads.
//! * No panic on any input. A unit that cannot be understood keeps its bytes, and all that it leads to stays where
//!   it is ([`splice`]); it goes on describing old code, and is counted with an [`Error`] that says where and why.
//! * What an entry cannot say is counted ([`Loss`]), and never said wrongly where it can be left out.
//!
//! # Example
//!
//! ```
//! use postlink_dwarf::{AddressMap, MapParts, Run, Sections, update};
//!
//! // A function of 16 bytes whose second half went elsewhere.
//! let run = |old, new| Run { old, old_len: 8, new, new_len: 8, tail: 0 };
//! let map = AddressMap::new(MapParts {
//!     bodies: vec![0x1000..0x1010],
//!     runs: vec![run(0x1000, 0x5000), run(0x1008, 0x6000)],
//!     executable: vec![0x1000..0x2000],
//!     ..MapParts::default()
//! })?;
//! assert_eq!(map.interval(&(0x1000..0x1010)), [0x5000..0x5008, 0x6000..0x6008]);
//!
//! let sections = Sections::load(|_name| None); // the contents of each section, by its name
//! let update = update(&sections, &map)?;
//! for (section, splices) in update.changes.sections() {
//!     let _new = splices.apply(sections.get(section));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, reason = "a test that fails may panic")
)]

mod abbrev;
mod ascending;
mod by_index;
mod contribution;
mod expression;
mod finish;
mod forms;
mod frame;
mod index;
mod line;
mod lists;
mod map;
mod names;
mod order;
mod pool;
mod progress;
mod read;
mod report;
mod sections;
mod splice;
pub mod split;
mod unit;
mod update;
mod walk;

pub use map::{Added, AddressMap, EntryBlock, MapError, MapParts, Run};
pub use progress::worked;
pub use report::{Loss, Report};
pub use sections::{Changes, Memory, Section, Sections};
pub use splice::Splices;
pub use split::SplitFile;
pub use unit::Stale;
pub use update::{Update, update, update_in_parts, update_split};

/// What is wrong with debug information, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{section} at {offset:#x}: {what}")]
pub struct Error {
    /// Name of the section.
    pub section: &'static str,
    /// Offset in it.
    pub offset: u64,
    /// A sentence without its full stop.
    pub what: String,
}

impl Error {
    pub(crate) fn new(section: &'static str, offset: u64, what: impl Into<String>) -> Self {
        Error {
            section,
            offset,
            what: what.into(),
        }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

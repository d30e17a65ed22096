//! Range lists and location lists.
//!
//! | section | versions | an entry |
//! |---|---|---|
//! | `.debug_ranges` | 2–4 | two addresses relative to a base; (highest, base) sets the base; (0, 0) ends |
//! | `.debug_loc` | 2–4 | the same, and after each pair a length of two bytes and an expression |
//! | `.debug_rnglists` | 5 | a kind ([`kind`]) and operands |
//! | `.debug_loclists` | 5 | the same, and after all but bases a length in ULEB128 and an expression |
//!
//! A list of DWARF 5 is in a *contribution*: a header, a table of offsets by index, the lists
//! ([`crate::contribution`]). GCC tells entries at one address apart by *views*, pairs of numbers in front of
//! a location list, one pair for each entry.
//!
//! Lists are read into intervals of old code, mapped, and rewritten where a piece of moved code is in
//! them; others stay as they are. Written is what is shortest of: a start and a length for each entry; a base
//! for several entries and offsets to it.

mod read;
mod write;

pub(crate) use read::{each_location, read_locations, read_ranges};
pub(crate) use write::{INDEX, put_locations, put_ranges, put_split_location, put_views};

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use crate::forms::Encoding;
use crate::pool::Pool;

/// Kinds of entries in DWARF 5 (`DW_LLE_…`; those of range lists have no default location, which shifts the
/// last three).
pub(crate) mod kind {
    pub const END_OF_LIST: u8 = 0;
    pub const BASE_ADDRESSX: u8 = 1;
    pub const STARTX_ENDX: u8 = 2;
    pub const STARTX_LENGTH: u8 = 3;
    pub const OFFSET_PAIR: u8 = 4;
    /// Of location lists.
    pub const DEFAULT_LOCATION: u8 = 5;
    pub const LOC_BASE_ADDRESS: u8 = 6;
    pub const LOC_START_END: u8 = 7;
    pub const LOC_START_LENGTH: u8 = 8;
    pub const GNU_VIEW_PAIR: u8 = 9;
    /// Of range lists.
    pub const RNG_BASE_ADDRESS: u8 = 5;
    pub const RNG_START_END: u8 = 6;
    pub const RNG_START_LENGTH: u8 = 7;
}

/// Where a list is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'d> {
    /// The section.
    pub section: &'d [u8],
    /// Its name.
    pub name: &'static str,
    pub encoding: Encoding,
    /// What relative entries are relative to at first.
    pub base: u64,
    pub pool: Pool<'d>,
    /// It is in a file of split units.
    pub is_split: bool,
}

/// Indexes of the pool that a list uses.
pub(crate) type Indexes = SmallVec<[u64; 4]>;

/// What was read of a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct List<T> {
    pub entries: Vec<T>,
    pub indexes: Indexes,
}

impl<T> List<T> {
    /// Makes place for another one.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.indexes.clear();
    }
}

/// Views at both ends of an entry's interval.
pub(crate) type Views = (u64, u64);

/// An entry of a location list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location<'d> {
    /// Where it holds; `None` for the default.
    pub range: Option<Range<u64>>,
    pub expression: Cow<'d, [u8]>,
    pub views: Views,
}

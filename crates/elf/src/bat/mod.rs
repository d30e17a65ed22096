//! `.note.bolt_bat`: BOLT Address Translation. It tells where in the *input* binary the code of an optimised
//! one came from, so that a profile taken on the optimised binary can be turned into one of the input.
//!
//! A function that was rewritten has a table of *entries*, each of which says which input offset is at an
//! output offset. A *block entry* is the beginning of a basic block of the input's control flow; it carries
//! the block's number there and a hash of its contents. A *branch entry* is one instruction (a branch, a
//! call, the last one of a block) whose address must translate exactly. A function that was split has a *hot*
//! table at its entry and a *cold* one for each other part, which names the hot one as its parent. Code
//! without a table is as it was in the input.
//!
//! # Layout
//!
//! The section is a note that is not loaded, aligned to 1: u32 5, u32 length of the payload, u32 1, `BOLT`
//! and four zero bytes, the payload, zeroes up to a multiple of 4. Fixed-size numbers are little-endian, the
//! others LEB128, signed where stated. There is no version; this is the layout that BOLT 19 to 22 write.
//! Differences are modulo 2^64. One running `address`, 0 at first, goes through all output addresses, the
//! starts of tables and those of entries, from the first hot table to the last cold one.
//!
//! | payload | |
//! |---|---|
//! | number of hot tables | then those, by ascending address |
//! | number of cold tables | then those, by ascending address |
//!
//! | table | in | |
//! |---|---|---|
//! | start | both | less `address` |
//! | hash of the input function | hot | 8 bytes |
//! | number of blocks of the input function | hot | |
//! | number of other entry points | hot | |
//! | parent | cold | its number among the hot tables, less that of the cold table before (0 at first) |
//! | skew | cold | input offset of the first entry |
//! | number of entries | both | |
//! | number of *equal* ones | both | leading entries whose output offset is the input offset less the skew (0 if hot), in 32 bits |
//! | which of the equal ones are branches | both | a bit each, lowest first, in whole bytes |
//! | entries | both | by ascending output offset; equal ones keep their order |
//! | other entry points | hot | input offsets, each less the one before |
//!
//! | entry | for | |
//! |---|---|---|
//! | output address | all | less `address` |
//! | input | not for equal ones | signed: twice the input offset, plus 1 for a branch; less that of the entry before (0 at first) |
//! | hash of the block | blocks | 8 bytes |
//! | number of the block | blocks | less that of the block entry before (0 at first) |
//!
//! Offsets are below 2^32 in the output and below 2^31 in the input. Blocks that the optimiser deleted are
//! block entries at the end of the hot table, with the output function's size for their output offset: no
//! address translates to them, but profiles name them.
//!
//! # Invariants
//!
//! [`Bat`] holds what the tables say, in their order, and [`Bat::encode`] gives back the bytes that BOLT
//! writes for it. Starts ascend in the hot and in the cold tables; output offsets do not descend in a table.
//! Everything else, a parent that does not exist included, is for [`Translator`] to judge.
//!
//! # Broken sections
//!
//! * BOLT 19 counts hot *and* cold tables when it numbers parents: wrong if a cold part is below some hot
//!   one. [`parents`] finds out.
//! * BOLT 18 and earlier have other layouts. [`Bat::parse`] recognises them and says so.

mod decode;
mod encode;
pub mod parents;
mod translate;

pub use translate::{Block, FragmentId, Translator};

use std::ops::Range;

use crate::elf::Elf;
use crate::{ErrorKind, FormatError};

/// Name of the section.
pub const SECTION: &str = ".note.bolt_bat";
/// Alignment of the section.
pub const ALIGN: u64 = 1;

const OWNER: &[u8] = b"BOLT";
const TYPE: u32 = 1;
/// Where the payload begins.
const PAYLOAD: usize = 20;

/// What is at an output offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A basic block begins.
    Block {
        /// Its number in the input function, in the order of input addresses.
        index: u32,
        /// Hash of what is in it.
        hash: u64,
    },
    /// An instruction that translates exactly.
    Branch,
}

/// An entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Offset in the output fragment.
    pub output: u32,
    /// Offset in the input function; below 2^31.
    pub input: u32,
    /// What is there.
    pub kind: EntryKind,
}

impl Entry {
    /// Whether it is an instruction, not a block.
    pub fn is_branch(&self) -> bool {
        self.kind == EntryKind::Branch
    }
    /// The input offset and the kind in one number, as the section has it.
    fn value(&self) -> u32 {
        self.input << 1 | u32::from(self.is_branch())
    }
}

/// A function, or the hot part of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hot {
    /// Output address.
    pub start: u64,
    /// Hash of the input function.
    pub hash: u64,
    /// Number of blocks that the input function has.
    pub blocks: u64,
    entries: Range<u32>,
    secondary: Range<u32>,
}

/// Another part of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cold {
    /// Output address.
    pub start: u64,
    /// The parent's number among the hot tables, as the section says. See [`parents`].
    pub parent: u64,
    entries: Range<u32>,
}

/// The section's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bat {
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    /// Entries of all tables, one after the other.
    entries: Vec<Entry>,
    /// Other entry points of all hot tables, one after the other.
    secondary: Vec<u32>,
}

impl Bat {
    /// The section of a file; `None` if it has none, an error if that cannot be read.
    pub fn read(elf: &Elf<'_>) -> Result<Option<Bat>, FormatError> {
        match elf.section(SECTION) {
            Some((_, section)) => Bat::parse(elf.section_data(section)).map(Some),
            None => Ok(None),
        }
    }

    /// Adds a hot table. They must be added by ascending start, entries by ascending output offset, entry points
    /// ascending and without the function's start: an error says which do not.
    pub fn push_hot(
        &mut self,
        start: u64,
        hash: u64,
        blocks: u64,
        entries: impl IntoIterator<Item = Entry>,
        secondary: &[u32],
    ) -> Result<(), FormatError> {
        ascends("hot", self.hot.last().map(|t| t.start), start)?;
        let entries = self.push_entries(start, entries)?;
        let from = self.secondary.len();
        self.secondary.extend_from_slice(secondary);
        if let Some(pair) = self.secondary[from..].windows(2).find(|p| p[0] >= p[1]) {
            return Err(FormatError::new(format!(
                "{SECTION}: in the function at {start:#x} the entry point {:#x} follows {:#x}: they must ascend",
                pair[1], pair[0]
            ))
            .of(ErrorKind::Order)
            .at_address(start)
            .values(pair[1], pair[0]));
        }
        let secondary = range(from, self.secondary.len())?;
        self.hot.push(Hot {
            start,
            hash,
            blocks,
            entries,
            secondary,
        });
        Ok(())
    }

    /// Adds a cold table, as [`Bat::push_hot`]. `parent` is the number of a hot table.
    pub fn push_cold(
        &mut self,
        start: u64,
        parent: u32,
        entries: impl IntoIterator<Item = Entry>,
    ) -> Result<(), FormatError> {
        ascends("cold", self.cold.last().map(|t| t.start), start)?;
        let entries = self.push_entries(start, entries)?;
        self.cold.push(Cold {
            start,
            parent: parent.into(),
            entries,
        });
        Ok(())
    }

    fn push_entries(
        &mut self,
        start: u64,
        entries: impl IntoIterator<Item = Entry>,
    ) -> Result<Range<u32>, FormatError> {
        let from = self.entries.len();
        self.entries.extend(entries);
        let added = &self.entries[from..];
        if let Some(pair) = added.windows(2).find(|p| p[0].output > p[1].output) {
            return Err(FormatError::new(format!(
                "{SECTION}: in the table at {start:#x} the output offset {:#x} follows {:#x}: they must not descend",
                pair[1].output, pair[0].output
            ))
            .of(ErrorKind::Order)
            .at_address(start)
            .values(pair[1].output, pair[0].output));
        }
        if let Some(e) = added.iter().find(|e| e.input >= 1 << 31) {
            return Err(FormatError::new(format!(
                "{SECTION}: in the table at {start:#x} the input offset {:#x} does not fit 31 bits",
                e.input
            ))
            .of(ErrorKind::TooLarge)
            .at_address(start)
            .values(e.input, i32::MAX));
        }
        range(from, self.entries.len())
    }

    /// Hot tables, by ascending start.
    pub fn hot(&self) -> &[Hot] {
        &self.hot
    }
    /// Cold tables, by ascending start.
    pub fn cold(&self) -> &[Cold] {
        &self.cold
    }
    /// Entries of a hot table, which must be one of this `Bat`.
    pub fn hot_entries(&self, table: &Hot) -> &[Entry] {
        self.slice(&table.entries)
    }
    /// Entries of a cold table, which must be one of this `Bat`.
    pub fn cold_entries(&self, table: &Cold) -> &[Entry] {
        self.slice(&table.entries)
    }
    /// Input offsets of a function's entry points besides its start.
    pub fn secondary(&self, table: &Hot) -> &[u32] {
        self.secondary
            .get(table.secondary.start as usize..table.secondary.end as usize)
            .unwrap_or_default()
    }
    /// Number of entries in all tables.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether there is no table.
    pub fn is_empty(&self) -> bool {
        self.hot.is_empty() && self.cold.is_empty()
    }

    fn slice(&self, range: &Range<u32>) -> &[Entry] {
        self.entries
            .get(range.start as usize..range.end as usize)
            .unwrap_or_default()
    }
}

fn ascends(what: &str, before: Option<u64>, start: u64) -> Result<(), FormatError> {
    match before {
        Some(before) if before >= start => Err(FormatError::new(format!(
            "{SECTION}: the {what} table at {start:#x} follows the one at {before:#x}: they must ascend"
        ))
        .of(ErrorKind::Order)
        .at_address(start)
        .values(start, before)),
        _ => Ok(()),
    }
}

fn range(from: usize, to: usize) -> Result<Range<u32>, FormatError> {
    let fits = |x: usize| {
        u32::try_from(x).map_err(|_| {
            FormatError::new(format!(
                "{SECTION}: {x} entries are more than the 4294967295 that are supported"
            ))
            .of(ErrorKind::TooLarge)
            .values(x, u32::MAX)
        })
    };
    Ok(fits(from)?..fits(to)?)
}

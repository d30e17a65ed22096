//! The seam for address translation: profiles taken on a binary that BOLT or postlink has optimised, told in
//! terms of the binary that went in.
//!
//! An optimised binary can carry a table that says where each piece of code came from (section
//! `.note.bolt_bat`). Aggregation finds functions by the symbols of the binary that ran, and asks
//! [`Translate`] for everything after that; without a table it disassembles instead.
//!
//! Functions are named by their start in the binary that ran; a part that was split off has a start of its own.

use std::fmt::Debug;

use postlink_elf::elf::Elf;

use crate::bat::Tables;
use postlink_elf::FormatError;

/// Translation of places in a binary that ran to places in the binary it was made from.
pub trait Translate: Debug + Send + Sync {
    /// The function whose cold part starts here: where its main part starts in the binary that ran.
    fn parent(&self, function: u64) -> Option<u64>;

    /// The offset in the input function that an offset in a function or part came from. Code without an entry
    /// in the table stays what it is. `is_branch`: a branch instruction is wanted, not the start of what
    /// runs; then the answer is exact.
    fn input_offset(&self, function: u64, offset: u64, is_branch: bool) -> u64;

    /// Whether there is a table for a function or part. Code without one is what it was in the input.
    fn knows(&self, function: u64) -> bool;

    /// Calls `each` with the fall-throughs of a run: from and to, as offsets in the input function; `from`
    /// and `to` are offsets in the function or part that ran. There are none without a table for it.
    fn fall_throughs(&self, function: u64, from: u64, to: u64, each: &mut dyn FnMut(u64, u64));

    /// The block that an offset in a function or part belongs to: its offset in the input function. `None` if
    /// there is no table for it.
    fn block_at(&self, function: u64, offset: u64) -> Option<u64>;

    /// What the table says of the blocks of the input function whose main part starts here, for profiles by blocks.
    fn shape(&self, function: u64) -> Option<Shape>;

    /// What is odd about the tables, in sentences.
    fn remarks(&self) -> &[String] {
        &[]
    }
}

/// The blocks of a function as a profile by blocks needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Hash of the function.
    pub hash: u64,
    /// How many blocks its flow graph has.
    pub count: u32,
    /// Blocks by offset, ascending.
    pub blocks: Vec<ShapeBlock>,
    /// Offsets of further entries, ascending.
    pub entries: Vec<u64>,
}

/// A block in a [`Shape`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeBlock {
    /// Offset in the function.
    pub start: u64,
    /// Its number.
    pub index: u32,
    /// Its hash.
    pub hash: u64,
    /// Instructions; 0 if not known.
    pub instructions: u32,
}

/// The translation table of a binary, if it has one.
pub fn of<'d>(elf: &Elf<'d>) -> Result<Option<Box<dyn Translate + 'd>>, FormatError> {
    Ok(Tables::read(elf)?.map(|tables| Box::new(tables) as Box<dyn Translate>))
}

/// Whether a binary has such a table.
pub fn is_translated(elf: &Elf<'_>) -> Result<bool, FormatError> {
    Ok(Tables::read(elf)?.is_some())
}

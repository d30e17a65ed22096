//! ELF writing: the input's bytes, patched in places, with new segments behind them.
//!
//! The old image keeps its addresses. New sections go to one new read-execute segment behind it (and, for counters,
//! one zero-filled read-write segment). The program header table grows where it is: the sections that stand in its way
//! are moved to the new segment. Kept relocations are dropped from the output: they no longer describe it.

use std::path::Path;

use crate::FormatError;
use crate::elf::{Elf, SymbolTable};

/// A section to be appended.
#[derive(Clone, Debug)]
pub struct NewSection {
    /// Name.
    pub name: String,
    /// What it is.
    pub kind: NewKind,
    /// Power of two.
    pub align: u64,
    /// Bytes.
    pub size: u64,
}

/// Kinds of new sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind {
    /// SHF_ALLOC | SHF_EXECINSTR.
    Code,
    /// SHF_ALLOC, not writable.
    ReadOnly,
    /// Not loaded, SHT_NOTE: contents are whole ELF notes.
    Note,
}

/// A section that has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Handle for contents and for symbols that are defined in it.
    pub id: NewId,
    /// Link-time address (0 for notes).
    pub addr: u64,
}

/// Handle of a new section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NewId(pub u32);

/// Which section a symbol lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSection {
    /// As in the input.
    Old(u32),
    /// A new one.
    New(NewId),
}

/// What may change in a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolEdit {
    /// New `st_value`.
    pub value: u64,
    /// New `st_size`.
    pub size: u64,
    /// New `st_shndx`.
    pub section: InSection,
}

/// A symbol to be added to `.symtab`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSymbol {
    /// Name.
    pub name: Vec<u8>,
    /// `st_value`
    pub value: u64,
    /// `st_size`
    pub size: u64,
    /// `st_info & 15`
    pub kind: u8,
    /// Local symbols are placed before the globals, after the local symbol `after` of the input if given.
    pub after: Option<u32>,
    /// Section.
    pub section: InSection,
}

/// What the file needs beside its sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// A zero-filled read-write segment will be asked for.
    pub zero_fill: bool,
}

/// A file being written.
#[derive(Debug)]
pub struct Writer<'d> {
    _elf: &'d Elf<'d>,
}

impl<'d> Writer<'d> {
    /// Begins: decides how the program header table grows and gives the sections that must make way their new place.
    pub fn new(_elf: &'d Elf<'d>, _options: WriteOptions) -> Result<Self, FormatError> {
        todo!()
    }
    /// Gives a new section its address, right behind the one before it. Contents are zero until set.
    pub fn append(&mut self, _section: NewSection) -> Placed {
        todo!()
    }
    /// Contents of a new section, `size` bytes.
    pub fn contents(&mut self, _id: NewId) -> &mut [u8] {
        todo!()
    }
    /// The zero-filled read-write section (page-aligned start, whole pages): only once, after all other loaded sections.
    pub fn append_zero_fill(&mut self, _name: &str, _size: u64) -> Placed {
        todo!()
    }
    /// Overwrites bytes of the old image. Error if they are not in the file or were patched before with other bytes.
    pub fn patch(&mut self, _addr: u64, _bytes: &[u8]) -> Result<(), FormatError> {
        todo!()
    }
    /// The old image's bytes with the patches so far, for the reader's convenience.
    pub fn set_entry(&mut self, _entry: u64) {
        todo!()
    }
    /// Changes the value of a dynamic tag that exists.
    pub fn set_dynamic(&mut self, _tag: i64, _value: u64) -> Result<(), FormatError> {
        todo!()
    }
    /// PT_GNU_EH_FRAME, and the section headers `.eh_frame_hdr` and `.eh_frame`, go to new sections of those names; the old ones stay
    /// loaded under the names `.eh_frame_hdr.old` and `.eh_frame.old`.
    pub fn replace_unwind(&mut self, _eh_frame: NewId, _eh_frame_hdr: NewId) {
        todo!()
    }
    /// Changes a symbol of the input by its index.
    pub fn edit_symbol(&mut self, _table: SymbolTable, _index: u32, _edit: SymbolEdit) {
        todo!()
    }
    /// Adds a symbol to `.symtab` (nothing happens in a stripped file).
    pub fn add_symbol(&mut self, _symbol: NewSymbol) {
        todo!()
    }
    /// Writes the file: to a temporary one beside `path`, renamed when complete, with the input's permissions (`mode`).
    pub fn write(self, _path: &Path, _mode: u32) -> Result<WriteSummary, WriteError> {
        todo!()
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSummary {
    /// File size.
    pub size: u64,
}

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    /// The file cannot be expressed.
    #[error(transparent)]
    Format(#[from] FormatError),
}

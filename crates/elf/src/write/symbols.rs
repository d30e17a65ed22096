//! The output's symbol tables.
//!
//! `.symtab` is rewritten on the way out: old symbols with their edits and with the section indexes of the
//! output, new ones between them. The gABI wants all local symbols before the first other one, and `sh_info`
//! to name that one. New symbols are local: each is after the local symbol that it belongs to, or after all
//! locals. Nothing but relocations and section groups refers to symbols by index; the former are dropped and
//! the latter told of their symbol's new index.
//!
//! `.dynsym` keeps its size and order, since hash and version tables know its symbols by index; it is patched in place.
//!
//! Indexes of 0xff00 and above do not fit `st_shndx`: the symbol says `SHN_XINDEX` and the real index is in a
//! table of words beside it.

use super::room::Block;
use super::sections::Indexes;
use super::{InSection, NewSymbol, SymbolEdit};
use crate::raw::{self, Sym};
use crate::{ErrorKind, FormatError};

/// What becomes of a symbol table.
pub(super) struct SymbolPlan<'a> {
    table: &'a [u8],
    extended: &'a [u8],
    /// Index of the first symbol of the input that is not local.
    first_global: u32,
    /// Edits by symbol index, ascending, one each.
    edits: &'a [(u32, SymbolEdit)],
    /// New symbols: (index of the old one to be after, the symbol), ascending.
    added: Vec<(u32, Sym, InSection)>,
    indexes: &'a Indexes,
    /// Sections that moved, and by how much their addresses grew.
    moved: Option<(&'a Block, u64)>,
    /// The loader reads it.
    dynamic: bool,
    /// Names of the new symbols, to follow the old string table.
    pub names: Vec<u8>,
}

impl<'a> SymbolPlan<'a> {
    /// Plans a table: `extended` is the input's table of full section indexes, `names_size` the size of its
    /// string table.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call; a struct would only rename them"
    )]
    pub fn new(
        table: &'a [u8],
        extended: &'a [u8],
        first_global: u32,
        edits: &'a [(u32, SymbolEdit)],
        new: &[NewSymbol],
        names: &[u8],
        indexes: &'a Indexes,
        moved: Option<(&'a Block, u64)>,
    ) -> Result<Self, FormatError> {
        let count = table.len() as u64 / raw::SYM;
        if u64::from(first_global) > count {
            return Err(FormatError::new(format!(
                "sh_info of the symbol table is {first_global}, but it has {count} symbols"
            ))
            .of(ErrorKind::Mismatch)
            .values(first_global, count));
        }
        let total = count + new.len() as u64;
        if total > u32::MAX.into() {
            return Err(FormatError::new(format!(
                "the symbol table would have {total} symbols; at most 4294967295 are possible"
            ))
            .of(ErrorKind::TooLarge)
            .values(total, u32::MAX));
        }
        let mut text = Vec::new();
        // A string table ends with a zero byte; one that does not would run into the first new name.
        if names.last().is_none_or(|b| *b != 0) {
            text.push(0);
        }
        let mut added = Vec::with_capacity(new.len());
        for s in new {
            let at = names.len() + text.len();
            let st_name = u32::try_from(at).map_err(|_| {
                FormatError::new(format!(
                    "the names of symbols would take {at} bytes; 4 GiB can be addressed"
                ))
                .of(ErrorKind::TooLarge)
                .values(at, u32::MAX)
            })?;
            text.extend(s.name.iter().copied().filter(|b| *b != 0));
            text.push(0);
            let symbol = Sym {
                st_name,
                st_info: raw::STB_LOCAL << 4 | s.kind & 15,
                st_other: 0,
                st_shndx: 0,
                st_value: s.value,
                st_size: s.size,
            };
            let last_local = first_global.saturating_sub(1);
            added.push((
                s.after.map_or(last_local, |after| after.min(last_local)),
                symbol,
                s.section,
            ));
        }
        added.sort_by_key(|(after, ..)| *after);
        if new.is_empty() {
            text.clear();
        }
        Ok(SymbolPlan {
            table,
            extended,
            first_global,
            edits,
            added,
            indexes,
            moved,
            dynamic: false,
            names: text,
        })
    }

    /// Plans the table that the loader reads, which keeps its size and order.
    pub fn dynamic(
        table: &'a [u8],
        edits: &'a [(u32, SymbolEdit)],
        indexes: &'a Indexes,
        moved: Option<(&'a Block, u64)>,
    ) -> Result<Self, FormatError> {
        let plan = Self::new(table, &[], 0, edits, &[], &[], indexes, moved)?;
        Ok(SymbolPlan {
            dynamic: true,
            ..plan
        })
    }

    fn old_count(&self) -> u32 {
        (self.table.len() as u64 / raw::SYM) as u32 // checked in `new`
    }
    fn count(&self) -> u64 {
        u64::from(self.old_count()) + self.added.len() as u64
    }
    /// Size of the new table.
    pub fn size(&self) -> u64 {
        self.count() * raw::SYM
    }
    /// Size of the new table of full section indexes.
    pub fn indexes_size(&self) -> u64 {
        self.count() * 4
    }
    /// `sh_info`: one more than the index of the last local symbol.
    pub fn locals(&self) -> u32 {
        self.first_global + self.added.len() as u32 // the total fits: checked in `new`
    }
    /// The output's index of an input symbol.
    pub fn new_index(&self, old: u32) -> u32 {
        old + self.added.partition_point(|(after, ..)| *after < old) as u32 // as above
    }

    /// The old symbol at an index as the output has it, with its full section index if that does not fit (else 0).
    pub fn old(&self, index: u32) -> Option<(Sym, u32)> {
        let mut symbol = Sym::read(self.table, u64::from(index) * raw::SYM)?;
        let mut section = match u32::from(symbol.st_shndx) {
            raw::SHN_XINDEX => raw::u32_at(self.extended, u64::from(index) * 4).map(InSection::Old),
            raw::SHN_LORESERVE.. => None, // absolute, common: stays as it is
            section => Some(InSection::Old(section)),
        };
        match self.edits.binary_search_by_key(&index, |e| e.0) {
            Ok(at) => {
                let edit = self.edits[at].1;
                symbol.st_value = edit.value;
                symbol.st_size = edit.size;
                // A reserved index is what the reader says of a symbol without a section, or of one whose
                // index looks so.
                if !matches!(
                    edit.section,
                    InSection::Old(raw::SHN_LORESERVE..=raw::SHN_XINDEX)
                ) {
                    section = Some(edit.section);
                }
            }
            Err(_) => {
                if let (Some(InSection::Old(section)), Some((block, by))) = (section, self.moved)
                    && block.has_symbol(&symbol, section)
                {
                    symbol.st_value = symbol.st_value.wrapping_add(by);
                }
            }
        }
        Some(match section {
            Some(section) => self.placed(symbol, section),
            None => (symbol, 0),
        })
    }

    fn placed(&self, mut symbol: Sym, section: InSection) -> (Sym, u32) {
        let index = match section {
            InSection::Old(section) => self.indexes.old(section),
            InSection::New(id) => self.indexes.added(id),
        };
        let Some(index) = index else {
            // A symbol of a section that is dropped (no linker makes such) still has its value. A file
            // without section headers has no index for a new section: the symbol keeps its own, which says
            // that it is defined. So does one that the loader reads, or whose index is of no section: absolute
            // is another meaning, since the loader adds nothing to such values.
            if let InSection::Old(section) = section
                && !self.dynamic
                && self.indexes.is_old(section)
            {
                symbol.st_shndx = raw::SHN_ABS as u16;
            }
            return (symbol, 0);
        };
        if index >= raw::SHN_LORESERVE {
            symbol.st_shndx = raw::SHN_XINDEX as u16;
            return (symbol, index);
        }
        symbol.st_shndx = index as u16;
        (symbol, 0)
    }

    /// All symbols in the output's order, each with its full section index if that does not fit (else 0).
    pub fn for_each<E>(&self, mut each: impl FnMut(Sym, u32) -> Result<(), E>) -> Result<(), E> {
        let mut added = self.added.iter().peekable();
        for i in 0..self.old_count() {
            if let Some((symbol, section)) = self.old(i) {
                each(symbol, section)?;
            }
            while let Some((_, symbol, section)) = added.next_if(|(after, ..)| *after <= i) {
                let (symbol, section) = self.placed(*symbol, *section);
                each(symbol, section)?;
            }
        }
        for (_, symbol, section) in added {
            let (symbol, section) = self.placed(*symbol, *section); // only in a table without a single symbol
            each(symbol, section)?;
        }
        Ok(())
    }
}

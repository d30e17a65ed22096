//! Symbol tables, read on demand.
//!
//! A table is three byte ranges: the symbols, their names, and for files with very many sections the full
//! section indexes (`SHT_SYMTAB_SHNDX`, one word per symbol). Nothing is read until asked for: a table of
//! half a million symbols costs nothing to open.
//!
//! A loaded object need not have section headers. The dynamic table is then found through `DT_SYMTAB`, and
//! its length, which no tag states, through the hash tables: `DT_HASH` has one chain word per symbol; in
//! `DT_GNU_HASH` the last chain of the highest bucket ends at the last symbol.

use super::{Elf, Symbol, SymbolTable};
use crate::raw::{self, Sym};

/// A symbol table, read on demand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Symbols<'d> {
    pub(super) table: &'d [u8],
    pub(super) names: &'d [u8],
    pub(super) extended: &'d [u8],
}

impl<'d> Symbols<'d> {
    /// How many, index 0 included.
    pub fn len(&self) -> usize {
        self.table.len() / raw::SYM as usize
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// One by index.
    pub fn get(&self, index: usize) -> Option<Symbol<'d>> {
        let (sym, mut symbol) = self.without_name(index)?;
        symbol.name = self.name(&sym);
        Some(symbol)
    }
    /// The same with an empty name: finding the end of a name takes longer than all else.
    #[inline]
    pub fn get_nameless(&self, index: usize) -> Option<Symbol<'d>> {
        Some(self.without_name(index)?.1)
    }
    fn name(&self, sym: &Sym) -> &'d [u8] {
        string(self.names, sym.st_name).unwrap_or_default()
    }
    fn without_name(&self, index: usize) -> Option<(Sym, Symbol<'d>)> {
        let (sym, section) = self.entry(index)?;
        let symbol = Symbol {
            name: &[],
            value: sym.st_value,
            size: sym.st_size,
            kind: sym.st_info & 15,
            binding: sym.st_info >> 4,
            other: sym.st_other,
            section,
        };
        Some((sym, symbol))
    }
    /// One by index as it is in the table, and its section. The names are not touched.
    pub(crate) fn entry(&self, index: usize) -> Option<(Sym, u32)> {
        let sym = Sym::read(self.table, (index as u64).checked_mul(raw::SYM)?)?;
        let section = match sym.st_shndx as u32 {
            raw::SHN_XINDEX => match raw::u32_at(self.extended, (index as u64).checked_mul(4)?) {
                // Such an index means a real section here but would be read as a reserved value.
                Some(raw::SHN_LORESERVE..=raw::SHN_XINDEX) | None => raw::SHN_ABS,
                Some(section) => section,
            },
            section => section,
        };
        Some((sym, section))
    }
    /// Those for which `wanted` holds, with their indexes. It sees them without names: these are all over the string
    /// table, and finding their ends takes longer than all else.
    pub fn iter_where(
        &self,
        wanted: impl Fn(&Symbol<'d>) -> bool,
    ) -> impl Iterator<Item = (usize, Symbol<'d>)> {
        let this = *self;
        (0..this.len()).filter_map(move |i| {
            let (sym, mut symbol) = this.without_name(i).filter(|(_, s)| wanted(s))?;
            symbol.name = this.name(&sym);
            Some((i, symbol))
        })
    }
    /// What `of` says of each, which sees them without names.
    pub fn without_names<T>(
        &self,
        of: impl Fn(&Symbol<'d>) -> Option<T>,
    ) -> impl Iterator<Item = T> {
        let this = *self;
        (0..this.len()).filter_map(move |i| of(&this.without_name(i)?.1))
    }
    /// Whether a name may end so: no such string is in the table of names otherwise.
    pub fn may_end_with(&self, suffix: &[u8]) -> bool {
        // A megabyte at a time, with what may be across its end.
        const PART: usize = 1 << 20;
        let wanted = [suffix, &[0]].concat();
        let finder = memchr::memmem::Finder::new(&wanted);
        postlink_parallel::any(self.names.len().div_ceil(PART), |part| {
            let start = part * PART;
            let end = self.names.len().min(start + PART + suffix.len());
            let names = self.names.get(start..end);
            names.is_some_and(|names| finder.find(names).is_some())
        })
    }
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'d>> + use<'d> {
        let this = *self;
        (0..this.len()).filter_map(move |i| this.get(i))
    }
}

/// The string at an offset of a string table, up to its zero byte; `None` if it has no end.
pub(super) fn string(table: &[u8], at: u32) -> Option<&[u8]> {
    let tail = table.get(at as usize..)?;
    let end = memchr::memchr(0, tail)?;
    tail.get(..end)
}

impl<'d> Elf<'d> {
    /// Symbols of a table, index 0 included. Names outside the string table are empty. Empty where the file
    /// has no such table.
    ///
    /// In a file with more than 65,279 sections, symbols of the 256 sections whose indexes look like reserved values
    /// (0xff00 and above) are reported as absolute.
    pub fn symbols(&self, table: SymbolTable) -> Symbols<'d> {
        let kind = match table {
            SymbolTable::Static => raw::SHT_SYMTAB,
            SymbolTable::Dynamic => raw::SHT_DYNSYM,
        };
        if let Some((index, s)) = self.section_of_kind(kind) {
            let names = self
                .sections
                .get(s.link as usize)
                .map(|n| self.section_data(n))
                .unwrap_or_default();
            let extended = self
                .sections
                .iter()
                .find(|x| x.kind == raw::SHT_SYMTAB_SHNDX && x.link as usize == index)
                .map(|x| self.section_data(x))
                .unwrap_or_default();
            return Symbols {
                table: self.section_data(s),
                names,
                extended,
            };
        }
        match table {
            SymbolTable::Static => Symbols::default(),
            SymbolTable::Dynamic => self.dynamic_symbols().unwrap_or_default(),
        }
    }

    /// The dynamic symbol table as the loader finds it.
    fn dynamic_symbols(&self) -> Option<Symbols<'d>> {
        let count = self.dynamic_symbol_count()?;
        let table = self.bytes_at(
            self.dynamic_value(raw::DT_SYMTAB)?,
            count.checked_mul(raw::SYM)?,
        )?;
        let names = self.bytes_at(
            self.dynamic_value(raw::DT_STRTAB)?,
            self.dynamic_value(raw::DT_STRSZ)?,
        )?;
        Some(Symbols {
            table,
            names,
            extended: &[],
        })
    }

    fn dynamic_symbol_count(&self) -> Option<u64> {
        let word = |at: u64| self.bytes_at(at, 4).and_then(|b| raw::u32_at(b, 0));
        if let Some(hash) = self.dynamic_value(raw::DT_HASH) {
            return word(hash.checked_add(4)?).map(u64::from);
        }
        // buckets, first symbol, Bloom words (8 bytes each), shift; then Bloom filter, buckets, chains
        let hash = self.dynamic_value(raw::DT_GNU_HASH)?;
        let header = self.bytes_at(hash, 16)?;
        let [buckets, first, bloom] =
            [0, 4, 8].map(|at| raw::u32_at(header, at).map_or(0, u64::from));
        let bucket_at = hash.checked_add(16)?.checked_add(bloom.checked_mul(8)?)?;
        let bucket_words = self.bytes_at(bucket_at, buckets.checked_mul(4)?)?;
        let chain_at = bucket_at.checked_add(buckets * 4)?;
        let highest = (0..buckets)
            .filter_map(|i| raw::u32_at(bucket_words, i * 4))
            .max()
            .map_or(0, u64::from);
        if highest < first || highest == 0 {
            return Some(first); // no symbol is exported; those in front of the hashed ones still count
        }
        let mut last = highest;
        // Bit 0 of a chain word marks the end of its chain. The walk ends at the latest where the file does.
        while word(chain_at.checked_add((last - first).checked_mul(4)?)?)? & 1 == 0 {
            last += 1;
        }
        last.checked_add(1)
    }
}

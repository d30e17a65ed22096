//! Relocations: those that the linker kept, and those that the loader applies.
//!
//! **Kept** (`--emit-relocs`): sections of type `SHT_RELA` that are not loaded and whose `sh_info` names a
//! section that is. Their offsets are link-time addresses, their symbols those of `.symtab`. Sections in the
//! encoding CREL ([`super::crel`]) become such records when the file is parsed.
//!
//! **Dynamic**: found through the tags of `.dynamic`, as the loader finds them. `DT_JMPREL` may be inside of
//! what `DT_RELASZ` spans; each entry is reported once. A static executable at a fixed address has no
//! `.dynamic`: its start-up code applies the `IRELATIVE` entries of the only loaded relocation section.
//!
//! `DT_RELR` is a sequence of 8-byte words that represents RELATIVE relocations whose addends are in place:
//!
//! | word | meaning |
//! |---|---|
//! | even | an address: relocate it; the next bitmap begins 8 bytes after it |
//! | odd | a bitmap: bit `i` (1 … 63) relocates word `i - 1` from there; the next bitmap begins 63 words further |
//!
//! Linkers write ascending addresses; that is required here, so that a small table cannot represent an unbounded list.
//! Source: gABI, section "Relocation", `SHT_RELR`.

use super::{DynReloc, Elf, KeptReloc, Section, crel};
use crate::raw::{self, Rela};
use crate::{ErrorKind, FormatError};

impl<'d> Elf<'d> {
    /// The same file as if the linker had kept no relocations.
    pub fn without_kept_relocs(mut self) -> Self {
        self.ignores_kept = true;
        self
    }

    /// Sections of kept relocations with the sections that they describe, in the file's order. None if they
    /// are [not to be looked at](Elf::without_kept_relocs).
    pub fn kept_sections(&self) -> impl Iterator<Item = (&Section<'d>, &Section<'d>)> {
        let sections = self.sections_of_relocations();
        sections.filter(|_| !self.ignores_kept)
    }

    /// The same, also if they are to be ignored: for what makes more functions stay.
    pub fn sections_of_relocations(&self) -> impl Iterator<Item = (&Section<'d>, &Section<'d>)> {
        let about = |s: &Section<'d>| self.sections.get(s.kept_relocs_target(&self.sections)?);
        self.sections
            .iter()
            .filter_map(move |s| Some((s, about(s)?)))
    }

    /// Turns sections of relocations in the encoding CREL into records of `SHT_RELA`: in a linked file those
    /// that describe loaded sections, in an object file all.
    pub(super) fn unpack_relocs(&mut self) -> Result<(), FormatError> {
        let linked = matches!(self.etype, raw::ET_EXEC | raw::ET_DYN);
        let wanted = |s: &&Section<'d>| {
            let packed = s.kind == raw::SHT_CREL && !s.is_alloc();
            packed && (!linked || s.kept_relocs_target(&self.sections).is_some())
        };
        self.check_total(self.sections.iter().filter(wanted).map(|s| s.size))?;
        let unpacked: Result<Vec<_>, _> = self
            .sections
            .iter()
            .filter(wanted)
            .map(|s| Ok((s.offset, crel::records(s, self.section_data(s))?)))
            .collect();
        self.unpacked_relocs = unpacked?;
        self.unpacked_relocs.sort_unstable_by_key(|u| u.0);
        Ok(())
    }

    /// The records of a section of relocations, each as `SHT_RELA` has it: 24 bytes. Empty for a section that has
    /// no relocations with addends.
    pub fn relocation_records(&self, s: &Section<'d>) -> &[u8] {
        match s.kind {
            raw::SHT_RELA => self.section_data(s),
            raw::SHT_CREL => self
                .unpacked_relocs
                .binary_search_by_key(&s.offset, |u| u.0)
                .ok()
                .and_then(|i| self.unpacked_relocs.get(i))
                .map_or(&[], |u| &u.1),
            _ => &[],
        }
    }

    /// Whether the linker kept relocations for code.
    pub fn has_kept_relocs(&self) -> bool {
        self.kept_sections()
            .any(|(s, about)| s.size > 0 && about.is_code())
    }

    /// Relocations that the linker kept for allocated sections, section by section in the file's order,
    /// without R_*_NONE.
    ///
    /// Addresses are as the file states them: they need not be in the section that the relocation section describes.
    pub fn kept_relocs(&self) -> Result<Vec<KeptReloc>, FormatError> {
        let symbols = self.symbols(super::SymbolTable::Static).len();
        let none = if self.machine == raw::EM_AARCH64 {
            raw::R_AARCH64_NONE
        } else {
            raw::R_X86_64_NONE
        };
        self.check_total(self.kept_sections().map(|(s, _)| s.size))?;
        let room = self
            .kept_sections()
            .map(|(s, _)| self.relocation_records(s).len() as u64 / raw::RELA)
            .sum::<u64>();
        let mut out = Vec::with_capacity(room as usize); // no more than the file holds
        for (s, _) in self.kept_sections() {
            if s.kind == raw::SHT_REL {
                return Err(FormatError::new(format!(
                    "section {} has type {:#x}: of the relocations that a linker keeps, only those with addends (SHT_RELA, 4; SHT_CREL, {:#x}) can be read",
                    s.name,
                    s.kind,
                    raw::SHT_CREL
                ))
                .of(ErrorKind::Unsupported)
                .values(s.kind, raw::SHT_RELA));
            }
            let data = self.relocation_records(s);
            let whole = s.entry_size == raw::RELA && s.size.is_multiple_of(raw::RELA);
            if s.kind == raw::SHT_RELA && !whole {
                return Err(FormatError::new(format!(
                    "section {} has {} bytes in entries of {}; relocations have 24",
                    s.name, s.size, s.entry_size
                ))
                .values(s.entry_size, raw::RELA));
            }
            for i in 0..data.len() as u64 / raw::RELA {
                let Some(r) = Rela::read(data, i * raw::RELA) else {
                    break;
                };
                if r.r_type == none || r.r_type == 0 {
                    continue;
                }
                if r.r_sym as usize >= symbols && r.r_sym != 0 {
                    return Err(FormatError::new(format!(
                        "relocation {i} of section {} is about symbol {}; the symbol table has {symbols}",
                        s.name, r.r_sym
                    ))
                    .of(ErrorKind::OutOfBounds)
                    .at_entry(i)
                    .values(r.r_sym, symbols));
                }
                out.push(KeptReloc {
                    addr: r.r_offset,
                    kind: r.r_type,
                    symbol: r.r_sym,
                    addend: r.r_addend,
                });
            }
        }
        Ok(out)
    }

    /// All dynamic relocations: DT_RELA, DT_JMPREL, DT_RELR; in a static executable those between
    /// `__rela_iplt_start` and `__rela_iplt_end` (section `.rela.plt`/`.rela.iplt`/`.rela.dyn` that is allocated).
    pub fn dyn_relocs(&self) -> Result<Vec<DynReloc>, FormatError> {
        let mut out = Vec::new();
        if self.dynamic.is_empty() {
            let tables = self
                .sections
                .iter()
                .filter(|s| s.kind == raw::SHT_RELA && s.is_alloc());
            self.check_total(tables.map(|s| s.size))?;
            for s in self
                .sections
                .iter()
                .filter(|s| s.kind == raw::SHT_RELA && s.is_alloc())
            {
                self.rela_table(s.name, s.addr, s.size, &mut out)?;
            }
            return Ok(out);
        }
        for (tag, name) in [
            (raw::DT_REL, "DT_REL"),
            (raw::DT_ANDROID_REL, "DT_ANDROID_REL"),
            (raw::DT_ANDROID_RELA, "DT_ANDROID_RELA"),
            (raw::DT_CREL, "DT_CREL"),
        ] {
            if let Some(at) = self.dynamic_value(tag) {
                return Err(FormatError::new(format!(
                    "dynamic relocations of the form {name} (at address {at:#x}) cannot be read"
                ))
                .of(ErrorKind::Unsupported)
                .at_address(at));
            }
        }
        let entry = self.dynamic_value(raw::DT_RELAENT).unwrap_or(raw::RELA);
        if entry != raw::RELA {
            return Err(FormatError::new(format!(
                "DT_RELAENT is {entry}; relocations have {} bytes",
                raw::RELA
            ))
            .values(entry, raw::RELA));
        }
        let table = |at, size| Some((self.dynamic_value(at)?, self.dynamic_value(size)?));
        let (rela, rela_size) = table(raw::DT_RELA, raw::DT_RELASZ).unwrap_or((0, 0));
        self.rela_table("DT_RELA", rela, rela_size, &mut out)?;
        if let Some((at, size)) = table(raw::DT_JMPREL, raw::DT_PLTRELSZ)
            && !(at >= rela && at - rela < rela_size && size <= rela_size - (at - rela))
        {
            match self.dynamic_value(raw::DT_PLTREL) {
                Some(kind) if kind == raw::DT_RELA as u64 => {}
                kind if size > 0 => {
                    return Err(FormatError::new(format!(
                        "DT_PLTREL is {kind:?}; only {} (DT_RELA) can be read",
                        raw::DT_RELA
                    ))
                    .of(ErrorKind::Unsupported)
                    .values(format!("{kind:?}"), raw::DT_RELA));
                }
                _ => {}
            }
            self.rela_table("DT_JMPREL", at, size, &mut out)?;
        }
        for (at, size, entry) in [
            (raw::DT_RELR, raw::DT_RELRSZ, raw::DT_RELRENT),
            (
                raw::DT_ANDROID_RELR,
                raw::DT_ANDROID_RELRSZ,
                raw::DT_ANDROID_RELRENT,
            ),
        ] {
            if let Some((at, size)) = table(at, size) {
                match self.dynamic_value(entry) {
                    None | Some(8) => self.relr_table(at, size, &mut out)?,
                    Some(n) => {
                        return Err(FormatError::new(format!(
                            "the entry size of DT_RELR is {n}; its words have 8 bytes"
                        ))
                        .values(n, 8u64));
                    }
                }
            }
        }
        Ok(out)
    }

    /// Tables that share bytes could list more relocations than memory holds; none do in a sound file.
    fn check_total(&self, sizes: impl Iterator<Item = u64>) -> Result<(), FormatError> {
        let total = sizes.fold(0, u64::saturating_add);
        if total > self.data.len() as u64 {
            return Err(FormatError::new(format!(
                "the sections of relocations take {total:#x} bytes of a file of {:#x}: they overlap",
                self.data.len()
            ))
            .of(ErrorKind::Order)
            .values(total, self.data.len()));
        }
        Ok(())
    }

    fn table_bytes(
        &self,
        name: &str,
        at: u64,
        size: u64,
        entry: u64,
    ) -> Result<&'d [u8], FormatError> {
        if size == 0 {
            return Ok(&[]);
        }
        if !size.is_multiple_of(entry) {
            return Err(FormatError::new(format!(
                "{name} has {size} bytes, which is not a multiple of {entry}"
            ))
            .at_address(at)
            .values(size, format!("a multiple of {entry}")));
        }
        self.bytes_at(at, size)
            .ok_or_else(|| FormatError::new(format!("{name} at address {at:#x} with {size} bytes is not inside one loaded segment's file contents")).of(ErrorKind::OutOfBounds).at_address(at).values(size,"bytes inside one loaded segment"))
    }

    fn rela_table(
        &self,
        name: &str,
        at: u64,
        size: u64,
        out: &mut Vec<DynReloc>,
    ) -> Result<(), FormatError> {
        let data = self.table_bytes(name, at, size, raw::RELA)?;
        out.reserve(data.len() / raw::RELA as usize);
        for i in 0..size / raw::RELA {
            let Some(r) = Rela::read(data, i * raw::RELA) else {
                break;
            };
            // `at + 24 i + 16` is inside the bytes just read, so it does not overflow.
            let addend_at = Some(at + i * raw::RELA + 16);
            out.push(DynReloc {
                addr: r.r_offset,
                kind: r.r_type,
                symbol: r.r_sym,
                addend: r.r_addend,
                addend_at,
            });
        }
        Ok(())
    }

    fn relr_table(&self, at: u64, size: u64, out: &mut Vec<DynReloc>) -> Result<(), FormatError> {
        let kind = match self.machine {
            raw::EM_X86_64 => raw::R_X86_64_RELATIVE,
            raw::EM_AARCH64 => raw::R_AARCH64_RELATIVE,
            other => {
                return Err(
                    FormatError::new(format!("DT_RELR is not known for machine {other}"))
                        .of(ErrorKind::Unsupported)
                        .values(other, "a machine with DT_RELR"),
                );
            }
        };
        let data = self.table_bytes("DT_RELR", at, size, 8)?;
        let from = out.len();
        let mut next: Option<u64> = None;
        let mut push = |addr: u64, n: u64| {
            let word = self.u64_at(addr).ok_or_else(|| {
                FormatError::new(format!(
                    "word {n} of DT_RELR relocates address {addr:#x}, where the file has no 8 bytes"
                ))
                .of(ErrorKind::OutOfBounds)
                .at_address(addr)
                .values(n, "a word that relocates loaded bytes")
            })?;
            out.push(DynReloc {
                addr,
                kind,
                symbol: 0,
                addend: word as i64,
                addend_at: None,
            });
            Ok(())
        };
        for (n, word) in data.chunks_exact(8).enumerate() {
            let n = n as u64;
            // `chunks_exact(8)` gives 8 bytes.
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let overflow = || {
                FormatError::new(format!(
                    "word {n} of DT_RELR ({word:#x}) reaches beyond the end of the address space"
                ))
                .of(ErrorKind::TooLarge)
                .at_entry(n)
                .values(word, u64::MAX)
            };
            if word & 1 == 0 {
                // It may be in the range of the bitmap before it: words of a packed structure are between its words.
                push(word, n)?;
                next = Some(word.checked_add(8).ok_or_else(overflow)?);
            } else {
                let base = next.ok_or_else(|| {
                    FormatError::new("DT_RELR begins with a bitmap; an address must come first")
                        .at_entry(0)
                        .values("a bitmap", "an address")
                })?;
                for bit in (1..64).filter(|bit| word >> bit & 1 != 0) {
                    push(base.checked_add((bit - 1) * 8).ok_or_else(overflow)?, n)?;
                }
                next = Some(base.checked_add(63 * 8).ok_or_else(overflow)?);
            }
        }
        let mut places: Vec<u64> = out.iter().skip(from).map(|r| r.addr).collect();
        places.sort_unstable();
        let mut pairs = places.iter().zip(places.iter().skip(1));
        match pairs.find(|(a, b)| a == b) {
            Some((twice, _)) => Err(FormatError::new(format!(
                "DT_RELR relocates address {twice:#x} twice"
            ))
            .of(ErrorKind::Order)
            .at_address(*twice)
            .values(2u64, 1u64)),
            None => Ok(()),
        }
    }
}

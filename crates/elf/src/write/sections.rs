//! The output's section headers, and the contents of what is not loaded.
//!
//! Old sections keep their order, the sections of kept relocations left out; new ones are after the last old
//! section that is loaded. Every index that a header holds (`sh_link`, `sh_info`) is translated; symbols and
//! groups translate theirs with the same [`Indexes`]. Old names keep their offsets in the table of names, new
//! ones are added after it. Where the file grows in front, the ELF header that programs find at its old
//! address becomes the first section, `.ehdr.old`.
//!
//! What is not loaded follows the new segment in the order in which the input has it. Symbols, names and
//! groups are rewritten; all else is copied. A section that is not loaded but is between loaded ones stays
//! there. If there is space in front of the new segment ([`super::WriteOptions::like_text`]), it is filled
//! first.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use super::assembly::Layout;
use super::output::{Output, Source};
use super::room::Room;
use super::symbols::SymbolPlan;
use super::{New, NewBytes, NewId, NewKind, Writer};
use crate::addr::{InputOffset, OutputOffset};
use crate::elf::{Elf, Section};
use crate::raw::{self, Shdr};
use crate::{ErrorKind, FormatError};

/// From the input's section indexes and new sections to the output's indexes.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    /// `u32::MAX` for sections that are dropped.
    old: Vec<u32>,
    /// `u32::MAX` for sections that are not in the output.
    new: Vec<u32>,
    order: Vec<Origin>,
    /// The input's table of full section indexes of `.symtab`.
    pub extended: Option<u32>,
}

/// Where a section of the output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The input.
    Old(u32),
    /// New.
    New(NewId),
    /// The table of full section indexes of `.symtab`, which the input does not need and the output does.
    Extended,
    /// The ELF header at its old place, after a page that was put in front of the file.
    OldHeader,
}

const NONE: u32 = u32::MAX;

impl Indexes {
    /// Decides which sections the output has, and their order. `new` sections are all that were appended.
    /// With `old_header` the first one is the ELF header at its old place.
    pub fn new(elf: &Elf<'_>, new: &[New], dropped: &BTreeSet<u32>, old_header: bool) -> Self {
        let symtab = elf.section_of_kind(raw::SHT_SYMTAB).map(|(i, _)| i);
        let is_extended =
            |s: &Section<'_>| s.kind == raw::SHT_SYMTAB_SHNDX && Some(s.link as usize) == symtab;
        let mut this = Indexes {
            old: vec![NONE; elf.sections.len()],
            new: vec![NONE; new.len()],
            order: Vec::new(),
            extended: elf.sections.iter().position(is_extended).map(|i| i as u32),
        };
        if elf.sections.is_empty() {
            return this;
        }
        let behind = elf
            .sections
            .iter()
            .rposition(Section::is_alloc)
            .unwrap_or(0)
            + 1;
        let keep = |range: std::ops::Range<usize>, order: &mut Vec<Origin>| {
            let left_out = |i: usize| dropped.contains(&(i as u32));
            let kept = range.filter(|i| !is_dropped(elf, *i) && !left_out(*i));
            order.extend(kept.map(|i| Origin::Old(i as u32))); // section counts are 32-bit numbers
        };
        keep(0..1, &mut this.order);
        if old_header {
            this.order.push(Origin::OldHeader);
        }
        // Those in a hole are after the old section in front of it, and what continues the old image before
        // what is after.
        let in_front = |n: &New| {
            let before = |s: &Section<'_>| s.is_alloc() && s.addr > 0 && s.addr < n.addr.get();
            let old = elf.sections.get(..behind).unwrap_or_default();
            if n.in_hole {
                old.iter().rposition(before).unwrap_or(0) + 1
            } else {
                behind
            }
        };
        let address = |n: &New| match n.kind {
            Some(NewKind::Note | NewKind::Unloaded) => u64::MAX,
            _ => n.addr.get(),
        };
        let mut added: Vec<(usize, u64, u32)> = (0u32..)
            .zip(new)
            .map(|(i, n)| (in_front(n), address(n), i))
            .collect();
        added.sort_unstable();
        let mut from = 1;
        for (at, _, id) in added {
            let at = at.max(from);
            keep(from..at, &mut this.order);
            from = at;
            this.order.push(Origin::New(NewId(id)));
        }
        keep(from..behind.max(from), &mut this.order);
        keep(behind.max(1)..elf.sections.len(), &mut this.order);
        let too_many = this.order.len() > raw::SHN_LORESERVE as usize;
        if too_many && symtab.is_some() && this.extended.is_none() {
            this.order.push(Origin::Extended);
        }
        for (at, origin) in this.order.iter().enumerate() {
            match origin {
                Origin::Old(i) => this.old[*i as usize] = at as u32,
                Origin::New(id) => this.new[id.0 as usize] = at as u32,
                Origin::Extended | Origin::OldHeader => {}
            }
        }
        this
    }
    /// The output's index of an input section; `None` if it is dropped, or was none. In a file without
    /// section headers indexes that symbols hold mean nothing, and stay.
    pub fn old(&self, index: u32) -> Option<u32> {
        if self.old.is_empty() {
            return Some(index);
        }
        self.old.get(index as usize).copied().filter(|i| *i != NONE)
    }
    /// Whether the input has a section of this index. Dynamic symbols of a program that was stripped may have others,
    /// or those of other sections than they were in: strip numbers sections anew, but not there.
    pub fn is_old(&self, index: u32) -> bool {
        (index as usize) < self.old.len()
    }
    /// The output's index of a new section.
    pub fn added(&self, id: NewId) -> Option<u32> {
        self.new.get(id.0 as usize).copied().filter(|i| *i != NONE)
    }
    /// All sections of the output.
    pub fn order(&self) -> &[Origin] {
        &self.order
    }
}

/// Whether a section is left out: relocations that are not loaded. They describe how the linker made the
/// file, by the indexes of symbols and the places of sections, and the output is neither.
fn is_dropped(elf: &Elf<'_>, index: usize) -> bool {
    let s = &elf.sections[index];
    matches!(s.kind, raw::SHT_RELA | raw::SHT_REL | raw::SHT_CREL) && !s.is_alloc()
}

/// The header of an old section, with indexes and counts of the output. Address and offset are the input's.
fn translated(
    elf: &Elf<'_>,
    index: u32,
    indexes: &Indexes,
    symbols: Option<&SymbolPlan<'_>>,
) -> Shdr {
    // It has been read from there.
    let mut header =
        Shdr::read(elf.data, elf.shoff + u64::from(index) * raw::SHDR).unwrap_or_default();
    if index == 0 {
        // Counts that do not fit the file header: the writer sets those that the output needs.
        return Shdr {
            sh_size: 0,
            sh_link: 0,
            sh_info: 0,
            ..header
        };
    }
    let alloc = header.sh_flags & raw::SHF_ALLOC != 0;
    header.sh_link = indexes.old(header.sh_link).unwrap_or(0);
    match header.sh_type {
        raw::SHT_SYMTAB => header.sh_info = symbols.map_or(header.sh_info, SymbolPlan::locals),
        raw::SHT_GROUP => {
            header.sh_info = symbols.map_or(header.sh_info, |s| s.new_index(header.sh_info))
        }
        raw::SHT_RELA | raw::SHT_REL if alloc && header.sh_info != 0 => {
            header.sh_info = indexes.old(header.sh_info).unwrap_or(0)
        }
        _ if header.sh_flags & raw::SHF_INFO_LINK != 0 => {
            header.sh_info = indexes.old(header.sh_info).unwrap_or(0)
        }
        _ => {}
    }
    header
}

/// A section group's contents: a word of flags, then section indexes.
fn group(data: &[u8], indexes: &Indexes) -> Vec<u8> {
    let (flags, members) = data.split_at(data.len().min(4));
    let mut out = flags.to_vec();
    for member in members.chunks_exact(4) {
        let member = raw::u32_at(member, 0).and_then(|m| indexes.old(m));
        out.extend(member.into_iter().flat_map(u32::to_le_bytes));
    }
    out
}

/// The section headers of the output, as their offsets become known.
pub(super) struct SectionTable<'w, 'd> {
    w: &'w Writer<'d>,
    indexes: &'w Indexes,
    symbols: Option<&'w SymbolPlan<'w>>,
    layout: &'w Layout,
    headers: Vec<Shdr>,
    /// Index of the input's symbol table.
    symtab: Option<u32>,
    /// Index of the input's section of symbol names, 0 if there is none.
    symbol_names: u32,
    /// Names to follow the old ones.
    names: Vec<u8>,
    gap: Gap,
}

/// What is left of the space in front of the new segment that nothing else uses.
struct Gap(Range<OutputOffset>);

impl Gap {
    /// Puts what is not loaded there, or else at the end of the file. Gives its offset.
    fn put<'w>(&mut self, align: u64, source: Source<'w>, output: &mut Output<'w>) -> u64 {
        let honoured = align.is_power_of_two() && align <= 4096;
        let at = self
            .0
            .start
            .next_multiple_of(if honoured { align } else { 1 });
        let end = at.checked_add(source.len());
        match end.filter(|end| source.len() > 0 && *end <= self.0.end) {
            None => output.append(align, source).get(),
            Some(end) => {
                self.0.start = end;
                output.put_between(at, source);
                at.get()
            }
        }
    }
}

impl<'w, 'd> SectionTable<'w, 'd> {
    /// All headers; the offsets of what is not loaded are still the input's.
    pub fn new(
        w: &'w Writer<'d>,
        layout: &'w Layout,
        indexes: &'w Indexes,
        symbols: Option<&'w SymbolPlan<'w>>,
    ) -> Result<Self, FormatError> {
        let symtab = w.elf.section_of_kind(raw::SHT_SYMTAB);
        let mut this = SectionTable {
            w,
            indexes,
            symbols,
            layout,
            headers: Vec::new(),
            symtab: symtab.map(|(i, _)| i as u32), // section counts are 32-bit numbers
            symbol_names: symtab.map_or(0, |(_, s)| s.link),
            names: Vec::new(),
            gap: Gap(layout.gap.clone()),
        };
        for origin in indexes.order() {
            let header = match *origin {
                Origin::Old(index) => this.old_header(index)?,
                Origin::New(id) => this.new_header(id)?,
                Origin::OldHeader => this.moved_header()?,
                Origin::Extended => Shdr {
                    sh_name: this.name(".symtab_shndx")?,
                    sh_type: raw::SHT_SYMTAB_SHNDX,
                    sh_link: this.symtab.and_then(|i| indexes.old(i)).unwrap_or(0),
                    sh_addralign: 4,
                    sh_entsize: 4,
                    ..Shdr::default()
                },
            };
            this.headers.push(header);
        }
        Ok(this)
    }

    /// How many.
    pub fn len(&self) -> u32 {
        self.headers.len() as u32 // old and new indexes are 32-bit numbers
    }

    /// The output's index of the section that holds the names.
    pub fn names_index(&self) -> u32 {
        self.indexes.old(self.w.elf.names_index).unwrap_or(0)
    }

    fn old_header(&mut self, index: u32) -> Result<Shdr, FormatError> {
        let elf = self.w.elf;
        let mut header = translated(elf, index, self.indexes, self.symbols);
        let s = &elf.sections[index as usize];
        if index > 0 && s.is_alloc() {
            header.sh_offset = header.sh_offset.wrapping_add(self.layout.shift);
            if let Room::Block(block) = &self.w.room
                && block.sections.binary_search(&index).is_ok()
            {
                let to = self
                    .layout
                    .place(self.w.block_at + (s.addr - block.addr), s.size);
                (header.sh_addr, header.sh_offset) = (to.addr.get(), to.offset.get());
            }
        }
        if let Some(with) = self.w.replaced.get(&index) {
            header.sh_flags &= !raw::SHF_COMPRESSED;
            if with.compressed {
                header.sh_flags |= raw::SHF_COMPRESSED;
            }
            if with.align > 0 {
                header.sh_addralign = with.align;
            }
            if let Some(name) = &with.name {
                header.sh_name = self.name(name)?;
            }
        }
        if self.w.unwind.is_some() && s.is_alloc() {
            match s.name {
                ".eh_frame" => header.sh_name = self.name(".eh_frame.old")?,
                ".eh_frame_hdr" => header.sh_name = self.name(".eh_frame_hdr.old")?,
                _ => {}
            }
        }
        Ok(header)
    }

    fn new_header(&mut self, id: NewId) -> Result<Shdr, FormatError> {
        let w = self.w;
        // Ids in the order are those of `w.new`.
        let new = &w.new[id.0 as usize];
        let (mut name, mut sh_type) = (new.name.as_str(), raw::SHT_PROGBITS);
        if let Some((eh_frame, hdr)) = w.unwind {
            // Some linkers use the machine's own type for unwind tables; any other would call for fields that
            // are not filled in.
            use crate::raw::SHT_X86_64_UNWIND;
            let as_before = |name| match w.elf.section(name) {
                Some((_, s)) if s.kind == SHT_X86_64_UNWIND => SHT_X86_64_UNWIND,
                _ => raw::SHT_PROGBITS,
            };
            if id == eh_frame {
                (name, sh_type) = (".eh_frame", as_before(".eh_frame"));
            } else if Some(id) == hdr {
                (name, sh_type) = (".eh_frame_hdr", as_before(".eh_frame_hdr"));
            }
        }
        let mut header = Shdr {
            sh_name: self.name(name)?,
            sh_type,
            sh_flags: raw::SHF_ALLOC,
            sh_addr: new.addr.get(),
            sh_size: new.size,
            sh_addralign: new.align,
            ..Shdr::default()
        };
        match new.kind {
            Some(NewKind::Code) => header.sh_flags |= raw::SHF_EXECINSTR,
            Some(NewKind::ReadOnly) => {}
            Some(NewKind::Note) => (header.sh_type, header.sh_flags) = (raw::SHT_NOTE, 0),
            Some(NewKind::Unloaded) => header.sh_flags = 0,
            None => {
                (header.sh_type, header.sh_flags) =
                    (raw::SHT_NOBITS, raw::SHF_ALLOC | raw::SHF_WRITE);
                header.sh_offset = self.layout.zero.map_or(0, |zero| zero.offset.get());
            }
        }
        if matches!(new.kind, Some(NewKind::Code | NewKind::ReadOnly)) {
            header.sh_offset = self.layout.place(new.addr, new.size).offset.get();
        }
        Ok(header)
    }

    /// The ELF header at its old place, which start-up code of static programs reads: strip and objcopy keep
    /// only what a section covers.
    fn moved_header(&mut self) -> Result<Shdr, FormatError> {
        let start = self.w.elf.loads().find(|p| p.offset == 0);
        Ok(Shdr {
            sh_name: self.name(".ehdr.old")?,
            sh_type: raw::SHT_PROGBITS,
            sh_flags: raw::SHF_ALLOC,
            // There is space below the first segment only if it begins with the file.
            sh_addr: start.map_or(0, |p| p.addr),
            sh_offset: self.layout.shift,
            sh_size: raw::EHDR,
            sh_addralign: 8,
            ..Shdr::default()
        })
    }

    /// Adds a name; gives its offset.
    fn name(&mut self, name: &str) -> Result<u32, FormatError> {
        let elf = self.w.elf;
        let table = match elf.sections.get(elf.names_index as usize) {
            Some(s) if s.kind == raw::SHT_STRTAB && !s.is_alloc() => s,
            _ => {
                return Err(FormatError::new(format!(
                    "the sections' names (section {}) are absent, no string table, or loaded, so that the name {name} cannot be added",
                    elf.names_index
                ))
                .of(ErrorKind::Missing)
                .at_entry(elf.names_index.into()));
            }
        };
        // One section may hold the names of symbols too; those come first.
        let symbols = self
            .symbols
            .filter(|_| self.symbol_names == elf.names_index)
            .map_or(0, |s| s.names.len());
        if symbols == 0
            && self.names.is_empty()
            && elf.section_data(table).last().is_some_and(|b| *b != 0)
        {
            self.names.push(0); // the last old name has no end
        }
        let at = u32::try_from(table.size as usize + symbols + self.names.len()) // the table is in the file
            .map_err(|_| {
                FormatError::new(format!(
                    "the names of sections begin to exceed 4 GiB with {name}"
                ))
                .of(ErrorKind::TooLarge)
                .at_offset(table.offset)
            })?;
        self.names.extend(name.bytes().filter(|b| *b != 0));
        self.names.push(0);
        Ok(at)
    }

    /// Puts the contents of what is not loaded.
    pub fn put_unloaded(&mut self, output: &mut Output<'w>) -> Result<(), FormatError> {
        let w = self.w;
        let elf = w.elf;
        let mut old: Vec<(u64, u32, usize)> = Vec::new();
        for (at, origin) in self.indexes.order().iter().enumerate() {
            match *origin {
                Origin::New(id) => {
                    if let Some(new) = w
                        .new
                        .get(id.0 as usize)
                        .filter(|new| new.kind.is_some_and(|kind| !kind.is_loaded()))
                    {
                        let source = Source::Bytes(Cow::Borrowed(&new.contents[..]));
                        self.headers[at].sh_offset = self.gap.put(new.align, source, output);
                    }
                }
                Origin::Old(index) if index > 0 && !elf.sections[index as usize].is_alloc() => {
                    old.push((elf.sections[index as usize].offset, index, at));
                }
                _ => {}
            }
        }
        old.sort_unstable();
        let mut before: Option<&Section<'_>> = None;
        for (_, index, at) in old {
            let s = &elf.sections[index as usize];
            let mut sources = self.contents(index)?;
            let copied = sources.is_empty();
            if copied && (!s.has_contents() || s.offset + s.size <= w.loaded_end.get()) {
                self.headers[at].sh_offset = s.offset.saturating_add(self.layout.shift);
                continue;
            }
            if let Some(b) = before.filter(|b| s.size > 0 && s.offset < b.offset + b.size) {
                return Err(FormatError::new(format!(
                    "sections {} and {} overlap in the file: offsets {:#x} to {:#x} and {:#x} to {:#x}",
                    b.name,
                    s.name,
                    b.offset,
                    b.offset + b.size,
                    s.offset,
                    s.offset + s.size
                ))
                .of(ErrorKind::Order)
                .at_offset(s.offset)
                .values(s.offset, b.offset + b.size));
            }
            if s.size > 0 {
                before = Some(s);
            }
            let header = &mut self.headers[at];
            if copied {
                let source = Source::Input {
                    from: InputOffset::new(s.offset),
                    len: s.size,
                };
                header.sh_offset = self.gap.put(s.align, source, output);
                continue;
            }
            if let [Source::Bytes(_) | Source::Edited { .. }] = &sources[..]
                && let Some(source) = sources.pop()
            {
                header.sh_size = source.len();
                header.sh_offset = self.gap.put(header.sh_addralign, source, output);
                continue;
            }
            let start = output.append(s.align, Source::Bytes(Cow::Borrowed(&[])));
            header.sh_offset = start.get();
            header.sh_size = sources.iter().map(Source::len).sum();
            for source in sources {
                output.append(1, source);
            }
        }
        if let (Some(Origin::Extended), Some(plan)) = (self.indexes.order().last(), self.symbols)
            && let Some(header) = self.headers.last_mut()
        {
            header.sh_size = plan.indexes_size();
            let start = output.append(4, Source::SectionIndexes(plan));
            header.sh_offset = start.get();
        }
        Ok(())
    }

    /// The new contents of a section that is not loaded; empty if it is copied.
    fn contents(&mut self, index: u32) -> Result<Vec<Source<'w>>, FormatError> {
        let elf = self.w.elf;
        let s = &elf.sections[index as usize];
        if let Some(with) = self.w.replaced.get(&index) {
            return Ok(vec![match &with.bytes {
                NewBytes::Whole(bytes) => Source::Bytes(Cow::Borrowed(bytes)),
                NewBytes::Edited(edits) => {
                    Source::edited(InputOffset::new(s.offset), s.size, &**edits)
                }
            }]);
        }
        let (is_names, is_symbol_names) = (index == elf.names_index, index == self.symbol_names);
        Ok(match (self.symbols, s.kind) {
            (Some(plan), raw::SHT_SYMTAB) if self.symtab == Some(index) => {
                vec![Source::Symbols(plan)]
            }
            (Some(plan), raw::SHT_SYMTAB_SHNDX) if self.indexes.extended == Some(index) => {
                vec![Source::SectionIndexes(plan)]
            }
            (Some(_), raw::SHT_GROUP) if self.symtab == Some(s.link) => {
                vec![Source::Bytes(Cow::Owned(group(
                    elf.section_data(s),
                    self.indexes,
                )))]
            }
            (plan, _) if s.has_contents() && (is_names || is_symbol_names) => {
                let mut sources = vec![Source::Input {
                    from: InputOffset::new(s.offset),
                    len: s.size,
                }];
                if let Some(plan) = plan.filter(|_| is_symbol_names) {
                    sources.push(Source::Bytes(Cow::Borrowed(&plan.names)));
                }
                if is_names {
                    sources.push(Source::Bytes(Cow::Owned(std::mem::take(&mut self.names))));
                }
                sources
            }
            _ => Vec::new(),
        })
    }

    /// Puts the headers themselves, with the counts that do not fit the file header; gives their offset.
    pub fn put_headers(&mut self, segments: u32, output: &mut Output<'w>) -> OutputOffset {
        let (count, names) = (self.len(), self.names_index());
        let Some(first) = self.headers.first_mut() else {
            return OutputOffset::default();
        };
        if count >= raw::SHN_LORESERVE {
            first.sh_size = count.into();
        }
        if names >= raw::SHN_LORESERVE {
            first.sh_link = names;
        }
        if segments >= raw::PN_XNUM.into() {
            first.sh_info = segments;
        }
        let bytes: Vec<u8> = self.headers.iter().flat_map(Shdr::bytes).collect();
        output.append(8, Source::Bytes(Cow::Owned(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_name_their_members_by_new_indexes_and_lose_what_is_dropped() {
        let indexes = Indexes {
            old: vec![0, 1, NONE, 5],
            ..Indexes::default()
        };
        let words =
            |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
        assert_eq!(group(&words(&[1, 3, 2, 1, 9]), &indexes), words(&[1, 5, 1]));
        assert_eq!(
            group(&[1, 0, 0], &indexes),
            [1, 0, 0],
            "a group without its flags"
        );
    }
}

//! A small ELF reader of the checker's own.
//!
//! It reads what the proof needs and nothing more: the header, program headers, section headers (if there are any),
//! the dynamic section and symbol tables of 64-bit little-endian files. Addresses are link-time addresses throughout.
//!
//! | field | where | size |
//! |---|---|---|
//! | e_ident | 0 | 16: magic, class 2, data 1, version 1, OS ABI, ABI version |
//! | e_type, e_machine, e_version | 16, 18, 20 | 2, 2, 4 |
//! | e_entry, e_phoff, e_shoff | 24, 32, 40 | 8 each |
//! | e_flags | 48 | 4 |
//! | e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx | 52 … 62 | 2 each |
//!
//! Invariants of an [`Elf`] that parsed: every PT_LOAD's bytes are inside the file; loads are ascending and disjoint
//! in memory; every section's bytes (but for NOBITS) are inside the file; no address range wraps around.

use crate::Error;
use crate::files::bytes::Reader;

pub(crate) const PT_NULL: u32 = 0;
pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
pub(crate) const PT_INTERP: u32 = 3;
pub(crate) const PT_NOTE: u32 = 4;
pub(crate) const PT_PHDR: u32 = 6;
pub(crate) const PT_TLS: u32 = 7;
pub(crate) const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
pub(crate) const PT_GNU_PROPERTY: u32 = 0x6474_e553;

pub(crate) const PF_X: u32 = 1;
pub(crate) const PF_W: u32 = 2;

pub(crate) const ET_EXEC: u16 = 2;

pub(crate) const SHT_SYMTAB: u32 = 2;
pub(crate) const SHT_RELA: u32 = 4;
pub(crate) const SHT_NOTE: u32 = 7;
pub(crate) const SHT_NOBITS: u32 = 8;
pub(crate) const SHT_DYNSYM: u32 = 11;

/// Type of the note of owner GNU that identifies a file.
pub(crate) const NT_GNU_BUILD_ID: u32 = 3;

pub(crate) const SHF_ALLOC: u64 = 2;
pub(crate) const SHF_EXECINSTR: u64 = 4;
pub(crate) const SHF_COMPRESSED: u64 = 0x800;

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub addr: u64,
    pub file_size: u64,
    pub mem_size: u64,
    pub align: u64,
}

impl Segment {
    pub(crate) fn end(&self) -> u64 {
        self.addr.saturating_add(self.mem_size)
    }
    pub(crate) fn file_end(&self) -> u64 {
        self.addr.saturating_add(self.file_size)
    }
    pub(crate) fn is_exec(&self) -> bool {
        self.flags & PF_X != 0
    }
    pub(crate) fn is_writable(&self) -> bool {
        self.flags & PF_W != 0
    }
}

/// A section header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section<'d> {
    pub name: &'d [u8],
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
}

impl Section<'_> {
    pub(crate) fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
    pub(crate) fn is_alloc(&self) -> bool {
        self.flags & SHF_ALLOC != 0
    }
}

/// A symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol<'d> {
    pub name: &'d [u8],
    pub info: u8,
    pub other: u8,
    pub section: u16,
    pub value: u64,
    pub size: u64,
}

impl Symbol<'_> {
    pub(crate) fn kind(&self) -> u8 {
        self.info & 15
    }
    /// STT_FUNC or STT_GNU_IFUNC.
    pub(crate) fn is_function(&self) -> bool {
        matches!(self.kind(), 2 | 10)
    }
}

/// Size of a symbol table entry.
pub(crate) const SYM_SIZE: usize = 24;

/// One symbol table entry: (name offset, symbol without its name).
pub(crate) fn raw_symbol(entry: &[u8]) -> Option<(u32, Symbol<'static>)> {
    let mut r = Reader::new(entry);
    let name = r.u32()?;
    let (info, other, section) = (r.u8()?, r.u8()?, r.u16()?);
    let (value, size) = (r.u64()?, r.u64()?);
    Some((
        name,
        Symbol {
            name: b"",
            info,
            other,
            section,
            value,
            size,
        },
    ))
}

/// An entry of `.dynamic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dyn {
    pub tag: u64,
    pub value: u64,
}

/// A parsed file.
#[derive(Clone, Debug)]
pub(crate) struct Elf<'d> {
    pub data: &'d [u8],
    pub etype: u16,
    pub machine: u16,
    pub ident: &'d [u8],
    pub eflags: u32,
    pub entry: u64,
    pub phoff: u64,
    /// In the table's order, PT_NULL left out.
    pub segments: Vec<Segment>,
    /// How many program headers the file says it has, PT_NULL included.
    pub phnum: u64,
    pub sections: Vec<Section<'d>>,
    pub dynamic: Vec<Dyn>,
    loads: Vec<Segment>,
}

/// Bytes at an offset of the file.
fn slice(data: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let len = usize::try_from(size).ok()?;
    data.get(start..start.checked_add(len)?)
}

/// The string at an offset of a string table, without its zero.
pub(crate) fn string_at(table: &[u8], offset: u32) -> &[u8] {
    let rest = table.get(offset as usize..).unwrap_or(b"");
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    rest.get(..end).unwrap_or(b"")
}

impl<'d> Elf<'d> {
    /// Parses a file. `which` names it in errors ("input", "output").
    pub(crate) fn parse(data: &'d [u8], which: &'static str) -> Result<Self, Error> {
        let bad = |what: String| Error::Unreadable { which, what };
        let header = data.get(..64).ok_or_else(|| {
            bad(format!(
                "{} bytes are too few for an ELF header",
                data.len()
            ))
        })?;
        let ident = header.get(..16).unwrap_or(b"");
        if !ident.starts_with(b"\x7fELF") {
            return Err(bad("it does not begin with the ELF magic number".into()));
        }
        if ident.get(4) != Some(&2) || ident.get(5) != Some(&1) {
            return Err(bad("it is not a 64-bit little-endian ELF file".into()));
        }
        let mut r = Reader::new(header.get(16..).unwrap_or(b""));
        let fields = (|| {
            let (etype, machine, _version) = (r.u16()?, r.u16()?, r.u32()?);
            let (entry, phoff, shoff) = (r.u64()?, r.u64()?, r.u64()?);
            let (eflags, _ehsize) = (r.u32()?, r.u16()?);
            let (phentsize, phnum) = (r.u16()?, r.u16()?);
            let (shentsize, shnum, shstrndx) = (r.u16()?, r.u16()?, r.u16()?);
            Some((
                etype, machine, entry, phoff, shoff, eflags, phentsize, phnum, shentsize, shnum,
                shstrndx,
            ))
        })();
        let (
            etype,
            machine,
            entry,
            phoff,
            shoff,
            eflags,
            phentsize,
            phnum,
            shentsize,
            shnum,
            shstrndx,
        ) = fields.ok_or_else(|| bad("its ELF header ends early".into()))?;
        if phnum > 0 && phentsize != 56 {
            return Err(bad(format!(
                "its program headers have {phentsize} bytes instead of 56"
            )));
        }
        if phnum == 0xffff {
            return Err(bad("it has more than 65534 program headers".into()));
        }
        let table = slice(data, phoff, u64::from(phnum) * 56).ok_or_else(|| {
            bad(format!(
                "its {phnum} program headers at {phoff:#x} are not all in the file"
            ))
        })?;
        let mut segments = Vec::with_capacity(usize::from(phnum));
        for raw in table.chunks_exact(56) {
            let mut r = Reader::new(raw);
            let segment = (|| {
                let (kind, flags, offset, addr, _paddr) =
                    (r.u32()?, r.u32()?, r.u64()?, r.u64()?, r.u64()?);
                let (file_size, mem_size, align) = (r.u64()?, r.u64()?, r.u64()?);
                Some(Segment {
                    kind,
                    flags,
                    offset,
                    addr,
                    file_size,
                    mem_size,
                    align,
                })
            })()
            .ok_or_else(|| bad("a program header ends early".into()))?;
            if segment.kind != PT_NULL {
                segments.push(segment);
            }
        }
        let mut loads: Vec<Segment> = Vec::new();
        for s in segments.iter().filter(|s| s.kind == PT_LOAD) {
            if s.addr.checked_add(s.mem_size).is_none() || s.file_size > s.mem_size {
                return Err(bad(format!(
                    "its segment at {:#x} has impossible sizes ({:#x}, {:#x})",
                    s.addr, s.file_size, s.mem_size
                )));
            }
            if slice(data, s.offset, s.file_size).is_none() {
                return Err(bad(format!(
                    "its segment at {:#x} reaches past the end of the file",
                    s.addr
                )));
            }
            if let Some(last) = loads.last().filter(|last| last.end() > s.addr) {
                return Err(bad(format!(
                    "its segments at {:#x} and {:#x} overlap or are not in order",
                    last.addr, s.addr
                )));
            }
            loads.push(*s);
        }
        let sections =
            Self::parse_sections(data, shoff, shentsize, shnum, shstrndx).map_err(bad)?;
        let mut elf = Elf {
            data,
            etype,
            machine,
            ident,
            eflags,
            entry,
            phoff,
            segments,
            phnum: u64::from(phnum),
            sections,
            dynamic: Vec::new(),
            loads,
        };
        if let Some(d) = elf.segment(PT_DYNAMIC).copied() {
            let bytes = elf.bytes(d.addr, d.file_size).ok_or_else(|| {
                bad(format!(
                    "its dynamic section at {:#x} is not loaded from the file",
                    d.addr
                ))
            })?;
            let mut r = Reader::new(bytes);
            while let (Some(tag), Some(value)) = (r.u64(), r.u64()) {
                if tag == 0 {
                    break;
                }
                elf.dynamic.push(Dyn { tag, value });
            }
        }
        Ok(elf)
    }

    fn parse_sections(
        data: &'d [u8],
        shoff: u64,
        shentsize: u16,
        shnum: u16,
        shstrndx: u16,
    ) -> Result<Vec<Section<'d>>, String> {
        if shoff == 0 {
            return Ok(Vec::new());
        }
        if shentsize != 64 {
            return Err(format!(
                "its section headers have {shentsize} bytes instead of 64"
            ));
        }
        // With more than 65279 sections the counts are in section 0.
        let first = slice(data, shoff, 64)
            .ok_or_else(|| format!("its section headers at {shoff:#x} are not in the file"))?;
        let count = if shnum == 0 {
            crate::files::bytes::u64_in(first, 32).unwrap_or(0)
        } else {
            u64::from(shnum)
        };
        let names = if shstrndx == 0xffff {
            crate::files::bytes::u32_in(first, 40).unwrap_or(0)
        } else {
            u32::from(shstrndx)
        };
        let size = count
            .checked_mul(64)
            .ok_or_else(|| format!("its section count {count} is impossible"))?;
        let table = slice(data, shoff, size).ok_or_else(|| {
            format!("its {count} section headers at {shoff:#x} are not all in the file")
        })?;
        let mut sections = Vec::with_capacity(table.len() / 64);
        let mut name_offsets = Vec::with_capacity(table.len() / 64);
        for raw in table.chunks_exact(64) {
            let mut r = Reader::new(raw);
            let (name, s) = (|| {
                let (name, kind, flags, addr) = (r.u32()?, r.u32()?, r.u64()?, r.u64()?);
                let (offset, size, link, info) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
                Some((
                    name,
                    Section {
                        name: b"",
                        kind,
                        flags,
                        addr,
                        offset,
                        size,
                        link,
                        info,
                    },
                ))
            })()
            .ok_or("a section header ends early")?;
            if s.kind != SHT_NOBITS && s.kind != 0 && slice(data, s.offset, s.size).is_none() {
                return Err(format!(
                    "its section {} reaches past the end of the file",
                    sections.len()
                ));
            }
            if s.addr.checked_add(s.size).is_none() {
                return Err(format!(
                    "its section {} wraps around the address space",
                    sections.len()
                ));
            }
            name_offsets.push(name);
            sections.push(s);
        }
        let strings = sections
            .get(names as usize)
            .and_then(|s| slice(data, s.offset, s.size))
            .unwrap_or(b"");
        for (s, name) in sections.iter_mut().zip(name_offsets) {
            s.name = string_at(strings, name);
        }
        Ok(sections)
    }

    /// Loadable segments, ascending.
    pub(crate) fn loads(&self) -> &[Segment] {
        &self.loads
    }

    /// The first segment of a kind.
    pub(crate) fn segment(&self, kind: u32) -> Option<&Segment> {
        self.segments.iter().find(|s| s.kind == kind)
    }

    /// The loadable segment that covers an address.
    pub(crate) fn load_at(&self, addr: u64) -> Option<&Segment> {
        self.loads.iter().find(|s| s.addr <= addr && addr < s.end())
    }

    /// All file bytes from an address to the end of its segment's file part.
    pub(crate) fn bytes_from(&self, addr: u64) -> Option<&'d [u8]> {
        let s = self
            .loads
            .iter()
            .find(|s| s.addr <= addr && addr < s.file_end())?;
        let skip = addr - s.addr;
        slice(self.data, s.offset.checked_add(skip)?, s.file_size - skip)
    }

    /// `len` file bytes at an address, within one segment.
    pub(crate) fn bytes(&self, addr: u64, len: u64) -> Option<&'d [u8]> {
        if len == 0 {
            return Some(&[]);
        }
        self.bytes_from(addr)?.get(..usize::try_from(len).ok()?)
    }

    pub(crate) fn u64_at(&self, addr: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(addr, 8)?.try_into().ok()?))
    }

    pub(crate) fn u32_at(&self, addr: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(addr, 4)?.try_into().ok()?))
    }

    pub(crate) fn section(&self, name: &[u8]) -> Option<&Section<'d>> {
        self.sections.iter().find(|s| s.name == name)
    }

    pub(crate) fn section_data(&self, s: &Section<'_>) -> &'d [u8] {
        if s.kind == SHT_NOBITS {
            b""
        } else {
            slice(self.data, s.offset, s.size).unwrap_or(b"")
        }
    }

    /// The loaded section that covers an address.
    pub(crate) fn section_at(&self, addr: u64) -> Option<&Section<'d>> {
        // `.tbss` has an address range that belongs to whatever follows it.
        self.sections.iter().find(|s| {
            s.is_alloc()
                && s.addr <= addr
                && addr < s.end()
                && !(s.kind == SHT_NOBITS && s.flags & 0x400 != 0)
        })
    }

    /// Value of a dynamic tag.
    pub(crate) fn dynamic_value(&self, tag: u64) -> Option<u64> {
        self.dynamic.iter().find(|d| d.tag == tag).map(|d| d.value)
    }

    /// Symbols of the section of this type, and its string table; entry 0 included.
    pub(crate) fn symbols(&self, kind: u32) -> impl Iterator<Item = Symbol<'d>> + use<'d> {
        let section = self.sections.iter().find(|s| s.kind == kind);
        let bytes = section.map_or(&b""[..], |s| self.section_data(s));
        let strings = section
            .and_then(|s| self.sections.get(s.link as usize))
            .map_or(&b""[..], |s| self.section_data(s));
        bytes.chunks_exact(SYM_SIZE).filter_map(move |raw| {
            let (name, symbol) = raw_symbol(raw)?;
            Some(Symbol {
                name: string_at(strings, name),
                ..symbol
            })
        })
    }

    /// Lowest and one past the highest loaded address.
    pub(crate) fn extent(&self) -> (u64, u64) {
        match (self.loads.first(), self.loads.last()) {
            (Some(first), Some(last)) => (first.addr, last.end()),
            _ => (0, 0),
        }
    }

    /// Bytes of one note in the file's note sections and segments: owner's name (without zero) and type.
    pub(crate) fn note(&self, owner: &[u8], kind: u32) -> Option<&'d [u8]> {
        self.find_note(|name, k| name == owner && k == kind)
    }

    /// Whether there is a note of an owner, of any type.
    pub(crate) fn has_note_of(&self, owner: &[u8]) -> bool {
        self.find_note(|name, _| name == owner).is_some()
    }

    fn find_note(&self, wanted: impl Fn(&[u8], u32) -> bool) -> Option<&'d [u8]> {
        let sections = self
            .sections
            .iter()
            .filter(|s| s.kind == SHT_NOTE)
            .map(|s| self.section_data(s));
        let segments = self
            .segments
            .iter()
            .filter(|s| s.kind == PT_NOTE)
            .filter_map(|s| slice(self.data, s.offset, s.file_size));
        sections
            .chain(segments)
            .find_map(|bytes| find_note(bytes, &wanted))
    }
}

/// Looks a note up, by owner and type, in a run of notes with 4-byte alignment.
pub(crate) fn find_note(bytes: &[u8], wanted: impl Fn(&[u8], u32) -> bool) -> Option<&[u8]> {
    let mut r = Reader::new(bytes);
    while !r.is_empty() {
        let (name_len, desc_len, note_kind) = (r.u32()? as usize, r.u32()? as usize, r.u32()?);
        let name = r.take(name_len)?;
        r.take(name_len.wrapping_neg() & 3)?;
        let desc = r.take(desc_len)?;
        if wanted(name.strip_suffix(b"\0").unwrap_or(name), note_kind) {
            return Some(desc);
        }
        // The last note's padding may be missing.
        r.take(desc_len.wrapping_neg() & 3)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_program_itself_parses_and_agrees_with_itself() {
        let data = std::fs::read("/proc/self/exe").expect("the running test can be read");
        let elf = Elf::parse(&data, "input").expect("it is an ELF file");
        assert_eq!(elf.bytes(elf.entry, 1).map(<[u8]>::len), Some(1));
        assert!(elf.loads().len() >= 2);
        assert!(
            elf.symbols(SHT_SYMTAB)
                .any(|s| s.is_function() && s.value == elf.entry)
        );
        assert!(elf.section(b".dynamic").is_some());
        assert!(!elf.dynamic.is_empty());
    }

    #[test]
    fn short_and_foreign_files_are_refused_with_a_sentence() {
        for (bytes, word) in [(&b"\x7fELF"[..], "too few"), (&[0u8; 64][..], "magic")] {
            let error = Elf::parse(bytes, "input")
                .expect_err("no ELF file")
                .to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_note_is_found_behind_another_one() {
        let mut notes = Vec::new();
        for (name, kind, desc) in [
            (&b"GNU\0"[..], 3u32, &b"abc"[..]),
            (b"postlink\0", 1, b"xy"),
        ] {
            notes.extend((name.len() as u32).to_le_bytes());
            notes.extend((desc.len() as u32).to_le_bytes());
            notes.extend(kind.to_le_bytes());
            notes.extend(name);
            notes.resize(notes.len().next_multiple_of(4), 0);
            notes.extend(desc);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        let owned = |kind| move |name: &[u8], k| name == b"postlink" && k == kind;
        assert_eq!(find_note(&notes, owned(1)), Some(&b"xy"[..]));
        assert_eq!(find_note(&notes, owned(2)), None);
        for cut in 0..notes.len() {
            let _ = find_note(&notes[..cut], owned(1));
        }
    }
}

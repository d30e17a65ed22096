//! ELF reading: a checked, mostly zero-copy view of a 64-bit little-endian file.
//!
//! A linked file describes itself twice. The *program headers* say what is loaded where; the loader believes
//! nothing else. The *section headers* say what the parts are called and of what kind they are; tools believe
//! these, and a file may lack them. Here addresses are resolved through the program headers, names through
//! the sections, and [`Elf::parse`] checks both once, so that no accessor can fail or overflow afterwards:
//!
//! * every table and every section's and segment's contents are inside the file, and no address range wraps around;
//! * loadable segments ascend and do not overlap, and hold no more file bytes than memory;
//! * section names end and are UTF-8; symbol tables consist of whole symbols and name a string table.
//!
//! Counts that do not fit their 16-bit fields are in section 0: `e_shnum` in `sh_size`, `e_phnum` in `sh_info`,
//! `e_shstrndx` in `sh_link`.
//!
//! Parsing touches the headers, the dynamic section and the notes; symbols (`symbols`) and relocations (`relocs`) are
//! read when asked for. Structures and numbers are in [`crate::raw`].

#![warn(clippy::indexing_slicing)]

mod crel;
mod erratum;
pub(crate) mod notes;
mod relocs;
mod symbols;

pub use notes::ElfNote;
pub use symbols::Symbols;

use crate::raw::{self, Ehdr, Phdr, Shdr};
use crate::{ErrorKind, FormatError};

/// Symbol table, dynamic symbol table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SymbolTable {
    /// `.symtab`
    Static,
    /// `.dynsym`
    Dynamic,
}

/// A program header, in the table's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `p_type`
    pub kind: u32,
    /// `p_flags`
    pub flags: u32,
    /// `p_offset`
    pub offset: u64,
    /// `p_vaddr`
    pub addr: u64,
    /// `p_filesz`
    pub file_size: u64,
    /// `p_memsz`
    pub mem_size: u64,
    /// `p_align`
    pub align: u64,
}

/// A section header. Section 0 is in the table too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section<'d> {
    /// Name.
    pub name: &'d str,
    /// `sh_type`
    pub kind: u32,
    /// `sh_flags`
    pub flags: u64,
    /// `sh_addr`
    pub addr: u64,
    /// `sh_offset`
    pub offset: u64,
    /// `sh_size`
    pub size: u64,
    /// `sh_link`
    pub link: u32,
    /// `sh_info`
    pub info: u32,
    /// `sh_addralign`
    pub align: u64,
    /// `sh_entsize`
    pub entry_size: u64,
}

impl Section<'_> {
    /// One past its last address.
    pub fn end(&self) -> u64 {
        self.addr + self.size
    }
    /// Loaded at run time.
    pub fn is_alloc(&self) -> bool {
        self.flags & raw::SHF_ALLOC != 0
    }
    /// Holds instructions.
    pub fn is_code(&self) -> bool {
        const CODE: u64 = raw::SHF_ALLOC | raw::SHF_EXECINSTR;
        self.flags & CODE == CODE
    }
    /// Holds bytes in the file.
    pub fn has_contents(&self) -> bool {
        self.kind != raw::SHT_NOBITS && self.kind != raw::SHT_NULL
    }
    /// Thread-local zeroes: they have a size but take no place at their address.
    pub fn is_tbss(&self) -> bool {
        self.flags & raw::SHF_TLS != 0 && self.kind == raw::SHT_NOBITS
    }
    /// If this section holds relocations that the linker kept: the index of the allocated section that they are about.
    pub fn kept_relocs_target(&self, sections: &[Section<'_>]) -> Option<usize> {
        let relocs = matches!(self.kind, raw::SHT_RELA | raw::SHT_REL | raw::SHT_CREL);
        let target = self.info as usize;
        (relocs && !self.is_alloc() && target != 0 && sections.get(target)?.is_alloc())
            .then_some(target)
    }
}

/// A symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'d> {
    /// Name as in the string table (bytes: names need not be UTF-8).
    pub name: &'d [u8],
    /// `st_value`
    pub value: u64,
    /// `st_size`
    pub size: u64,
    /// `st_info & 15`: STT_FUNC = 2, STT_GNU_IFUNC = 10, STT_TLS = 6, STT_SECTION = 3, STT_FILE = 4 …
    pub kind: u8,
    /// `st_info >> 4`: 0 local, 1 global, 2 weak.
    pub binding: u8,
    /// `st_other`
    pub other: u8,
    /// `st_shndx` (extended indexes resolved); 0 undefined, 0xfff1 absolute, 0xfff2 common.
    pub section: u32,
}

impl Symbol<'_> {
    /// Whether it is that of a defined function, with a size.
    pub fn is_sized_function(&self) -> bool {
        matches!(self.kind, raw::STT_FUNC | raw::STT_GNU_IFUNC)
            && self.section != 0
            && self.size > 0
    }
}

/// A relocation that the linker kept (`--emit-relocs`): it says how the bytes at `offset` came about.
/// The linker may have relaxed the instruction since: the bytes are the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptReloc {
    /// Link-time address of the field.
    pub addr: u64,
    /// `r_type`
    pub kind: u32,
    /// Index into the static symbol table.
    pub symbol: u32,
    /// `r_addend`
    pub addend: i64,
}

/// A relocation that the dynamic loader (or static start-up code) applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynReloc {
    /// Link-time address of the field.
    pub addr: u64,
    /// `r_type`; RELR entries appear as the machine's RELATIVE.
    pub kind: u32,
    /// Index into the dynamic symbol table.
    pub symbol: u32,
    /// `r_addend`; for RELR the word in place.
    pub addend: i64,
    /// Where the entry's addend field is (link-time address), `None` for RELR: there the word in place is the addend.
    pub addend_at: Option<u64>,
}

/// A parsed file.
#[derive(Debug)]
pub struct Elf<'d> {
    /// The whole file.
    pub data: &'d [u8],
    /// The same, but for loads and stores that are read in other places than they are in the file
    /// ([`Elf::without_erratum_veneers`]).
    code: &'d [u8],
    /// The open file that `data` is a map of, if the caller gave it ([`Elf::parse_file`]).
    pub file: Option<&'d std::fs::File>,
    /// The map, if the caller gave it.
    map: Option<&'d memmap2::Mmap>,
    /// `e_type`: 2 executable at a fixed address, 3 shared object or position-independent executable.
    pub etype: u16,
    /// `e_machine`: 62 x86-64, 183 AArch64.
    pub machine: u16,
    /// `e_entry`
    pub entry: u64,
    /// `e_phoff`
    pub phoff: u64,
    /// `e_shoff`
    pub shoff: u64,
    /// `e_flags`
    pub eflags: u32,
    /// EI_OSABI, EI_ABIVERSION.
    pub osabi: (u8, u8),
    /// Program headers.
    pub segments: Vec<Segment>,
    /// Section headers; empty in a file without.
    pub sections: Vec<Section<'d>>,
    /// `.dynamic`: (tag, value), up to and without DT_NULL, with the link-time address of each value field.
    pub dynamic: Vec<(i64, u64, u64)>,
    /// Contents of the GNU build-id note.
    pub build_id: Option<&'d [u8]>,
    /// Index of the section that holds the sections' names, 0 if there is none.
    pub(crate) names_index: u32,
    /// Indexes of PT_LOAD segments: ascending, disjoint.
    loads: Vec<Segment>,
    /// (first address, index) of allocated sections that take place in memory, ascending.
    by_addr: Vec<(u64, u32)>,
    /// Kept relocations are not looked at ([`Elf::without_kept_relocs`]).
    ignores_kept: bool,
    /// Relocations in the encoding CREL by the offsets of their sections, ascending, as records of `SHT_RELA`.
    unpacked_relocs: Vec<(u64, Vec<u8>)>,
    /// Names for people that the file itself does not have ([`Elf::with_names`]).
    given_names: Option<std::sync::Arc<crate::names::Names>>,
}

impl<'d> Elf<'d> {
    /// Like [`Elf::parse`] for a map of an open file: what is written from it can then be copied by the
    /// kernel, without touching the map, and its memory can be [given back](Elf::release) in between.
    pub fn parse_file(
        map: &'d memmap2::Mmap,
        file: &'d std::fs::File,
    ) -> Result<Elf<'d>, FormatError> {
        let mut elf = Self::parse(map)?;
        elf.file = Some(file);
        elf.map = Some(map);
        Ok(elf)
    }

    /// Gives back the memory of what was read so far, if the file is mapped; what is needed again is read
    /// again. Worth it after work that reads a large part of the file that later work does not: relocations,
    /// symbols.
    pub fn release(&self) {
        if let Some(map) = self.map {
            crate::memory::give_back_read(map);
        }
    }

    /// Parses and checks headers, segments, sections, dynamic section and notes. Every later accessor is safe on what
    /// passed. Overlapping loadable segments, tables outside the file, absurd counts and sizes are errors with values.
    pub fn parse(data: &'d [u8]) -> Result<Elf<'d>, FormatError> {
        let (header, osabi) = file_header(data)?;
        if header.e_type != raw::ET_EXEC && header.e_type != raw::ET_DYN {
            return Err(FormatError::new(format!(
                "not a linked program or shared library: e_type is {}; 2 (executable) or 3 (shared object) expected",
                header.e_type
            ))
            .of(ErrorKind::Unsupported)
            .at_offset(0x10)
            .values(header.e_type, "2 or 3"));
        }
        Elf::with_header(data, &header, osabi)
    }

    /// The same, but object files (`e_type` 1) are taken too. Their sections have no addresses yet.
    pub fn parse_with_objects(data: &'d [u8]) -> Result<Elf<'d>, FormatError> {
        let (header, osabi) = file_header(data)?;
        if !matches!(header.e_type, 1 | raw::ET_EXEC | raw::ET_DYN) {
            return Err(FormatError::new(format!(
                "not an object file, linked program or shared library: e_type is {}; 1, 2 or 3 expected",
                header.e_type
            ))
            .of(ErrorKind::Unsupported)
            .at_offset(0x10)
            .values(header.e_type, "1, 2 or 3"));
        }
        Elf::with_header(data, &header, osabi)
    }

    /// A file with debug information alone, which was split off a program: its loaded sections and segments have no
    /// contents. It is read as one without segments.
    pub fn parse_debug_file(data: &'d [u8]) -> Result<Elf<'d>, FormatError> {
        let (header, osabi) = file_header(data)?;
        let counts = Counts::read(data, &header)?;
        Elf::with_segments(data, &header, osabi, counts, Vec::new())
    }

    /// The same file with names of functions from elsewhere, for display.
    pub fn with_names(mut self, names: std::sync::Arc<crate::names::Names>) -> Elf<'d> {
        self.given_names = Some(names);
        self
    }

    /// The name that was given for the function at an address.
    pub fn given_name(&self, address: u64) -> Option<&[u8]> {
        self.given_names.as_ref()?.at(address)
    }

    fn with_header(data: &'d [u8], header: &Ehdr, osabi: (u8, u8)) -> Result<Elf<'d>, FormatError> {
        let counts = Counts::read(data, header)?;
        let segments = segments(data, header, counts.segments)?;
        Elf::with_segments(data, header, osabi, counts, segments)
    }

    fn with_segments(
        data: &'d [u8],
        header: &Ehdr,
        osabi: (u8, u8),
        counts: Counts,
        segments: Vec<Segment>,
    ) -> Result<Elf<'d>, FormatError> {
        let loads = loads(&segments)?;
        let sections = sections(data, header, &counts)?;
        let mut by_addr: Vec<(u64, u32)> = sections
            .iter()
            .enumerate()
            .filter(|(_, s)| s.is_alloc() && s.size > 0 && !s.is_tbss())
            .map(|(i, s)| (s.addr, i as u32)) // section counts are 32-bit numbers
            .collect();
        by_addr.sort_unstable();
        let mut elf = Elf {
            file: None,
            map: None,
            data,
            code: data,
            etype: header.e_type,
            machine: header.e_machine,
            entry: header.e_entry,
            phoff: header.e_phoff,
            shoff: header.e_shoff,
            eflags: header.e_flags,
            osabi,
            segments,
            sections,
            dynamic: Vec::new(),
            build_id: None,
            names_index: counts.names as u32, // it is below the number of sections
            loads,
            by_addr,
            ignores_kept: false,
            unpacked_relocs: Vec::new(),
            given_names: None,
        };
        elf.unpack_relocs()?;
        elf.dynamic = elf.read_dynamic()?;
        elf.build_id = elf.find_build_id();
        Ok(elf)
    }

    /// `.dynamic` as the loader sees it: through PT_DYNAMIC.
    fn read_dynamic(&self) -> Result<Vec<(i64, u64, u64)>, FormatError> {
        let Some(p) = self
            .segments
            .iter()
            .find(|p| p.kind == raw::PT_DYNAMIC && p.file_size > 0)
        else {
            return Ok(Vec::new());
        };
        let bytes = self.bytes_at(p.addr, p.file_size).ok_or_else(|| {
            FormatError::new(format!(
                "PT_DYNAMIC at address {:#x} with {} bytes is not inside the file contents of one loaded segment",
                p.addr, p.file_size
            ))
            .of(ErrorKind::OutOfBounds)
            .at_address(p.addr)
            .values(p.file_size, "bytes inside one loaded segment")
        })?;
        let mut dynamic = Vec::new();
        for (i, entry) in bytes.chunks_exact(raw::DYN as usize).enumerate() {
            let (Some(tag), Some(value)) = (raw::u64_at(entry, 0), raw::u64_at(entry, 8)) else {
                break;
            };
            if tag as i64 == raw::DT_NULL {
                break;
            }
            // The entry is in a loaded segment, whose addresses do not wrap.
            dynamic.push((tag as i64, value, p.addr + i as u64 * raw::DYN + 8));
        }
        Ok(dynamic)
    }

    /// All notes, of segments and of sections; those that both cover come twice.
    pub fn notes(&self) -> impl Iterator<Item = ElfNote<'d>> + '_ {
        let in_segments = self
            .segments
            .iter()
            .filter(|p| p.kind == raw::PT_NOTE)
            .map(|p| (range(self.data, p.offset, p.file_size), p.align));
        let in_sections = self
            .sections
            .iter()
            .filter(|s| s.kind == raw::SHT_NOTE)
            .map(|s| (self.section_data(s), s.align));
        in_segments
            .chain(in_sections)
            .flat_map(|(bytes, align)| notes::notes(bytes, align))
    }

    fn find_build_id(&self) -> Option<&'d [u8]> {
        self.notes()
            .find(|note| note.kind == raw::NT_GNU_BUILD_ID && note.name == b"GNU")
            .map(|note| note.desc)
    }

    /// The strings of the dynamic section.
    fn dynamic_strings(&self) -> &'d [u8] {
        use crate::raw::{DT_STRSZ, DT_STRTAB};
        self.dynamic_value(DT_STRTAB)
            .zip(self.dynamic_value(DT_STRSZ))
            .and_then(|(at, size)| self.bytes_at(at, size))
            .unwrap_or_default()
    }

    /// Names of the libraries that the file needs (`DT_NEEDED`).
    pub fn needed(&self) -> impl Iterator<Item = &'d [u8]> + '_ {
        use crate::raw::DT_NEEDED;
        let names = self.dynamic_strings();
        self.dynamic
            .iter()
            .filter(|d| d.0 == DT_NEEDED)
            .filter_map(move |d| symbols::string(names, u32::try_from(d.1).ok()?))
    }

    /// What the library is called by those that need it (`DT_SONAME`).
    pub fn soname(&self) -> Option<&'d [u8]> {
        use crate::raw::DT_SONAME;
        let at = self.dynamic_value(DT_SONAME)?;
        symbols::string(self.dynamic_strings(), u32::try_from(at).ok()?)
    }

    /// The section of that name.
    pub fn section(&self, name: &str) -> Option<(usize, &Section<'d>)> {
        self.sections
            .iter()
            .enumerate()
            .find(|(_, s)| s.name == name)
    }
    pub(crate) fn section_of_kind(&self, kind: u32) -> Option<(usize, &Section<'d>)> {
        self.sections
            .iter()
            .enumerate()
            .find(|(_, s)| s.kind == kind)
    }
    /// The allocated section that covers an address (TLS `.tbss` never does).
    pub fn section_at(&self, addr: u64) -> Option<(usize, &Section<'d>)> {
        let before = self.by_addr.partition_point(|(start, _)| *start <= addr);
        let (_, index) = *self.by_addr.get(before.checked_sub(1)?)?;
        let section = self.sections.get(index as usize)?;
        (addr < section.end()).then_some((index as usize, section))
    }
    /// Contents of a section; empty for NOBITS.
    pub fn section_data(&self, section: &Section<'d>) -> &'d [u8] {
        if section.has_contents() {
            range(self.data, section.offset, section.size)
        } else {
            &[]
        }
    }
    /// The loadable segment whose memory covers an address.
    #[inline]
    pub fn load_at(&self, addr: u64) -> Option<&Segment> {
        let before = self.loads.partition_point(|segment| segment.addr <= addr);
        let p = self.loads.get(before.checked_sub(1)?)?;
        (addr - p.addr < p.mem_size).then_some(p)
    }
    /// Loadable segments, ascending and disjoint.
    pub fn loads(&self) -> impl DoubleEndedIterator<Item = &Segment> + ExactSizeIterator {
        self.loads.iter()
    }
    /// File offset of a link-time address, if bytes in the file are after it.
    pub fn offset_of(&self, addr: u64) -> Option<u64> {
        let p = self.load_at(addr)?;
        (addr - p.addr < p.file_size).then(|| p.offset + (addr - p.addr))
    }
    /// `len` bytes at a link-time address, if all of them are in the file and in one segment; of code as it was before
    /// the linker made [veneers](Elf::without_erratum_veneers), if it is read so.
    #[inline]
    pub fn bytes_at(&self, addr: u64, len: u64) -> Option<&'d [u8]> {
        let p = self.load_at(addr)?;
        let from = addr - p.addr;
        let in_file = from <= p.file_size && len <= p.file_size - from;
        in_file.then(|| range(self.code, p.offset + from, len))
    }
    /// Little-endian word at an address.
    #[inline]
    pub fn u64_at(&self, addr: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes_at(addr, 8)?.try_into().ok()?))
    }
    /// Value of a dynamic tag.
    pub fn dynamic_value(&self, tag: i64) -> Option<u64> {
        self.dynamic.iter().find(|d| d.0 == tag).map(|d| d.1)
    }
    /// PT_INTERP's text.
    pub fn interpreter(&self) -> Option<&'d [u8]> {
        let p = self.segments.iter().find(|p| p.kind == raw::PT_INTERP)?;
        let text = range(self.data, p.offset, p.file_size);
        text.split(|b| *b == 0).next()
    }
    /// Lowest and one past the highest address that is loaded.
    pub fn extent(&self) -> (u64, u64) {
        let first = self.loads().next().map_or(0, |p| p.addr);
        (
            first,
            self.loads().next_back().map_or(0, |p| p.addr + p.mem_size),
        )
    }
}

/// Bytes of a range of the file that was checked to be in it; empty otherwise.
fn range(data: &[u8], offset: u64, size: u64) -> &[u8] {
    let (Ok(from), Ok(size)) = (usize::try_from(offset), usize::try_from(size)) else {
        return &[];
    };
    from.checked_add(size)
        .and_then(|to| data.get(from..to))
        .unwrap_or_default()
}

/// Whether `count` entries of `size` bytes at `offset` are in a file of `len` bytes.
fn fits(len: usize, offset: u64, count: u64, size: u64) -> bool {
    count
        .checked_mul(size)
        .and_then(|bytes| offset.checked_add(bytes))
        .is_some_and(|end| end <= len as u64)
}

/// The file header, and the operating system's ABI with its version.
fn file_header(data: &[u8]) -> Result<(Ehdr, (u8, u8)), FormatError> {
    let fail = |kind, what: String| FormatError::new(what).of(kind);
    if !data.starts_with(b"\x7fELF") {
        let begins = data.get(..4).unwrap_or(data);
        let what = format!("not an ELF file: it begins with {begins:02x?}");
        let error = fail(ErrorKind::Malformed, what).at_offset(0);
        return Err(error.values(format!("{begins:02x?}"), "[7f, 45, 4c, 46]"));
    }
    let ident = data.first_chunk::<16>();
    let (Some(&[_, _, _, _, class, encoding, version, abi, abi_version, ..]), Some(header)) =
        (ident, Ehdr::read(data, 16))
    else {
        let what = format!(
            "the file ends inside the ELF header: it has {} bytes, the header 64",
            data.len()
        );
        let error = fail(ErrorKind::Truncated, what).at_offset(0);
        return Err(error.values(data.len(), raw::EHDR));
    };
    if (class, encoding) != (2, 1) {
        let what = format!(
            "not a 64-bit little-endian file: EI_CLASS is {class} (2 expected), EI_DATA {encoding} (1 expected)"
        );
        let error = fail(ErrorKind::Unsupported, what).at_offset(4);
        return Err(error.values(format!("{class}, {encoding}"), "2, 1"));
    }
    if version != 1 || header.e_version != 1 {
        let what = format!(
            "unknown ELF version: EI_VERSION is {version}, e_version {}; 1 expected",
            header.e_version
        );
        let error = fail(ErrorKind::Unsupported, what).at_offset(6);
        return Err(error.values(format!("{version}, {}", header.e_version), 1u64));
    }
    Ok((header, (abi, abi_version)))
}

/// Table sizes, those that did not fit the header's fields included.
struct Counts {
    segments: u64,
    sections: u64,
    names: u64,
}

impl Counts {
    fn read(data: &[u8], h: &Ehdr) -> Result<Counts, FormatError> {
        let mut counts = Counts {
            segments: h.e_phnum.into(),
            sections: h.e_shnum.into(),
            names: h.e_shstrndx.into(),
        };
        if h.e_shoff == 0 {
            if h.e_shnum != 0 || h.e_phnum == raw::PN_XNUM {
                return Err(FormatError::new(format!(
                    "e_shoff is 0, but e_shnum is {} and e_phnum {:#x}, which need section headers",
                    h.e_shnum, h.e_phnum
                ))
                .of(ErrorKind::Mismatch)
                .at_offset(0x28)
                .values(h.e_shoff, "the offset of section headers"));
            }
            return Ok(Counts { names: 0, ..counts });
        }
        if u64::from(h.e_shentsize) != raw::SHDR {
            return Err(FormatError::new(format!(
                "e_shentsize is {}; section headers have {} bytes",
                h.e_shentsize,
                raw::SHDR
            ))
            .at_offset(0x3a)
            .values(h.e_shentsize, raw::SHDR));
        }
        let first = Shdr::read(data, h.e_shoff).ok_or_else(|| {
            FormatError::new(format!(
                "the section headers begin at offset {:#x}, the file ends at {:#x}",
                h.e_shoff,
                data.len()
            ))
            .of(ErrorKind::Truncated)
            .at_offset(h.e_shoff)
            .values(data.len(), h.e_shoff.saturating_add(raw::SHDR))
        })?;
        if h.e_shnum == 0 {
            counts.sections = first.sh_size;
        }
        if u32::from(h.e_shstrndx) == raw::SHN_XINDEX {
            counts.names = first.sh_link.into();
        }
        if h.e_phnum == raw::PN_XNUM {
            counts.segments = first.sh_info.into();
        }
        if counts.sections > u32::MAX.into()
            || !fits(data.len(), h.e_shoff, counts.sections, raw::SHDR)
        {
            return Err(FormatError::new(format!(
                "{} section headers at offset {:#x} do not fit a file of {:#x} bytes",
                counts.sections,
                h.e_shoff,
                data.len()
            ))
            .of(ErrorKind::Truncated)
            .at_offset(h.e_shoff)
            .values(
                data.len(),
                h.e_shoff
                    .saturating_add(counts.sections.saturating_mul(raw::SHDR)),
            ));
        }
        Ok(counts)
    }
}

fn segments(data: &[u8], h: &Ehdr, count: u64) -> Result<Vec<Segment>, FormatError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if u64::from(h.e_phentsize) != raw::PHDR {
        return Err(FormatError::new(format!(
            "e_phentsize is {}; program headers have {} bytes",
            h.e_phentsize,
            raw::PHDR
        ))
        .at_offset(0x36)
        .values(h.e_phentsize, raw::PHDR));
    }
    if !fits(data.len(), h.e_phoff, count, raw::PHDR) {
        return Err(FormatError::new(format!(
            "{count} program headers at offset {:#x} do not fit a file of {:#x} bytes",
            h.e_phoff,
            data.len()
        ))
        .of(ErrorKind::Truncated)
        .at_offset(h.e_phoff)
        .values(
            data.len(),
            h.e_phoff.saturating_add(count.saturating_mul(raw::PHDR)),
        ));
    }
    let mut segments = Vec::with_capacity(count as usize); // they fit the file
    for i in 0..count {
        // They fit the file.
        let Some(p) = Phdr::read(data, h.e_phoff + i * raw::PHDR) else {
            break;
        };
        if p.p_type != raw::PT_NULL && !fits(data.len(), p.p_offset, 1, p.p_filesz) {
            return Err(FormatError::new(format!(
                "program header {i} (type {:#x}) has {:#x} bytes at offset {:#x}; the file ends at {:#x}",
                p.p_type,
                p.p_filesz,
                p.p_offset,
                data.len()
            ))
            .of(ErrorKind::Truncated)
            .at_offset(p.p_offset)
            .values(data.len(), p.p_offset.saturating_add(p.p_filesz)));
        }
        if p.p_type != raw::PT_NULL && p.p_vaddr.checked_add(p.p_memsz.max(p.p_filesz)).is_none() {
            return Err(FormatError::new(format!(
                "program header {i} (type {:#x}) at address {:#x} with {:#x} bytes reaches beyond the end of the address space",
                p.p_type,
                p.p_vaddr,
                p.p_memsz.max(p.p_filesz)
            ))
            .of(ErrorKind::TooLarge)
            .at_address(p.p_vaddr)
            .values(p.p_memsz.max(p.p_filesz), u64::MAX - p.p_vaddr));
        }
        segments.push(Segment {
            kind: p.p_type,
            flags: p.p_flags,
            offset: p.p_offset,
            addr: p.p_vaddr,
            file_size: p.p_filesz,
            mem_size: p.p_memsz,
            align: p.p_align,
        });
    }
    Ok(segments)
}

/// The loadable segments, which must ascend without overlap.
fn loads(segments: &[Segment]) -> Result<Vec<Segment>, FormatError> {
    let mut loads: Vec<Segment> = Vec::new();
    let mut before = 0;
    for (i, p) in segments
        .iter()
        .enumerate()
        .filter(|(_, p)| p.kind == raw::PT_LOAD)
    {
        if p.file_size > p.mem_size {
            return Err(FormatError::new(format!(
                "loadable segment {i} at address {:#x} has {:#x} bytes in the file, but {:#x} in memory",
                p.addr, p.file_size, p.mem_size
            ))
            .of(ErrorKind::Mismatch)
            .at_address(p.addr)
            .values(p.file_size, p.mem_size));
        }
        if p.align > 1 && (!p.align.is_power_of_two() || p.addr % p.align != p.offset % p.align) {
            return Err(FormatError::new(format!(
                "loadable segment {i}: address {:#x} and offset {:#x} differ modulo its alignment {:#x}, or that is no power of two",
                p.addr, p.offset, p.align
            ))
            .at_address(p.addr)
            .values(p.offset, p.addr));
        }
        if let Some(b) = loads.last().filter(|b| p.addr < b.addr + b.mem_size) {
            return Err(FormatError::new(format!(
                "loadable segment {i} begins at address {:#x}, before segment {before} ends at {:#x}",
                p.addr,
                b.addr + b.mem_size
            ))
            .of(ErrorKind::Order)
            .at_address(p.addr)
            .values(p.addr, b.addr + b.mem_size));
        }
        loads.push(p.clone());
        before = i;
    }
    Ok(loads)
}

fn sections<'d>(
    data: &'d [u8],
    h: &Ehdr,
    counts: &Counts,
) -> Result<Vec<Section<'d>>, FormatError> {
    // They fit the file, and so memory.
    let mut sections = Vec::with_capacity(counts.sections as usize);
    if counts.sections == 0 {
        return Ok(sections);
    }
    let header = |i: u64| {
        if i < counts.sections {
            Shdr::read(data, h.e_shoff + i * raw::SHDR)
        } else {
            None
        }
    };
    let names = match header(counts.names) {
        _ if counts.names == 0 => &[][..],
        Some(names) if names.sh_type != raw::SHT_NOBITS => {
            range(data, names.sh_offset, names.sh_size)
        }
        _ => {
            return Err(FormatError::new(format!(
                "section {} is to hold the sections' names (e_shstrndx), but there are {} sections, or it has no contents",
                counts.names, counts.sections
            ))
            .of(ErrorKind::OutOfBounds)
            .at_entry(counts.names)
            .values(counts.names, counts.sections));
        }
    };
    for i in 0..counts.sections {
        let Some(s) = header(i) else { break };
        let name = match symbols::string(names, s.sh_name).map(std::str::from_utf8) {
            Some(Ok(name)) => name,
            None if s.sh_name == 0 && names.is_empty() => "",
            _ => {
                return Err(FormatError::new(format!(
                    "the name of section {i} (sh_name {:#x}) does not end within the {:#x} bytes of names, or is not UTF-8",
                    s.sh_name,
                    names.len()
                ))
                .of(ErrorKind::OutOfBounds)
                .at_entry(i)
                .values(s.sh_name, names.len()));
            }
        };
        if i == 0 && s.sh_type != raw::SHT_NULL {
            return Err(FormatError::new(format!(
                "section 0 has type {:#x}; it describes no section and must have type 0",
                s.sh_type
            ))
            .at_entry(0)
            .values(s.sh_type, raw::SHT_NULL));
        }
        let place = || format!("section {i} ({name})");
        if s.sh_type != raw::SHT_NULL {
            if s.sh_type != raw::SHT_NOBITS && !fits(data.len(), s.sh_offset, 1, s.sh_size) {
                return Err(FormatError::new(format!(
                    "{} has {:#x} bytes at offset {:#x}; the file ends at {:#x}",
                    place(),
                    s.sh_size,
                    s.sh_offset,
                    data.len()
                ))
                .of(ErrorKind::Truncated)
                .at_offset(s.sh_offset)
                .values(data.len(), s.sh_offset.saturating_add(s.sh_size)));
            }
            if matches!(s.sh_type, raw::SHT_SYMTAB | raw::SHT_DYNSYM) {
                if s.sh_entsize != raw::SYM || !s.sh_size.is_multiple_of(raw::SYM) {
                    return Err(FormatError::new(format!(
                        "{} has {:#x} bytes in entries of {}; symbols have {}",
                        place(),
                        s.sh_size,
                        s.sh_entsize,
                        raw::SYM
                    ))
                    .at_entry(i)
                    .values(s.sh_entsize, raw::SYM));
                }
                if header(s.sh_link.into()).is_none_or(|names| names.sh_type != raw::SHT_STRTAB) {
                    return Err(FormatError::new(format!(
                        "the names of {} are in section {} (sh_link), which is no string table",
                        place(),
                        s.sh_link
                    ))
                    .at_entry(i)
                    .values(s.sh_link, "the index of a string table"));
                }
            }
        }
        if s.sh_addr.checked_add(s.sh_size).is_none() {
            return Err(FormatError::new(format!(
                "{} at address {:#x} with {:#x} bytes reaches beyond the end of the address space",
                place(),
                s.sh_addr,
                s.sh_size
            ))
            .of(ErrorKind::TooLarge)
            .at_address(s.sh_addr)
            .values(s.sh_size, u64::MAX - s.sh_addr));
        }
        sections.push(Section {
            name,
            kind: s.sh_type,
            flags: s.sh_flags,
            addr: s.sh_addr,
            offset: s.sh_offset,
            size: s.sh_size,
            link: s.sh_link,
            info: s.sh_info,
            align: s.sh_addralign,
            entry_size: s.sh_entsize,
        });
    }
    Ok(sections)
}

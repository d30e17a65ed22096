//! What the proof needs of an ELF file.
//!
//! The file is read by the crate `object`, which the rewriter's writer does not use: headers, section and program
//! headers, symbols and dynamic tags of 64-bit little-endian files. What is here is the view of them that the rest of
//! the checker has, and what must hold of a file before anything is said about it. Addresses are link-time addresses
//! throughout.
//!
//! Invariants of an [`Elf`] that parsed: every PT_LOAD's bytes are inside the file; loads are ascending and disjoint
//! in memory; every section's bytes (but for NOBITS) are inside the file; no address range wraps around.

use std::borrow::Cow;

use object::elf::{
    CompressionHeader64, Dyn64, FileHeader64, ProgramHeader64, Rela64, SectionHeader64, Sym64,
};
use object::read::elf::{
    CompressionHeader as _, CrelIterator, Dyn as _, FileHeader, ProgramHeader as _,
    SectionHeader as _, Sym as _,
};
use object::{CompressedData, CompressionFormat, LittleEndian, pod};

use crate::Error;
use crate::consulted;
use crate::files::bytes::Reader;

pub(crate) const PT_NULL: u32 = object::elf::PT_NULL.0;
pub(crate) const PT_LOAD: u32 = object::elf::PT_LOAD.0;
pub(crate) const PT_DYNAMIC: u32 = object::elf::PT_DYNAMIC.0;
pub(crate) const PT_INTERP: u32 = object::elf::PT_INTERP.0;
pub(crate) const PT_NOTE: u32 = object::elf::PT_NOTE.0;
pub(crate) const PT_PHDR: u32 = object::elf::PT_PHDR.0;
pub(crate) const PT_TLS: u32 = object::elf::PT_TLS.0;
pub(crate) const PT_GNU_RELRO: u32 = 0x6474_e552;
pub(crate) const PT_GNU_EH_FRAME: u32 = object::elf::PT_GNU_EH_FRAME.0;
pub(crate) const PT_GNU_PROPERTY: u32 = object::elf::PT_GNU_PROPERTY.0;
pub(crate) const SHT_NULL: u32 = object::elf::SHT_NULL.0;
pub(crate) const SHT_SYMTAB: u32 = object::elf::SHT_SYMTAB.0;
pub(crate) const SHT_RELA: u32 = object::elf::SHT_RELA.0;
pub(crate) const SHT_CREL: u32 = object::elf::SHT_CREL.0;
pub(crate) const SHT_NOTE: u32 = object::elf::SHT_NOTE.0;
pub(crate) const SHT_NOBITS: u32 = object::elf::SHT_NOBITS.0;
pub(crate) const SHT_DYNSYM: u32 = object::elf::SHT_DYNSYM.0;
pub(crate) const NT_GNU_BUILD_ID: u32 = object::elf::NT_GNU_BUILD_ID.0;
pub(crate) const PF_X: u32 = object::elf::PF_X.0;
pub(crate) const PF_W: u32 = object::elf::PF_W.0;
pub(crate) const ET_EXEC: u16 = object::elf::ET_EXEC.0;
pub(crate) const SHF_ALLOC: u64 = object::elf::SHF_ALLOC.0;
pub(crate) const SHF_EXECINSTR: u64 = object::elf::SHF_EXECINSTR.0;
pub(crate) const SHF_COMPRESSED: u64 = object::elf::SHF_COMPRESSED.0;

const LE: LittleEndian = LittleEndian;

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
    /// Whether it is code that is loaded.
    pub(crate) fn is_code(&self) -> bool {
        self.is_alloc() && self.flags & SHF_EXECINSTR != 0
    }
    /// Whether it holds relocations that the linker kept.
    pub(crate) fn is_kept_relocations(&self) -> bool {
        matches!(self.kind, SHT_RELA | SHT_CREL) && !self.is_alloc()
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
    /// STT_NOTYPE, and not STB_LOCAL.
    pub(crate) fn is_visible_label(&self) -> bool {
        self.kind() == 0 && self.info >> 4 != 0
    }
}

/// Size of a symbol table entry.
pub(crate) const SYM_SIZE: usize = size_of::<Sym64<LittleEndian>>();

/// The entries of a symbol table: (name offset, symbol without its name).
pub(crate) fn raw_symbols(table: &[u8]) -> impl Iterator<Item = (u32, Symbol<'static>)> + use<'_> {
    whole::<Sym64<LittleEndian>>(table).iter().map(|entry| {
        let symbol = Symbol {
            name: b"",
            info: entry.st_info().0,
            other: entry.st_other().0,
            section: entry.st_shndx(LE).0,
            value: entry.st_value(LE),
            size: entry.st_size(LE),
        };
        (entry.st_name(LE), symbol)
    })
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
    /// The same, but for loads and stores that are read in other places ([`crate::files::veneers`]).
    code: &'d [u8],
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
    /// Relocations in the encoding CREL by the offsets of their sections, ascending, as records of `SHT_RELA`.
    unpacked_relocations: Vec<(u64, Vec<u8>)>,
    /// Whether what is read of it is noted ([`crate::consulted`]).
    pub is_noted: bool,
}

/// Bytes at an offset of the file.
fn slice(data: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let len = usize::try_from(size).ok()?;
    data.get(start..start.checked_add(len)?)
}

/// Contents with the gABI's header of compressed sections.
fn after_gabi_header(data: &[u8]) -> Option<CompressedData<'_>> {
    let (header, rest) = pod::from_bytes::<CompressionHeader64<LittleEndian>>(data).ok()?;
    let format = match header.ch_type(LE) {
        object::elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        object::elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return None,
    };
    Some(CompressedData {
        format,
        data: rest,
        uncompressed_size: header.ch_size(LE),
    })
}

/// Contents with the header that older GNU tools give sections called `.zdebug_*`.
fn after_gnu_header(data: &[u8]) -> Option<CompressedData<'_>> {
    let (size, data) = data.strip_prefix(b"ZLIB")?.split_first_chunk()?;
    Some(CompressedData {
        format: CompressionFormat::Zlib,
        data,
        uncompressed_size: u64::from_be_bytes(*size),
    })
}

/// The string at an offset of a string table, without its zero.
pub(crate) fn string_at(table: &[u8], offset: u32) -> &[u8] {
    let rest = table.get(offset as usize..).unwrap_or(b"");
    // That looks at many bytes at once: mangled names are long, and of a large program there are many.
    std::ffi::CStr::from_bytes_until_nul(rest).map_or(rest, std::ffi::CStr::to_bytes)
}

/// The records that are whole in a table's bytes.
fn whole<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    let count = bytes.len() / size_of::<T>();
    pod::slice_from_bytes(bytes, count).map_or(&[], |(records, _)| records)
}

/// Relocations in the encoding CREL as records of `SHT_RELA`.
fn unpacked(data: &[u8]) -> Result<Vec<u8>, String> {
    let relocations = CrelIterator::new(data).map_err(|e| e.to_string())?;
    if !relocations.is_rela() {
        return Err("they have no addends".into());
    }
    // Each takes at least a byte.
    if relocations.len() > data.len() {
        return Err(format!(
            "{} relocations in {} bytes",
            relocations.len(),
            data.len()
        ));
    }
    let mut records = Vec::with_capacity(relocations.len() * size_of::<Rela64<LittleEndian>>());
    for relocation in relocations {
        let r = relocation.map_err(|e| e.to_string())?;
        records.extend(r.r_offset.to_le_bytes());
        records.extend(r.r_type.0.to_le_bytes());
        records.extend(r.r_sym.to_le_bytes());
        records.extend(r.r_addend.to_le_bytes());
    }
    Ok(records)
}

fn header(data: &[u8]) -> Result<&FileHeader64<LittleEndian>, String> {
    if data.len() < size_of::<FileHeader64<LittleEndian>>() {
        return Err(format!(
            "{} bytes are too few for an ELF header",
            data.len()
        ));
    }
    if !data.starts_with(&object::elf::ELFMAG) {
        return Err("it does not begin with the ELF magic number".into());
    }
    let header = FileHeader64::<LittleEndian>::parse(data).map_err(|e| e.to_string())?;
    if header.is_class_64() && header.is_little_endian() {
        Ok(header)
    } else {
        Err("it is not a 64-bit little-endian ELF file".into())
    }
}

/// Program headers in the table's order, PT_NULL left out; and those that are loaded, ascending.
fn segments(
    data: &[u8],
    header: &FileHeader64<LittleEndian>,
) -> Result<(Vec<Segment>, Vec<Segment>), String> {
    let (phoff, phnum) = (header.e_phoff(LE), header.e_phnum(LE));
    if phnum == object::elf::PN_XNUM {
        return Err("it has more than 65534 program headers".into());
    }
    let table: &[ProgramHeader64<LittleEndian>] = header.program_headers(LE, data).map_err(|e| {
        format!(
            "its {phnum} program headers of {} bytes at {phoff:#x} are not all in the file: {e}",
            header.e_phentsize(LE)
        )
    })?;
    let segments: Vec<Segment> = table
        .iter()
        .map(|p| Segment {
            kind: p.p_type(LE).0,
            flags: p.p_flags(LE).0,
            offset: p.p_offset(LE),
            addr: p.p_vaddr(LE),
            file_size: p.p_filesz(LE),
            mem_size: p.p_memsz(LE),
            align: p.p_align(LE),
        })
        .filter(|s| s.kind != PT_NULL)
        .collect();
    let mut loads: Vec<Segment> = Vec::new();
    for s in segments.iter().filter(|s| s.kind == PT_LOAD) {
        if s.addr.checked_add(s.mem_size).is_none() || s.file_size > s.mem_size {
            return Err(format!(
                "its segment at {:#x} has impossible sizes ({:#x}, {:#x})",
                s.addr, s.file_size, s.mem_size
            ));
        }
        if slice(data, s.offset, s.file_size).is_none() {
            return Err(format!(
                "its segment at {:#x} reaches past the end of the file",
                s.addr
            ));
        }
        if let Some(last) = loads.last().filter(|last| last.end() > s.addr) {
            return Err(format!(
                "its segments at {:#x} and {:#x} overlap or are not in order",
                last.addr, s.addr
            ));
        }
        loads.push(*s);
    }
    Ok((segments, loads))
}

fn sections<'d>(
    data: &'d [u8],
    header: &FileHeader64<LittleEndian>,
) -> Result<Vec<Section<'d>>, String> {
    let shoff = header.e_shoff(LE);
    let unreadable = |e: object::read::Error| {
        format!(
            "its section headers of {} bytes at {shoff:#x} cannot be read: {e}",
            header.e_shentsize(LE)
        )
    };
    let table: &[SectionHeader64<LittleEndian>] =
        header.section_headers(LE, data).map_err(unreadable)?;
    // Without names a file still runs.
    let names = header
        .section_strings_index(LE, data)
        .ok()
        .and_then(|i| table.get(i.0));
    let strings = names
        .and_then(|s| slice(data, s.sh_offset(LE), s.sh_size(LE)))
        .unwrap_or(b"");
    let mut sections = Vec::with_capacity(table.len());
    for (i, raw) in table.iter().enumerate() {
        let s = Section {
            name: string_at(strings, raw.sh_name(LE)),
            kind: raw.sh_type(LE).0,
            flags: raw.sh_flags(LE).0,
            addr: raw.sh_addr(LE),
            offset: raw.sh_offset(LE),
            size: raw.sh_size(LE),
            link: raw.sh_link(LE),
            info: raw.sh_info(LE),
        };
        if s.kind != SHT_NOBITS && s.kind != SHT_NULL && slice(data, s.offset, s.size).is_none() {
            return Err(format!(
                "its section {i} ({:#x} bytes at {:#x}) reaches past the end of the file",
                s.size, s.offset
            ));
        }
        if s.addr.checked_add(s.size).is_none() {
            return Err(format!(
                "its section {i} ({:#x} bytes at address {:#x}) wraps around the address space",
                s.size, s.addr
            ));
        }
        sections.push(s);
    }
    Ok(sections)
}

impl<'d> Elf<'d> {
    /// Parses a file. `which` names it in errors ("input", "output").
    pub(crate) fn parse(data: &'d [u8], which: &'static str) -> Result<Self, Error> {
        Self::read(data).map_err(|what| Error::Unreadable { which, what })
    }

    /// Parses a file with debug information alone, whose segments have no contents.
    pub(crate) fn parse_debug_file(data: &'d [u8], which: &'static str) -> Result<Self, Error> {
        let read = header(data)
            .and_then(|header| Self::with_segments(data, header, Vec::new(), Vec::new()));
        read.map_err(|what| Error::Unreadable { which, what })
    }

    fn read(data: &'d [u8]) -> Result<Self, String> {
        let header = header(data)?;
        let (segments, loads) = segments(data, header)?;
        Self::with_segments(data, header, segments, loads)
    }

    fn with_segments(
        data: &'d [u8],
        header: &FileHeader64<LittleEndian>,
        segments: Vec<Segment>,
        loads: Vec<Segment>,
    ) -> Result<Self, String> {
        let phnum = u32::from(header.e_phnum(LE));
        let mut elf = Elf {
            data,
            code: data,
            etype: header.e_type(LE).0,
            machine: header.e_machine(LE).0,
            ident: data.get(..16).unwrap_or(b""),
            eflags: header.e_flags(LE).0,
            entry: header.e_entry(LE),
            phoff: header.e_phoff(LE),
            segments,
            phnum: u64::from(phnum),
            sections: sections(data, header)?,
            dynamic: Vec::new(),
            loads,
            unpacked_relocations: Vec::new(),
            is_noted: false,
        };
        elf.unpacked_relocations = elf.unpack_relocations()?;
        if let Some(d) = elf.segment(PT_DYNAMIC).copied() {
            let bytes = elf.bytes(d.addr, d.file_size).ok_or_else(|| {
                format!(
                    "its dynamic section at {:#x} is not loaded from the file",
                    d.addr
                )
            })?;
            let entries = whole::<Dyn64<LittleEndian>>(bytes);
            elf.dynamic = entries
                .iter()
                .map(|d| Dyn {
                    tag: d.d_tag(LE).0 as u64,
                    value: d.d_val(LE),
                })
                .take_while(|d| d.tag != 0)
                .collect();
        }
        Ok(elf)
    }

    /// Reads code from other bytes, which have everything else in the same places.
    pub(crate) fn read_code_from(&mut self, code: Option<&'d [u8]>) {
        self.code = code.unwrap_or(self.data);
    }

    /// Where in the file a loaded byte is.
    pub(crate) fn offset_of(&self, addr: u64) -> Option<usize> {
        let load = self.load_at(addr).filter(|load| addr < load.file_end())?;
        usize::try_from(load.offset.checked_add(addr - load.addr)?).ok()
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
        if self.is_noted {
            consulted::read(addr, s.file_size - skip);
        }
        slice(self.code, s.offset.checked_add(skip)?, s.file_size - skip)
    }

    /// The same, of at most `len` bytes.
    pub(crate) fn bytes_near(&self, addr: u64, len: u64) -> Option<&'d [u8]> {
        let s = self
            .loads
            .iter()
            .find(|s| s.addr <= addr && addr < s.file_end())?;
        let (skip, len) = (addr - s.addr, len.min(s.file_end() - addr));
        if self.is_noted {
            consulted::read(addr, len);
        }
        slice(self.code, s.offset.checked_add(skip)?, len)
    }

    /// `len` file bytes at an address, within one segment.
    pub(crate) fn bytes(&self, addr: u64, len: u64) -> Option<&'d [u8]> {
        if len == 0 {
            return Some(&[]);
        }
        let bytes = self.bytes_near(addr, len)?;
        (bytes.len() as u64 == len).then_some(bytes)
    }

    /// `len` bytes at an address, as they are in the file.
    pub(crate) fn bytes_as_written(&self, addr: u64, len: u64) -> Option<&'d [u8]> {
        self.bytes(addr, len)?;
        slice(self.data, self.offset_of(addr)? as u64, len)
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
            if self.is_noted {
                consulted::read(s.addr, s.size);
            }
            slice(self.data, s.offset, s.size).unwrap_or(b"")
        }
    }

    /// The records of a section of relocations, each as `SHT_RELA` has it: 24 bytes.
    pub(crate) fn relocation_records(&self, s: &Section<'_>) -> &[u8] {
        if s.kind != SHT_CREL {
            return self.section_data(s);
        }
        let all = &self.unpacked_relocations;
        let found = all.binary_search_by_key(&s.offset, |u| u.0).ok();
        found.and_then(|i| all.get(i)).map_or(b"", |u| &u.1)
    }

    /// Decodes the relocations in the encoding CREL that the linker kept of loaded sections.
    fn unpack_relocations(&self) -> Result<Vec<(u64, Vec<u8>)>, String> {
        let of_loaded = |s: &&Section<'_>| {
            let about = self.sections.get(s.info as usize);
            s.kind == SHT_CREL && !s.is_alloc() && about.is_some_and(Section::is_alloc)
        };
        let sections = || self.sections.iter().filter(of_loaded);
        let total = sections().fold(0, |sum: u64, s| sum.saturating_add(s.size));
        if total > self.data.len() as u64 {
            return Err(format!(
                "its sections of relocations take {total} bytes of a file of {}: they overlap",
                self.data.len()
            ));
        }
        let mut all = Vec::new();
        for s in sections() {
            let records = unpacked(self.section_data(s)).map_err(|e| {
                let name = String::from_utf8_lossy(s.name);
                format!("its section {name} of compact relocations (CREL) cannot be read: {e}")
            })?;
            all.push((s.offset, records));
        }
        all.sort_unstable_by_key(|u| u.0);
        Ok(all)
    }

    /// A section's contents, unpacked if they are compressed.
    pub(crate) fn unpacked_section_data(&self, s: &Section<'_>) -> Result<Cow<'d, [u8]>, String> {
        let name = || String::from_utf8_lossy(s.name);
        let data = self.section_data(s);
        let gabi = s.flags & SHF_COMPRESSED != 0;
        let packed = match (gabi, s.name.starts_with(b".z")) {
            (true, _) => after_gabi_header(data),
            (false, true) => after_gnu_header(data),
            (false, false) => return Ok(Cow::Borrowed(data)),
        };
        let packed =
            packed.ok_or_else(|| format!("{} has no header of compressed sections", name()))?;
        // Nothing that is compressed has so many bytes for each of its own.
        let most = (data.len() as u64).saturating_mul(1 << 16);
        if packed.uncompressed_size > most {
            let size = packed.uncompressed_size;
            return Err(format!(
                "{} of {} bytes says that it has {size} when unpacked",
                name(),
                data.len()
            ));
        }
        let unpacked = packed.decompress();
        unpacked.map_err(|e| format!("{} cannot be unpacked: {e}", name()))
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
        self.symbols_if(kind, |_| true)
    }

    /// Those of them of which this is true, which is asked before they have their names: names are long, and all of a
    /// large program take as long to read as much of its code.
    pub(crate) fn symbols_if<F: Fn(&Symbol<'_>) -> bool>(
        &self,
        kind: u32,
        wanted: F,
    ) -> impl Iterator<Item = Symbol<'d>> + use<'d, F> {
        let section = self.sections.iter().find(|s| s.kind == kind);
        let bytes = section.map_or(&b""[..], |s| self.section_data(s));
        let strings = section
            .and_then(|s| self.sections.get(s.link as usize))
            .map_or(&b""[..], |s| self.section_data(s));
        let all = raw_symbols(bytes).filter(move |(_, symbol)| wanted(symbol));
        all.map(move |(name, symbol)| Symbol {
            name: string_at(strings, name),
            ..symbol
        })
    }

    /// The same symbols with the offsets of their names in a string table, and that.
    pub(crate) fn symbols_and_strings(
        &self,
        kind: u32,
    ) -> (
        impl Iterator<Item = (u32, Symbol<'static>)> + use<'d>,
        &'d [u8],
    ) {
        let section = self.sections.iter().find(|s| s.kind == kind);
        let bytes = section.map_or(&b""[..], |s| self.section_data(s));
        let strings = section
            .and_then(|s| self.sections.get(s.link as usize))
            .map_or(&b""[..], |s| self.section_data(s));
        (raw_symbols(bytes), strings)
    }

    /// The same symbols without their names.
    pub(crate) fn nameless_symbols(
        &self,
        kind: u32,
    ) -> impl Iterator<Item = Symbol<'static>> + use<'d> {
        let section = self.sections.iter().find(|s| s.kind == kind);
        let bytes = section.map_or(&b""[..], |s| self.section_data(s));
        raw_symbols(bytes).map(|(_, symbol)| symbol)
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

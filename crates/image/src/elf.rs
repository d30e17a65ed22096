//! ELF reading: a checked, mostly zero-copy view of a 64-bit little-endian file.

use crate::FormatError;

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
#[derive(Clone, Debug, PartialEq, Eq)]
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
        self.flags & 2 != 0
    }
    /// Holds instructions.
    pub fn is_code(&self) -> bool {
        self.flags & 6 == 6
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
    /// Where the entry's addend field lies (link-time address), `None` for RELR: there the word in place is the addend.
    pub addend_at: Option<u64>,
}

/// A parsed file.
#[derive(Debug)]
pub struct Elf<'d> {
    /// The whole file.
    pub data: &'d [u8],
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
}

impl<'d> Elf<'d> {
    /// Parses and checks headers, segments, sections, dynamic section and notes. Every later accessor is safe on what
    /// passed. Overlapping loadable segments, tables outside the file, absurd counts and sizes are errors with values.
    pub fn parse(_data: &'d [u8]) -> Result<Elf<'d>, FormatError> {
        todo!()
    }
    /// The section of that name.
    pub fn section(&self, _name: &str) -> Option<(usize, &Section<'d>)> {
        todo!()
    }
    /// The allocated section that covers an address (TLS `.tbss` never does).
    pub fn section_at(&self, _addr: u64) -> Option<(usize, &Section<'d>)> {
        todo!()
    }
    /// Contents of a section; empty for NOBITS.
    pub fn section_data(&self, _section: &Section<'d>) -> &'d [u8] {
        todo!()
    }
    /// File offset of a link-time address, if bytes in the file stand behind it.
    pub fn offset_of(&self, _addr: u64) -> Option<u64> {
        todo!()
    }
    /// `len` bytes at a link-time address, if all of them are in the file and in one segment.
    pub fn bytes_at(&self, _addr: u64, _len: u64) -> Option<&'d [u8]> {
        todo!()
    }
    /// Little-endian word at an address.
    pub fn u64_at(&self, addr: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes_at(addr, 8)?.try_into().ok()?))
    }
    /// Symbols of a table, index 0 included. Names outside the string table are empty.
    pub fn symbols(&self, _table: SymbolTable) -> Symbols<'d> {
        todo!()
    }
    /// Relocations that the linker kept for allocated sections, section by section in the file's order, without R_*_NONE.
    pub fn kept_relocs(&self) -> Result<Vec<KeptReloc>, FormatError> {
        todo!()
    }
    /// Whether the linker kept relocations for code.
    pub fn has_kept_relocs(&self) -> bool {
        todo!()
    }
    /// All dynamic relocations: DT_RELA, DT_JMPREL, DT_RELR; in a static executable those between
    /// `__rela_iplt_start` and `__rela_iplt_end` (section `.rela.plt`/`.rela.iplt`/`.rela.dyn` that is allocated).
    pub fn dyn_relocs(&self) -> Result<Vec<DynReloc>, FormatError> {
        todo!()
    }
    /// Value of a dynamic tag.
    pub fn dynamic_value(&self, tag: i64) -> Option<u64> {
        self.dynamic.iter().find(|d| d.0 == tag).map(|d| d.1)
    }
    /// PT_INTERP's text.
    pub fn interpreter(&self) -> Option<&'d [u8]> {
        todo!()
    }
    /// Lowest and one past the highest address that is loaded.
    pub fn extent(&self) -> (u64, u64) {
        todo!()
    }
}

/// A symbol table, read on demand.
#[derive(Clone, Copy, Debug)]
pub struct Symbols<'d> {
    _data: &'d [u8],
}

impl<'d> Symbols<'d> {
    /// How many, index 0 included.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// One by index.
    pub fn get(&self, _index: usize) -> Option<Symbol<'d>> {
        todo!()
    }
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'d>> + use<'d> {
        let this = *self;
        (0..this.len()).filter_map(move |i| this.get(i))
    }
}

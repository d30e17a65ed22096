//! Space for a longer program header table.
//!
//! New segments need entries in a table that linkers lay out without a byte to spare: the first section
//! follows directly. BOLT writes a new table at the end of the file, which strip and objcopy, old kernels
//! (before 5.18 the kernel computes the address of the table from the first segment) and some loaders do not
//! expect. Here the table stays right after the ELF header wherever that is possible. In order of preference:
//!
//! 1. **Gap.** Nothing is after the table: zeroes that no section covers. If the segment that loads the table
//!    ends with it (static programs of musl have nothing else in their first segment), the segment becomes
//!    longer as well.
//! 2. **Block.** What is after the table is found by the loader through a header or a dynamic tag, not by
//!    code: the interpreter's name, notes, the dynamic symbol table and its hashes, names and versions,
//!    dynamic relocations. As many of these sections as are in the way move, as one block with one
//!    displacement, to the beginning of the new segment. A block is closed under the segments that describe
//!    its sections: notes of one PT_NOTE move together. The place where a section was is lost; a block of
//!    more than 1/32 of the file (or 64 KiB, in a small one) is not worth that.
//! 3. **Page below.** In a program at a fixed address, the file grows by a page at its front, and the first
//!    segment by that page below its address. All other addresses stay; all file offsets grow by a page.
//! 4. **Elsewhere.** The table goes to the beginning of the new segment, which in a position-independent program is as
//!    far from its place in the file as the first segment, for old kernels.
//!
//! A section is moved only if nothing refers to it by address: kept relocations name no symbol in it, and in
//! a file without them no symbol but the section's own is in it (`__abi_tag`, which the C start files define
//! and nothing uses, and mapping symbols excepted) and no dynamic relocation points to it or applies to it.

use crate::elf::{Elf, Segment, SymbolTable};
use crate::raw::{self, Rela, Sym};

/// How the table gets its space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It is there already.
    Gap,
    /// Sections make way.
    Block(Block),
    /// So many bytes are put in front of the whole file.
    Below(u64),
    /// The table moves to the new segment.
    Elsewhere,
}

/// Consecutive sections that move together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// File offset in the input.
    pub offset: u64,
    /// Address in the input.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// Every address in it stays the same modulo this.
    pub align: u64,
    /// Indexes of the sections, ascending.
    pub sections: Vec<u32>,
}

impl Block {
    /// Whether a file offset range belongs to it.
    pub fn holds(&self, offset: u64, size: u64) -> bool {
        offset >= self.offset
            && offset - self.offset <= self.size
            && size <= self.size - (offset - self.offset)
            && size > 0
    }
    /// Whether a symbol is a place in it. GNU ld defines symbols of other places as if in the first section
    /// (`__ehdr_start`).
    pub fn has_symbol(&self, symbol: &Sym, section: u32) -> bool {
        let at_end = symbol.st_value == self.addr.wrapping_add(self.size);
        self.sections.binary_search(&section).is_ok() && (self.covers(symbol.st_value) || at_end)
    }
    /// Whether an address belongs to it.
    pub fn covers(&self, addr: u64) -> bool {
        addr >= self.addr && addr - self.addr < self.size
    }
}

/// Tags whose values are addresses of sections that may move.
pub(super) const TABLE_TAGS: [i64; 10] = [
    raw::DT_HASH,
    raw::DT_STRTAB,
    raw::DT_SYMTAB,
    raw::DT_RELA,
    raw::DT_JMPREL,
    raw::DT_RELR,
    raw::DT_GNU_HASH,
    raw::DT_VERSYM,
    raw::DT_VERDEF,
    raw::DT_VERNEED,
];

/// Finds space for `extra` more entries. `loaded_end` is the end of the loaded part of the file, `page` the
/// size by which a program may grow at its front. `fixed`: no section may make way.
pub(super) fn find(elf: &Elf<'_>, extra: u64, loaded_end: u64, page: u64, fixed: bool) -> Room {
    let count = elf.segments.len() as u64;
    // The table is in the file, whose size is far from overflow.
    let end = elf.phoff + count * raw::PHDR;
    let needed = end + extra * raw::PHDR;
    if needed <= loaded_end && is_gap(elf, end, needed, page) {
        return Room::Gap;
    }
    let block = || block(elf, end, needed).filter(|b| is_unreferenced(elf, b));
    if let Some(block) = (!fixed).then(block).flatten() {
        return Room::Block(block);
    }
    let table = (raw::EHDR + (count + extra) * raw::PHDR).next_multiple_of(page);
    if may_grow_below(elf, table, page) {
        Room::Below(table)
    } else {
        Room::Elsewhere
    }
}

/// Whether a part of the file belongs to nothing, and, if the table is loaded, is loaded with it.
fn is_gap(elf: &Elf<'_>, from: u64, to: u64, page: u64) -> bool {
    let zero = elf
        .data
        .get(from as usize..to as usize)
        .is_some_and(|bytes| bytes.iter().all(|b| *b == 0));
    let overlaps = |offset: u64, size: u64| size > 0 && offset < to && offset + size > from;
    let in_section = elf
        .sections
        .iter()
        .any(|s| s.has_contents() && overlaps(s.offset, s.size));
    let in_headers = overlaps(elf.shoff, elf.sections.len() as u64 * raw::SHDR);
    let one_segment = elf
        .loads()
        .all(|p| !overlaps(p.offset, p.file_size) || holds(p, elf.phoff, to));
    // A segment that ends with the table grows with it, if that is where it ends in memory too and the next
    // begins in another page.
    let in_memory = elf
        .loads()
        .filter(|p| holds(p, elf.phoff, from) && !holds(p, elf.phoff, to))
        .all(|p| {
            let (start, end) = (p.addr + p.mem_size, p.addr + (to - p.offset));
            let free = |q: &Segment| q.addr < start || q.addr - q.addr % page >= end;
            let constant = p.flags & (raw::PF_W | raw::PF_X) == 0;
            constant
                && p.mem_size == p.file_size
                && p.offset + p.file_size == from
                && elf.loads().all(free)
        });
    zero && in_memory && !in_section && !in_headers && one_segment && !elf.sections.is_empty()
}

fn holds(p: &Segment, from: u64, to: u64) -> bool {
    from >= p.offset && to <= p.offset + p.file_size
}

/// The smallest closed run of movable sections whose removal frees the bytes up to `needed`.
fn block(elf: &Elf<'_>, table_end: u64, needed: u64) -> Option<Block> {
    let load = elf.loads().find(|p| holds(p, elf.phoff, needed))?;
    // Entries of type PT_NULL may hold any numbers.
    let in_file = |offset: u64, size: u64, from: u64, to: u64| {
        size > 0 && offset < to && offset.saturating_add(size) > from
    };
    let (mut from, mut to) = (u64::MAX, needed);
    // Grow to whole sections and segments until nothing sticks out.
    loop {
        let before = (from, to);
        let inside = |offset: u64, size: u64| in_file(offset, size, table_end, before.1);
        for s in elf
            .sections
            .iter()
            .filter(|s| s.has_contents() && inside(s.offset, s.size))
        {
            from = from.min(s.offset);
            to = to.max(s.offset + s.size);
        }
        for p in elf
            .segments
            .iter()
            .filter(|p| inside(p.offset, p.file_size))
        {
            match p.kind {
                raw::PT_INTERP | raw::PT_NOTE | raw::PT_GNU_PROPERTY => {
                    from = from.min(p.offset);
                    to = to.max(p.offset + p.file_size);
                }
                raw::PT_LOAD | raw::PT_PHDR | raw::PT_NULL => {}
                _ => return None,
            }
        }
        if (from, to) == before {
            break;
        }
    }
    if from < table_end || from > to || !holds(load, from, to) {
        return None;
    }
    let mut align = 1;
    let mut sections = Vec::new();
    for (i, s) in elf.sections.iter().enumerate() {
        let by_file = s.has_contents() && in_file(s.offset, s.size, from, to);
        let addr = load.addr + (from - load.offset);
        let by_addr = s.is_alloc() && s.addr >= addr && s.addr < addr + (to - from);
        if !by_file && !by_addr {
            continue;
        }
        // `movable` sections are loaded from where they say.
        if !is_movable(elf, i) || elf.offset_of(s.addr) != Some(s.offset) {
            return None;
        }
        align = align.max(s.align);
        sections.push(i as u32); // section counts are 32-bit numbers
    }
    for p in elf
        .segments
        .iter()
        .filter(|p| p.kind != raw::PT_LOAD && in_file(p.offset, p.file_size, from, to))
    {
        align = align.max(p.align);
    }
    let size = to - from;
    let worth = size <= (elf.data.len() as u64 / 32).max(64 << 10);
    (align.is_power_of_two() && align <= 4096 && worth && !sections.is_empty()).then(|| Block {
        offset: from,
        addr: load.addr + (from - load.offset),
        size,
        align,
        sections,
    })
}

/// Whether the loader finds a section only through headers and tags that can be changed.
fn is_movable(elf: &Elf<'_>, index: usize) -> bool {
    let s = &elf.sections[index];
    if !s.is_alloc() || s.flags & (raw::SHF_WRITE | raw::SHF_EXECINSTR | raw::SHF_TLS) != 0 {
        return false;
    }
    let tagged = |tag| elf.dynamic_value(tag) == Some(s.addr);
    let sized = |tag, size| tagged(tag) && elf.dynamic_value(size) == Some(s.size);
    match s.kind {
        raw::SHT_NOTE => s.name.starts_with(".note"),
        raw::SHT_PROGBITS => {
            s.name == ".interp"
                && elf
                    .segments
                    .iter()
                    .any(|p| p.kind == raw::PT_INTERP && p.addr == s.addr && p.file_size == s.size)
        }
        raw::SHT_HASH => tagged(raw::DT_HASH),
        raw::SHT_GNU_HASH => tagged(raw::DT_GNU_HASH),
        raw::SHT_DYNSYM => tagged(raw::DT_SYMTAB),
        raw::SHT_STRTAB => tagged(raw::DT_STRTAB),
        raw::SHT_GNU_VERSYM => tagged(raw::DT_VERSYM),
        raw::SHT_GNU_VERDEF => tagged(raw::DT_VERDEF),
        raw::SHT_GNU_VERNEED => tagged(raw::DT_VERNEED),
        // One tag may span two sections; then neither moves.
        raw::SHT_RELA => {
            sized(raw::DT_RELA, raw::DT_RELASZ) || sized(raw::DT_JMPREL, raw::DT_PLTRELSZ)
        }
        raw::SHT_RELR => sized(raw::DT_RELR, raw::DT_RELRSZ),
        _ => false,
    }
}

/// Whether nothing refers to a block by address; see the module.
fn is_unreferenced(elf: &Elf<'_>, block: &Block) -> bool {
    let symbols = elf.symbols(SymbolTable::Static);
    // (index, whether it is a name that something may refer to)
    let inside = postlink_parallel::flat_map_range(symbols.len(), |i| {
        let (symbol, section) = symbols.entry(i)?;
        let named = || {
            symbol.st_info & 15 != raw::STT_SECTION
                && symbols.get(i).is_none_or(|s| !names_nothing(s.name))
        };
        block
            .has_symbol(&symbol, section)
            .then(|| (i as u32, named())) // symbol indexes are 32-bit numbers
    });
    let (inside, named): (Vec<u32>, Vec<bool>) = inside.into_iter().unzip();
    let named = named.contains(&true);
    let exported = elf.symbols(SymbolTable::Dynamic);
    let in_block = |i| {
        exported
            .entry(i)
            .is_some_and(|(symbol, section)| block.has_symbol(&symbol, section))
    };
    if postlink_parallel::any(exported.len(), in_block) {
        return false; // another object may refer to it
    }
    if elf.has_kept_relocs() {
        let (Some(low), Some(high)) = (inside.first().copied(), inside.last().copied()) else {
            return true;
        };
        let names_it = |data: &[u8]| {
            let (entries, _) = data.as_chunks::<{ raw::RELA as usize }>();
            postlink_parallel::any(entries.len(), |i| {
                Rela::read(&entries[i], 0).is_some_and(|r| {
                    r.r_sym >= low && r.r_sym <= high && inside.binary_search(&r.r_sym).is_ok()
                })
            })
        };
        return !elf
            .kept_sections()
            .any(|(s, _)| names_it(elf.relocation_records(s)));
    }
    // A table of relocations that cannot be read may say anything.
    !named
        && elf.dyn_relocs().is_ok_and(|relocs| {
            !relocs
                .iter()
                .any(|r| block.covers(r.addr) || block.covers(r.addend as u64))
        })
}

/// Whether a symbol of this name is a place that nothing refers to: a mapping symbol of AArch64, which says that
/// data begin there, or what the C start files define in a note.
fn names_nothing(name: &[u8]) -> bool {
    matches!(name, b"__abi_tag" | b"$d" | b"$x")
        || name.starts_with(b"$d.")
        || name.starts_with(b"$x.")
}

/// Whether a page can be put below the first segment.
fn may_grow_below(elf: &Elf<'_>, size: u64, page: u64) -> bool {
    /// Linux lets no program map addresses below this (`vm.mmap_min_addr`).
    const LOWEST: u64 = 0x10000;
    let Some(first) = elf.loads().next() else {
        return false;
    };
    // The first in memory is the only one with the beginning of the file.
    let alone = elf.loads().filter(|p| p.offset < raw::EHDR).count() == 1;
    elf.etype == raw::ET_EXEC
        && first.offset == 0
        && alone
        && first.addr.is_multiple_of(page)
        && first
            .addr
            .checked_sub(size)
            .is_some_and(|addr| addr >= LOWEST)
}

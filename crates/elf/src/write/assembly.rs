//! Putting the output together: every part gets its place, then every header that names it.
//!
//! The order of the steps is the order of what they need. Section indexes first; with them the symbols; then
//! the patches, to which dynamic entries and dynamic symbols add theirs; then the places of the new segments;
//! then the file front to back, which fixes the offsets of what is not loaded; last the section headers.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use super::Onto;
use super::hole::{Hole, Way};
use super::output::{Input, Output, Source};
use super::patches::Patches;
use super::room::{self, Block, Room};
use super::sections::{Indexes, SectionTable};
use super::segments::{self, NewSegment, Place, Wanted};
use super::symbols::SymbolPlan;
use super::{New, NewKind, SymbolEdit, TableGrowth, WriteError, WriteSummary, Writer};
use crate::addr::{InputAddr, InputOffset, OutputAddr, OutputOffset};
use crate::elf::{Elf, SymbolTable};
use crate::raw::{self, Ehdr, Phdr};
use crate::{ErrorKind, FormatError};

/// Writes what a [`Writer`] has collected. Edits of symbols stay there, in order.
pub(super) fn write(
    w: &mut Writer<'_>,
    path: &Path,
    mode: u32,
    onto: Onto,
) -> Result<WriteSummary, WriteError> {
    let static_edits = in_order(
        std::mem::take(&mut w.static_edits),
        w.elf,
        SymbolTable::Static,
    )?;
    let patches = std::mem::take(&mut w.patches);
    let summary = write_all(w, &static_edits, patches, path, mode, onto);
    w.static_edits = static_edits;
    summary
}

fn write_all(
    w: &Writer<'_>,
    static_edits: &[(u32, SymbolEdit)],
    mut patches: Patches,
    path: &Path,
    mode: u32,
    onto: Onto,
) -> Result<WriteSummary, WriteError> {
    let elf = w.elf;
    let dynamic_edits = in_order(w.dynamic_edits.clone(), elf, SymbolTable::Dynamic)?;
    let indexes = Indexes::new(elf, &w.new, &w.dropped, matches!(w.room, Room::Below(_))); // ids are 32-bit numbers
    let symbols = symtab(w, static_edits, &indexes)?;

    patch_dynamic_section(w, &mut patches)?;
    patch_dynamic_symbols(w, &dynamic_edits, &indexes, &mut patches)?;
    let patches = patches.merge(|offset| {
        let offset = offset.get();
        let p = elf
            .loads()
            .find(|p| offset >= p.offset && offset - p.offset < p.file_size)?;
        Some(InputAddr::new(p.addr + (offset - p.offset)))
    })?;

    let layout = Layout::new(w);
    let unwind = w
        .unwind
        .and_then(|(_, hdr)| hdr)
        .or(w.search_table)
        .and_then(|hdr| w.new.get(hdr.0 as usize))
        .map(|hdr| layout.place(hdr.addr, hdr.size));
    let executable = |place: Place| {
        let inside = place.addr..place.addr + place.size;
        let mut code = w.new.iter().filter(|n| n.kind == Some(NewKind::Code));
        let executable = code.any(|n| inside.contains(&n.addr));
        NewSegment { place, executable }
    };
    let segments = segments::program_headers(
        elf,
        &Wanted {
            room: &w.room,
            shift: layout.shift,
            page: w.page,
            code: layout.code.map(executable),
            code_align: layout.align,
            zero: layout.zero.filter(|_| w.joined.is_none()),
            block: layout.block,
            table: layout.table,
            unwind,
            longer: w.holes.iter().find_map(|h| match h.way {
                Way::Longer(segment) => Some((segment, h.used())),
                Way::Mapped => None,
            }),
            mapped: layout.mapped.map(executable),
            zeros_to: w.joined.map(|(at, size)| at + size),
        },
    );
    if let Some((from, to)) = replaced(w, &segments)
        .into_iter()
        .find(|(from, to)| patches.touch(InputOffset::new(*from), InputOffset::new(*to)))
    {
        let what = format!(
            "a patch is in the file's bytes {from:#x} to {to:#x}, which hold headers that are rewritten"
        );
        return Err(FormatError::new(what)
            .of(ErrorKind::Order)
            .at_offset(from)
            .into());
    }

    let mut output = Output::default();
    put_loaded(w, &layout, &segments, &mut output);
    let mut table = SectionTable::new(w, &layout, &indexes, symbols.as_ref())?;
    table.put_unloaded(&mut output)?;
    if let Some(zero) = layout
        .zero
        .filter(|zero| w.joined.is_none() && zero.offset > output.end())
    {
        output.put(zero.offset, Source::Bytes(Cow::Borrowed(&[]))); // no offset is after the end of the file
    }
    let sections_at = table.put_headers(segments.len() as u32, &mut output); // program header counts are 32-bit numbers
    put_rest(w, &mut output);
    // The front was left out until now: it says where the section headers are.
    output.put_front(Source::Bytes(Cow::Owned(file_header(
        w,
        &layout,
        segments.len(),
        sections_at,
        &table,
    )?)));

    let input = Input {
        data: elf.data,
        file: w.file,
    };
    output
        .write(path, mode, onto, &input, &patches)
        .map_err(|source| WriteError::Io {
            path: path.display().to_string(),
            source,
        })?;
    let program_headers = match &w.room {
        Room::Gap => TableGrowth::InGap,
        Room::Block(_) => TableGrowth::MadeWay,
        Room::Below(_) => TableGrowth::PageBelow,
        Room::Elsewhere => TableGrowth::Elsewhere,
    };
    Ok(WriteSummary {
        size: output.end().get(),
        program_headers,
        appended: (layout.base, layout.base_at),
    })
}

/// Edits by ascending index, the last of each symbol.
fn in_order(
    mut edits: Vec<(u32, SymbolEdit)>,
    elf: &Elf<'_>,
    table: SymbolTable,
) -> Result<Vec<(u32, SymbolEdit)>, FormatError> {
    edits.sort_by_key(|e| e.0);
    edits.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = later.1;
        }
        same
    });
    let count = elf.symbols(table).len();
    if let Some((index, _)) = edits.last().filter(|e| e.0 as usize >= count) {
        return Err(FormatError::new(format!(
            "symbol {index} was to be changed; the table ({table:?}) has {count}"
        ))
        .of(ErrorKind::OutOfBounds)
        .at_entry((*index).into())
        .values(*index, count));
    }
    Ok(edits)
}

/// What becomes of `.symtab`, if there is one.
fn symtab<'a>(
    w: &'a Writer<'_>,
    edits: &'a [(u32, SymbolEdit)],
    indexes: &'a Indexes,
) -> Result<Option<SymbolPlan<'a>>, FormatError> {
    let Some((_, section)) = w.elf.section_of_kind(raw::SHT_SYMTAB) else {
        return Ok(None);
    };
    if section.is_alloc() {
        return Err(FormatError::new(format!(
            "the symbol table {} is loaded (sh_flags {:#x}), so it cannot grow",
            section.name, section.flags
        ))
        .of(ErrorKind::Unsupported)
        .values(section.flags, "a table that is not loaded"));
    }
    let contents = |s: &crate::elf::Section<'a>| w.elf.section_data(s);
    let names = w.elf.sections.get(section.link as usize);
    if let Some(names) = names.filter(|s| s.is_alloc() && !w.added.is_empty()) {
        return Err(FormatError::new(format!(
            "the names of symbols are in {}, which is loaded and so cannot grow",
            names.name
        ))
        .of(ErrorKind::Unsupported)
        .values(names.flags, "names that are not loaded"));
    }
    let names = names.map(contents).unwrap_or_default();
    let extended = indexes
        .extended
        .and_then(|i| w.elf.sections.get(i as usize));
    let extended = extended.map(contents);
    let plan = SymbolPlan::new(
        contents(section),
        extended.unwrap_or_default(),
        section.info,
        edits,
        &w.added,
        names,
        indexes,
        moved(w),
    )?;
    Ok(Some(plan))
}

/// Sections that moved, and by how much.
fn moved<'a>(w: &'a Writer<'_>) -> Option<(&'a Block, u64)> {
    match &w.room {
        Room::Block(block) => Some((block, w.block_at.get().wrapping_sub(block.addr))),
        _ => None,
    }
}

fn patch_dynamic_section(w: &Writer<'_>, patches: &mut Patches) -> Result<(), FormatError> {
    let mut patch = |index: usize, value: u64| match w
        .elf
        .dynamic
        .get(index)
        .and_then(|d| w.elf.offset_of(d.2))
    {
        Some(offset) => patches.add(InputOffset::new(offset), &value.to_le_bytes()),
        None => Err(FormatError::new(format!(
            "entry {index} of the dynamic section is not in the file"
        ))
        .of(ErrorKind::OutOfBounds)
        .at_entry(index as u64)),
    };
    for (index, value) in &w.dynamic {
        patch(*index, *value)?;
    }
    if let Room::Block(block) = &w.room {
        for (index, (tag, value, _)) in w.elf.dynamic.iter().enumerate() {
            if room::TABLE_TAGS.contains(tag)
                && block.covers(*value)
                && !w.dynamic.iter().any(|d| d.0 == index)
            {
                patch(index, (w.block_at + (value - block.addr)).get())?;
            }
        }
    }
    Ok(())
}

fn patch_dynamic_symbols(
    w: &Writer<'_>,
    edits: &[(u32, SymbolEdit)],
    indexes: &Indexes,
    patches: &mut Patches,
) -> Result<(), FormatError> {
    let elf = w.elf;
    let at = match elf.section_of_kind(raw::SHT_DYNSYM) {
        // Only what is loaded from where the section says is sure to be nothing but the table.
        Some((_, s)) if s.is_alloc() && s.has_contents() => {
            let loaded = elf
                .bytes_at(s.addr, s.size)
                .and_then(|_| elf.offset_of(s.addr));
            loaded.filter(|at| *at == s.offset)
        }
        Some(_) => None,
        None => elf
            .dynamic_value(raw::DT_SYMTAB)
            .and_then(|addr| elf.offset_of(addr)),
    };
    let Some(at) = at else {
        return match edits.first() {
            None => Ok(()),
            Some((index, _)) => Err(FormatError::new(format!(
                "dynamic symbol {index} was to be changed, but its table is not loaded"
            ))
            .of(ErrorKind::Unsupported)
            .at_entry((*index).into())),
        };
    };
    let size = elf.symbols(SymbolTable::Dynamic).len() as u64 * raw::SYM;
    let table = elf
        .data
        .get(at as usize..(at + size) as usize)
        .unwrap_or_default(); // read from there
    let plan = SymbolPlan::dynamic(table, edits, indexes, moved(w))?;
    for (i, before) in table.chunks_exact(raw::SYM as usize).enumerate() {
        if let Some((symbol, _)) = plan.old(i as u32)
            && symbol.bytes() != before
        {
            patches.add(InputOffset::new(at + i as u64 * raw::SYM), &symbol.bytes())?;
        }
    }
    Ok(())
}

/// Where the new segments are in the file.
#[derive(Debug)]
pub(super) struct Layout {
    /// Bytes put in front of the input.
    pub shift: u64,
    /// Address and file offset of the new segment.
    base: OutputAddr,
    base_at: OutputOffset,
    /// Bytes of the file in front of it that are not loaded.
    pub gap: Range<OutputOffset>,
    /// Its alignment.
    align: u64,
    code: Option<Place>,
    /// The hole that is loaded by a segment of its own.
    mapped: Option<Place>,
    holes: Vec<Hole>,
    pub zero: Option<Place>,
    pub block: Option<Place>,
    table: Option<Place>,
}

impl Layout {
    pub fn new(w: &Writer<'_>) -> Self {
        let shift = if let Room::Below(bytes) = w.room {
            bytes
        } else {
            0
        };
        let align = w
            .new
            .iter()
            .filter(|n| n.is_in_segment())
            .map(|n| n.align)
            .fold(w.page, u64::max);
        // `base` was chosen to agree modulo the page; a section with a wider alignment may need padding
        // before the segment.
        let end = w.loaded_end.shifted(shift);
        let close = end + (w.base.get().wrapping_sub(end.get()) & (align - 1));
        let base_at = like_text(w, end, align, shift).unwrap_or(close);
        let mut this = Layout {
            shift,
            base: w.base,
            base_at,
            gap: end..base_at,
            align,
            code: None,
            mapped: None,
            holes: w.holes.clone(),
            zero: None,
            block: None,
            table: None,
        };
        if w.cursor > w.base {
            this.code = Some(this.place(w.base, w.cursor - w.base));
        }
        let mut mapped = w.holes.iter().filter(|h| h.way == Way::Mapped);
        this.mapped = mapped
            .find(|h| h.used() > 0)
            .map(|h| this.place(h.start(), h.used()));
        if let Room::Block(block) = &w.room {
            this.block = Some(this.place(w.block_at, block.size));
        }
        if w.room == Room::Elsewhere {
            this.table = Some(this.place(w.table_at, 0));
        }
        if let Some(zero) = w.zero.and_then(|id| w.new.get(id.0 as usize)) {
            // It takes nothing of the file. The offset has to agree with the address, which is a page's, and
            // not to be in another segment. What continues a segment follows its contents.
            let last = w.elf.loads().max_by_key(|p| p.addr);
            let offset = match last.filter(|_| w.joined.is_some()) {
                Some(last) => InputOffset::new(last.offset + last.file_size).shifted(shift),
                None => this.end(w).next_multiple_of(w.page),
            };
            this.zero = Some(Place {
                offset,
                addr: zero.addr,
                size: zero.size,
            });
        }
        this
    }
    /// The place of a range of new addresses: of a hole, or of the new segment.
    pub fn place(&self, addr: OutputAddr, size: u64) -> Place {
        let offset = match self.holes.iter().find(|hole| hole.covers(addr)) {
            Some(hole) => hole.offset_of(addr).shifted(self.shift),
            None => self.base_at + (addr - self.base),
        };
        Place { offset, addr, size }
    }
    /// End of what is loaded.
    fn end(&self, w: &Writer<'_>) -> OutputOffset {
        self.code.map_or(w.loaded_end.shifted(self.shift), |code| {
            code.offset + code.size
        })
    }
}

/// The file offset of the new segment that is as far from its address as that of `.text` from its own, unless
/// the file would grow by much for it.
fn like_text(w: &Writer<'_>, end: OutputOffset, align: u64, shift: u64) -> Option<OutputOffset> {
    /// What nothing fills.
    const MUCH: u64 = 1 << 20;
    let at = w.base.get().checked_sub(w.distance?)?.checked_add(shift)?;
    let at = OutputOffset::new(at);
    let unloaded = w.elf.sections.iter().filter(|s| !s.is_alloc());
    let fills: u64 = unloaded
        .filter(|s| s.has_contents())
        .map(|s| s.size)
        .fold(0, u64::saturating_add);
    let fits = at >= end && at - end <= fills.saturating_add(MUCH);
    (fits && w.base.get().wrapping_sub(at.get()) & (align - 1) == 0).then_some(at)
}

/// Ranges of the input whose place in the output holds headers that are rewritten.
fn replaced(w: &Writer<'_>, segments: &[Phdr]) -> Vec<(u64, u64)> {
    let table = (w.elf.phoff, w.elf.phoff + segments.len() as u64 * raw::PHDR);
    match &w.room {
        Room::Gap => vec![(0, raw::EHDR), table],
        // What made way is patched where it went.
        Room::Block(block) => {
            let behind = block.offset + block.size;
            let (front, back) = ((table.0, table.1.min(block.offset)), (behind, table.1));
            let parts = [(0, raw::EHDR), front, back].into_iter();
            parts.filter(|(from, to)| from < to).collect()
        }
        Room::Below(_) | Room::Elsewhere => vec![(0, raw::EHDR)],
    }
}

/// What is put into a hole.
#[derive(Clone, Copy)]
enum InHole<'w> {
    Section(&'w New),
    /// The block that made way, from where it was.
    Block(&'w Block),
}

/// All that is loaded, but for the ELF header.
fn put_loaded<'w>(w: &'w Writer<'_>, layout: &Layout, segments: &[Phdr], output: &mut Output<'w>) {
    let table: Vec<u8> = segments.iter().flat_map(Phdr::bytes).collect();
    let table_end = InputOffset::new(w.elf.phoff) + table.len() as u64;
    let table = Source::Bytes(Cow::Owned(table));
    output.reserve_front(raw::EHDR);
    // The input's bytes, and among them what is in holes.
    let in_input = |place: Place| place.offset.unshifted(layout.shift).unwrap_or_default();
    let sections = w.new.iter().filter(|n| n.in_hole);
    let mut in_holes: Vec<(InputOffset, InHole<'_>)> = sections
        .map(|n| (in_input(layout.place(n.addr, 0)), InHole::Section(n)))
        .collect();
    let block_is_in = |block: Place| w.holes.iter().any(|hole| hole.covers(block.addr));
    let block_in_hole = layout.block.filter(|place| block_is_in(*place));
    if let (Some(place), Room::Block(block)) = (block_in_hole, &w.room) {
        in_holes.push((in_input(place), InHole::Block(block)));
    }
    in_holes.sort_by_key(|(offset, _)| *offset);
    let part = |from: InputOffset, to: InputOffset| {
        let len = to.checked_sub(from).unwrap_or(0);
        if w.is_written {
            Source::Kept(len)
        } else {
            Source::Input { from, len }
        }
    };
    let of_section = |new: &'w New| {
        if w.is_written {
            Source::Kept(new.size)
        } else {
            Source::Bytes(Cow::Borrowed(&new.contents[..]))
        }
    };
    let put_input = |output: &mut Output<'w>, at: OutputOffset, from: InputOffset, to| {
        let mut here = from;
        for &(offset, what) in in_holes.iter().filter(|(o, _)| (from..to).contains(o)) {
            output.put(at + (here - from), part(here, offset));
            let source = match what {
                InHole::Section(new) => of_section(new),
                InHole::Block(block) => {
                    let from = InputOffset::new(block.offset);
                    part(from, from + block.size)
                }
            };
            here = offset + source.len();
            output.put(at + (offset - from), source);
        }
        output.put(at + (here - from), part(here, to));
    };
    let (header_end, headers) = (InputOffset::new(raw::EHDR), InputOffset::new(w.elf.phoff));
    // Of rooms other than `Below`, nothing is in front of what is copied.
    let put_in_place = |output: &mut Output<'w>, from: InputOffset, to: InputOffset| {
        put_input(output, from.shifted(0), from, to);
    };
    match &w.room {
        Room::Gap => {
            put_in_place(output, header_end, headers);
            output.put(headers.shifted(0), table);
            put_in_place(output, table_end, w.loaded_end);
        }
        Room::Block(block) => {
            let start = InputOffset::new(block.offset);
            put_in_place(output, header_end, headers);
            output.put(headers.shifted(0), table);
            put_in_place(output, table_end, start);
            // Zeroes where the block was.
            let end = start + block.size;
            put_in_place(output, end, w.loaded_end);
            if block_in_hole.is_none() {
                let at = layout.place(w.block_at, 0).offset;
                put_input(output, at, start, end);
            }
        }
        Room::Below(shift) => {
            output.put(OutputOffset::new(raw::EHDR), table);
            output.put(
                OutputOffset::new(*shift),
                Source::Bytes(Cow::Owned(old_header(w, *shift, segments.len()))),
            );
            put_input(output, header_end.shifted(*shift), header_end, w.loaded_end);
        }
        Room::Elsewhere => {
            put_in_place(output, header_end, w.loaded_end);
            output.put(layout.place(w.table_at, 0).offset, table);
        }
    }
    for new in w.new.iter().filter(|new| new.is_in_segment()) {
        output.put(layout.place(new.addr, 0).offset, of_section(new));
    }
}

/// The ELF header where it was, with the new program headers below it. Programs find it by their symbol
/// `__ehdr_start`, which does not move: the start-up code of static ones gets from there to their program
/// headers and so to their unwind table.
fn old_header(w: &Writer<'_>, shift: u64, segments: usize) -> Vec<u8> {
    const PHOFF: usize = 32;
    const PHNUM: usize = 56;
    let mut header = w
        .elf
        .data
        .get(..raw::EHDR as usize)
        .unwrap_or_default()
        .to_vec();
    // Added to the header's address it leads below it.
    let offset = raw::EHDR.wrapping_sub(shift);
    for (at, bytes) in [
        (PHOFF, &offset.to_le_bytes()[..]),
        (PHNUM, &(segments as u16).to_le_bytes()[..]),
    ] {
        if let Some(field) = header.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    }
    header
}

/// What the input has after everything that its headers know: archives that programs carry after themselves.
fn put_rest(w: &Writer<'_>, output: &mut Output<'_>) {
    let elf = w.elf;
    let sections = elf
        .sections
        .iter()
        .filter(|s| s.has_contents())
        .map(|s| s.offset + s.size);
    let headers = elf.shoff + elf.sections.len() as u64 * raw::SHDR;
    let ends = sections.chain([headers, w.loaded_end.get()]);
    let known = ends.max().unwrap_or(0);
    let len = (elf.data.len() as u64).saturating_sub(known);
    if len > 0 {
        let from = InputOffset::new(known);
        output.append(1, Source::Input { from, len });
    }
}

/// The ELF header of the output.
fn file_header(
    w: &Writer<'_>,
    layout: &Layout,
    segments: usize,
    sections_at: OutputOffset,
    table: &SectionTable<'_, '_>,
) -> Result<Vec<u8>, FormatError> {
    let elf = w.elf;
    // They have been read from there.
    let mut header = Ehdr::read(elf.data, 16).unwrap_or_default();
    let count = table.len();
    header.e_entry = w.entry.get();
    header.e_phoff = match (&w.room, layout.table) {
        (Room::Below(_), _) => raw::EHDR,
        (_, Some(table)) => table.offset.get(),
        _ => elf.phoff,
    };
    header.e_phnum = match u16::try_from(segments) {
        Ok(n) if n < raw::PN_XNUM => n,
        _ if count > 0 => raw::PN_XNUM,
        _ => {
            return Err(FormatError::new(format!(
                "{segments} program headers need a section header for their number, but the file has none"
            ))
            .of(ErrorKind::TooLarge)
            .values(segments, raw::PN_XNUM));
        }
    };
    let small = |n: u32, else_: u32| {
        if n < raw::SHN_LORESERVE {
            n as u16
        } else {
            else_ as u16
        }
    };
    header.e_shoff = if count > 0 { sections_at.get() } else { 0 };
    header.e_shnum = small(count, 0);
    header.e_shstrndx = small(table.names_index(), raw::SHN_XINDEX);
    let mut bytes = elf.data.get(..16).unwrap_or_default().to_vec();
    bytes.extend(header.bytes());
    Ok(bytes)
}

//! ELF writing: the input's bytes, patched in places, with new segments after them.
//!
//! # Problem
//!
//! A linked program is a web of addresses, most of them in instructions, where they cannot be told from
//! numbers. So **the old image keeps all its addresses**; what is new goes after it, and only known places
//! change. The file should stay one that other tools (strip, objcopy, debuggers, old kernels and loaders)
//! take for an ordinary product of a linker, and it may be larger than memory.
//!
//! # The output
//!
//! | bytes | from |
//! |---|---|
//! | ELF header, program headers | new (`segments`); the table grows where it is, see `room` |
//! | everything else that is loaded | the input, with patches (`patches`) |
//! | holes between the input's segments | appended sections that may be there |
//! | new segment, executable if code is appended | sections that made way for the program headers, then the appended ones |
//! | what is not loaded, in the input's order | new notes; debug sections and the like, unchanged, edited or replaced; symbols (`symbols`) and names rewritten; no kept relocations |
//! | section headers | new (`sections`) |
//! | what was after the end of the input's last part | the input (archives that programs carry after themselves) |
//!
//! The new segment begins on the first page after the highest address, at the same offset within the page as
//! in the file: no padding, the file grows by what is in it. Counters take no place in the file: they
//! continue the last segment, after its zeros, or have a segment of their own. What may be anywhere first
//! fills the holes that linkers leave in the file between segments (`hole`). The output is streamed
//! (`output`): memory holds the new contents, the patches and the section headers.
//!
//! # Invariants
//!
//! * No byte of the old image changes but by a patch, a dynamic tag, a symbol, or the way made for the program headers.
//! * Loadable segments ascend, do not overlap, and their offsets and addresses agree modulo their alignment.
//! * Every section index, symbol index and file offset in a header of the output is the output's.
//! * The same calls give the same bytes.
//! * The target appears complete or not at all, but where its maker says that nobody else has it ([`Onto::Before`]).

mod assembly;
mod hole;
mod output;
mod patches;
mod room;
mod sections;
mod segments;
mod symbols;
mod written;

pub use output::begin_to_write_out;
pub use written::{Changes, Written};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use self::hole::{Hole, Way};
use self::patches::Patches;
use self::room::Room;
use crate::addr::{InputAddr, InputOffset, OutputAddr, OutputOffset};
use crate::elf::{Elf, Section, Segment, SymbolTable};
use crate::raw;
use crate::{ErrorKind, FormatError};

/// A section to be appended.
#[derive(Clone, Debug)]
pub struct NewSection {
    /// Name.
    pub name: String,
    /// What it is.
    pub kind: NewKind,
    /// Power of two.
    pub align: u64,
    /// Bytes.
    pub size: u64,
}

/// Kinds of new sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind {
    /// SHF_ALLOC | SHF_EXECINSTR.
    Code,
    /// SHF_ALLOC, not writable.
    ReadOnly,
    /// Not loaded, SHT_NOTE: contents are whole ELF notes. Left out of a file without section headers, where
    /// nothing would find it.
    Note,
    /// Not loaded, SHT_PROGBITS: debug information. Left out likewise.
    Unloaded,
}

impl NewKind {
    fn is_loaded(self) -> bool {
        matches!(self, NewKind::Code | NewKind::ReadOnly)
    }
}

/// Edits of a section's bytes: what none of them names stays. So a large section of which little changes is not in
/// memory a second time.
pub trait Edits: fmt::Debug + Send + Sync {
    /// The i-th: the old bytes that are replaced, by offsets in the section, and the new ones. They ascend and do not
    /// overlap.
    fn get(&self, i: usize) -> Option<(Range<u64>, &[u8])>;
}

/// New bytes of a section.
#[derive(Clone, Debug)]
pub enum NewBytes {
    /// All of them.
    Whole(Vec<u8>),
    /// The input's, edited.
    Edited(Arc<dyn Edits>),
}

/// New contents of a section that is not loaded.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// The bytes.
    pub bytes: NewBytes,
    /// Whether they are compressed, with their header (`SHF_COMPRESSED`).
    pub compressed: bool,
    /// New `sh_addralign`, 0 to keep it.
    pub align: u64,
    /// Another name, if it is to have one.
    pub name: Option<String>,
}

/// A section that has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Handle for contents and for symbols that are defined in it.
    pub id: NewId,
    /// Link-time address (0 for notes).
    pub addr: OutputAddr,
}

/// Handle of a new section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NewId(pub u32);

/// Which section a symbol is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSection {
    /// By the input's index. A reserved index (0xff00 … 0xffff, as [`crate::elf::Symbol::section`] reports it
    /// for a symbol in no section) leaves an edited symbol where it is.
    Old(u32),
    /// A new one.
    New(NewId),
}

/// What may change in a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolEdit {
    /// New `st_value`.
    pub value: u64,
    /// New `st_size`.
    pub size: u64,
    /// New `st_shndx`.
    pub section: InSection,
}

/// A symbol to be added to `.symtab`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSymbol {
    /// Name.
    pub name: Vec<u8>,
    /// `st_value`
    pub value: u64,
    /// `st_size`
    pub size: u64,
    /// `st_info & 15`
    pub kind: u8,
    /// New symbols are local, and are before the globals: after the local symbol `after` of the input if
    /// given, else after all locals.
    pub after: Option<u32>,
    /// Section.
    pub section: InSection,
}

/// What the file needs beside its sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// A zero-filled read-write section will be asked for.
    pub zero_fill: bool,
    /// Its size and alignment, if they are known: it then continues the last segment, if that is writable,
    /// and takes no program header.
    pub zero_size: Option<(u64, u64)>,
    /// There will be no new search table for unwinding, and so no need for a program header that tells of it.
    pub no_search_table: bool,
    /// There will be a search table for what is appended alone, which nobody finds otherwise, even where the file has
    /// no unwind table at all ([`Writer::add_search_table`]).
    pub adds_search_table: bool,
    /// A hole of at least so many bytes that is not after code is used as well, for the price of a segment:
    /// worth it if little is appended. 0: none.
    pub map_hole: u64,
    /// No section makes way for the program headers: code may know the address of one.
    pub no_way: bool,
    /// The new segment is as far from its place in the file as `.text` is, if that can be had for little:
    /// perf takes the distance of the section of that name for the whole file's when it looks for the lines
    /// of an address. Sections that are not loaded fill the space in front.
    pub like_text: bool,
}

/// A file being written.
#[derive(Debug)]
pub struct Writer<'d> {
    elf: &'d Elf<'d>,
    options: WriteOptions,
    /// Page size: what addresses and offsets of segments agree in.
    page: u64,
    room: Room,
    /// Bytes of the file between segments, in the order in which they are filled.
    holes: Vec<Hole>,
    /// Where the zero-filled section continues the last segment: address and bytes.
    joined: Option<(OutputAddr, u64)>,
    /// End of the loaded part of the input file.
    loaded_end: InputOffset,
    /// How much higher the addresses of the new segment are to be than its offsets, if that is wanted.
    distance: Option<u64>,
    /// Address of the new read-execute segment.
    base: OutputAddr,
    /// Where the moved block begins in it.
    block_at: OutputAddr,
    /// Where the program header table begins in it, if it is there.
    table_at: OutputAddr,
    /// End of what it holds so far.
    cursor: OutputAddr,
    new: Vec<New>,
    zero: Option<NewId>,
    entry: OutputAddr,
    patches: Patches,
    /// Dynamic entries that change: (index, value).
    dynamic: Vec<(usize, u64)>,
    unwind: Option<(NewId, Option<NewId>)>,
    search_table: Option<NewId>,
    has_search_table: bool,
    static_edits: Vec<(u32, SymbolEdit)>,
    dynamic_edits: Vec<(u32, SymbolEdit)>,
    added: Vec<NewSymbol>,
    /// New contents of sections of the input that are not loaded, by index.
    replaced: BTreeMap<u32, Replacement>,
    /// Sections of the input that the output does not have, ascending.
    dropped: BTreeSet<u32>,
    file: Option<&'d File>,
    /// The first thing that went wrong in a call that cannot say so.
    problem: Option<FormatError>,
    /// It is in the file already, and what is loaded stays there ([`Written`]).
    is_written: bool,
}

/// An appended section.
#[derive(Debug)]
struct New {
    name: String,
    /// `None`: zero-filled, read-write.
    kind: Option<NewKind>,
    align: u64,
    size: u64,
    addr: OutputAddr,
    /// It is in a hole.
    in_hole: bool,
    contents: Vec<u8>,
}

impl New {
    fn is_in_segment(&self) -> bool {
        matches!(self.kind, Some(NewKind::Code | NewKind::ReadOnly)) && !self.in_hole
    }
}

/// Whether a segment is a search table for unwinding.
fn is_search_table(segment: &Segment) -> bool {
    segment.kind == raw::PT_GNU_EH_FRAME
}

/// Where program headers are with one more, for a search table of what is appended alone. `None` if there is to be
/// none, or the table of headers would move to the new segment for it, which kernels before 5.18 do not follow.
fn with_search_table(
    elf: &Elf<'_>,
    extra: u64,
    loaded_end: u64,
    page: u64,
    options: &WriteOptions,
    room: &Room,
) -> Option<Room> {
    if !options.adds_search_table || elf.segments.iter().any(is_search_table) {
        return None;
    }
    let with = room::find(elf, extra + 1, loaded_end, page, options.no_way);
    (with != Room::Elsewhere || with == *room).then_some(with)
}

/// Whether all program headers are for bytes that are there.
fn headers_end(elf: &Elf<'_>, loaded_end: u64) -> Result<(), FormatError> {
    // What is protected is told by addresses. Where that ends in padding which lld adds in memory alone, the size in
    // the file may reach behind what is there: Rust's own releases have that.
    let outside = |p: &&Segment| {
        !matches!(p.kind, raw::PT_NULL | raw::PT_GNU_RELRO) && p.offset + p.file_size > loaded_end
    };
    match elf.segments.iter().find(outside) {
        None => Ok(()),
        Some(p) => Err(FormatError::new(format!(
            "a program header (type {:#x}) has {:#x} bytes at offset {:#x}, but the loaded part of the file ends at {loaded_end:#x}",
            p.kind, p.file_size, p.offset
        ))
        .of(ErrorKind::OutOfBounds)
        .at_offset(p.offset)
        .values(p.offset + p.file_size, loaded_end)),
    }
}

/// Where a zero-filled section of known size continues the last segment, as its `.bss` does: address and
/// bytes. `end` is one past the image.
fn joined(elf: &Elf<'_>, options: &WriteOptions, page: u64, end: u64) -> Option<(OutputAddr, u64)> {
    let (size, align) = options.zero_size.filter(|_| options.zero_fill)?;
    let last = elf.loads().max_by_key(|p| p.addr)?;
    let writable = last.flags & (raw::PF_W | raw::PF_X) == raw::PF_W;
    if !writable || !align.max(1).is_power_of_two() || last.addr + last.mem_size != end {
        return None;
    }
    let at = end.checked_next_multiple_of(page.max(align))?;
    let size = size.checked_next_multiple_of(page)?;
    at.checked_add(size)
        .filter(|end| *end < 1 << 62)
        .map(|_| (OutputAddr::new(at), size))
}

/// How much higher addresses of `.text` are than offsets. `None` if they are lower, or there is no such section.
fn text_distance(elf: &Elf<'_>, page: u64) -> Option<u64> {
    let (_, text) = elf.section(".text").filter(|(_, s)| s.is_code())?;
    let distance = text.addr.checked_sub(text.offset)?;
    distance.is_multiple_of(page).then_some(distance)
}

/// How much higher addresses of the first segment are than offsets. Linux before 5.18 and the emulator qemu take that
/// for the distance of the table of program headers, too: a program whose table is elsewhere would crash at its start.
fn first_distance(elf: &Elf<'_>, page: u64) -> Option<u64> {
    let first = elf.loads().next()?;
    let distance = first.addr.checked_sub(first.offset)?;
    distance.is_multiple_of(page).then_some(distance)
}

/// Largest alignment of a section: the file may have to be padded by as much.
const MAX_ALIGN: u64 = 1 << 30;

/// The page size that segments of a machine are laid out for. AArch64 has several; what the linker assumed is
/// seen in the input.
fn page_size(elf: &Elf<'_>) -> u64 {
    let widest = if elf.machine == raw::EM_AARCH64 {
        0x10000
    } else {
        0x1000
    };
    elf.loads()
        .map(|p| p.align)
        .min()
        .unwrap_or(0)
        .clamp(0x1000, widest)
}

impl<'d> Writer<'d> {
    /// Begins: decides how the program header table grows and gives the sections that must make way their new place.
    ///
    /// Fails for a file that loads nothing, that leaves no addresses after its own, or whose headers overlap.
    pub fn new(elf: &'d Elf<'d>, options: WriteOptions) -> Result<Self, FormatError> {
        let (_, end) = elf.extent();
        if elf.loads().len() == 0 {
            return Err(FormatError::new("the file has no loadable segment").of(ErrorKind::Missing));
        }
        if elf.phoff < raw::EHDR {
            return Err(FormatError::new(format!(
                "the program headers at offset {:#x} overlap the ELF header of 64 bytes",
                elf.phoff
            ))
            .of(ErrorKind::Order)
            .at_offset(elf.phoff)
            .values(elf.phoff, raw::EHDR));
        }
        let page = page_size(elf);
        if let Some(p) = elf.loads().find(|p| p.addr % page != p.offset % page) {
            return Err(FormatError::new(format!(
                "the loadable segment at address {:#x} is at offset {:#x}; they differ modulo the page size {page:#x}",
                p.addr, p.offset
            ))
            .at_address(p.addr)
            .values(p.offset, p.addr));
        }
        let table_end = elf.phoff + elf.segments.len() as u64 * raw::PHDR; // in the file
        let in_file = elf
            .sections
            .iter()
            .filter(|s| s.is_alloc() && s.has_contents())
            .map(|s| s.offset + s.size);
        let loaded_end = elf
            .loads()
            .map(|p| p.offset + p.file_size)
            .chain(in_file)
            .chain([table_end])
            .max()
            .unwrap_or(0);
        headers_end(elf, loaded_end)?;
        // An empty segment has an address of its own all the same.
        let end = elf
            .loads()
            .map(|p| p.addr.saturating_add(p.mem_size.max(1)))
            .fold(end, u64::max);
        let joined = joined(elf, &options, page, end);
        let end = joined.map_or(end, |(at, size)| (at + size).get());
        // Static programs have unwind entries that their start-up code registers, and no search table; new
        // entries need one.
        let search = !options.no_search_table
            && !options.adds_search_table
            && elf.section(".eh_frame").is_some()
            && !elf.segments.iter().any(is_search_table);
        let mut extra = 1 + u64::from(options.zero_fill && joined.is_none()) + u64::from(search);
        let mut room = room::find(elf, extra, loaded_end, page, options.no_way);
        let with = with_search_table(elf, extra, loaded_end, page, &options, &room);
        let has_search_table = with.is_some();
        if let Some(with) = with {
            (room, extra) = (with, extra + 1);
        }
        let mut holes: Vec<Hole> = hole::longer(elf, page).into_iter().collect();
        let mut end = end.checked_next_multiple_of(page);
        if options.map_hole > 0
            && let Some(at) = end
            && let Some(hole) = hole::mapped(elf, holes.first(), page, OutputAddr::new(at))
            && hole.free(1) >= options.map_hole
        {
            // Not if the table of program headers had to go somewhere else for it.
            let with = room::find(elf, extra + 1, loaded_end, page, options.no_way);
            if matches!(with, Room::Gap | Room::Block(_)) || with == room {
                end = hole.end().get().checked_next_multiple_of(page);
                (room, extra) = (with, extra + 1);
                holes.push(hole);
            }
        }
        let base = end.and_then(|a| a.checked_add(loaded_end % page));
        let distance = if room == Room::Elsewhere && elf.etype == raw::ET_DYN {
            first_distance(elf, page)
        } else if options.like_text {
            text_distance(elf, page)
        } else {
            None
        };
        let like_text = distance.and_then(|d| loaded_end.checked_add(d));
        let base = base.map(|base| base.max(like_text.unwrap_or(0)));
        // A margin that no file's parts exceed, so that the sums below cannot overflow.
        let Some(base) = base.filter(|a| *a < u64::MAX - (1 << 44)) else {
            return Err(FormatError::new(format!(
                "the file is loaded up to address {:#x}; no addresses are left after it",
                elf.extent().1
            ))
            .of(ErrorKind::TooLarge)
            .at_address(elf.extent().1)
            .values(elf.extent().1, u64::MAX - (1 << 44)));
        };
        let base = OutputAddr::new(base);
        let mut this = Writer {
            elf,
            options,
            page,
            loaded_end: InputOffset::new(loaded_end),
            distance,
            base,
            block_at: OutputAddr::default(),
            table_at: OutputAddr::default(),
            cursor: base,
            new: Vec::new(),
            zero: None,
            entry: InputAddr::new(elf.entry).kept(),
            patches: Patches::default(),
            dynamic: Vec::new(),
            unwind: None,
            search_table: None,
            has_search_table,
            static_edits: Vec::new(),
            dynamic_edits: Vec::new(),
            added: Vec::new(),
            replaced: BTreeMap::new(),
            dropped: BTreeSet::new(),
            file: elf.file,
            problem: None,
            is_written: false,
            holes,
            joined,
            room,
        };
        match &this.room {
            Room::Block(block) => {
                // The displacement is a multiple of the block's alignment, so that all in it stay aligned.
                let mut mapped = this.holes.iter_mut().filter(|h| h.way == Way::Mapped);
                let place = mapped.find_map(|h| h.take_like(block.addr, block.size, block.align));
                this.block_at = place.unwrap_or_else(|| {
                    let at = base + (block.addr.wrapping_sub(base.get()) & (block.align - 1));
                    this.cursor = at + block.size;
                    at
                });
            }
            Room::Elsewhere => {
                this.table_at = base.next_multiple_of(8);
                this.cursor = this.table_at + (elf.segments.len() as u64 + extra) * raw::PHDR;
            }
            Room::Gap | Room::Below(_) => {}
        }
        Ok(this)
    }

    /// The input as an open file with the same bytes as the parsed data. Long unchanged ranges are then copied by the
    /// kernel, and the data, which is usually a map of that file, is not touched for them. The file's position moves.
    pub fn copy_from(&mut self, file: &'d File) {
        self.file = Some(file);
    }

    fn fail(&mut self, kind: ErrorKind, what: String) {
        self.problem.get_or_insert(FormatError::new(what).of(kind));
    }

    /// Gives a new section its address, right after the one before it. Contents are zero until set.
    ///
    /// What is impossible (no addresses or memory left, an alignment that is no power of two, a loaded
    /// section after the zero-filled one) is reported by [`Writer::write`].
    pub fn append(&mut self, section: NewSection) -> Placed {
        let NewSection {
            name, kind, size, ..
        } = section;
        let align = section.align.max(1);
        if !align.is_power_of_two() || align > MAX_ALIGN {
            self.fail(ErrorKind::Unsupported, format!("the alignment of section {name} is {align:#x}; powers of two up to {MAX_ALIGN:#x} are possible"));
        }
        let mut addr = OutputAddr::default();
        if kind.is_loaded() {
            if self.zero.is_some() {
                self.fail(ErrorKind::Order, format!(
                    "section {name} is appended after the zero-filled section, which must be last"
                ));
            }
            let end = self
                .cursor
                .checked_next_multiple_of(align)
                .and_then(|at| Some((at, at.checked_add(size)?)));
            match end {
                Some((at, end)) if end.get() < u64::MAX - self.page => {
                    (addr, self.cursor) = (at, end)
                }
                _ => self.fail(
                    ErrorKind::TooLarge,
                    format!(
                        "section {name} of {size:#x} bytes does not fit after address {:#x}",
                        self.cursor
                    ),
                ),
            }
        }
        self.put(name, kind, align, size, addr, false)
    }

    /// Where a section that is appended next begins.
    pub fn next(&self, align: u64) -> Option<OutputAddr> {
        self.cursor.checked_next_multiple_of(align)
    }

    /// As [`Writer::append`], with all of the section's contents.
    pub fn append_filled(
        &mut self,
        name: &str,
        kind: NewKind,
        align: u64,
        contents: &[u8],
    ) -> Placed {
        let placed = self.append(NewSection {
            name: name.to_owned(),
            kind,
            align,
            size: contents.len() as u64,
        });
        self.contents(placed.id).copy_from_slice(contents);
        placed
    }

    /// As [`Writer::append`] for a section that may be anywhere: in a hole between segments, if it fits what is left
    /// there, where it costs nothing.
    pub fn append_anywhere(&mut self, section: NewSection) -> Placed {
        let align = section.align.max(1);
        if section.kind.is_loaded() {
            let mut holes = self.holes.iter_mut();
            if let Some(addr) = holes.find_map(|hole| hole.take(section.size, align)) {
                let NewSection {
                    name, kind, size, ..
                } = section;
                return self.put(name, kind, align, size, addr, true);
            }
        }
        self.append(section)
    }

    /// Bytes left in the hole after code for a section of the alignment.
    pub fn free_anywhere(&self, align: u64) -> u64 {
        let behind_code = |hole: &&Hole| matches!(hole.way, Way::Longer(_));
        let hole = self.holes.iter().find(behind_code);
        hole.map_or(0, |hole| hole.free(align))
    }

    /// A section with its place; its contents are zero until set.
    fn put(
        &mut self,
        name: String,
        kind: NewKind,
        align: u64,
        size: u64,
        addr: OutputAddr,
        in_hole: bool,
    ) -> Placed {
        let mut contents = Vec::new();
        match usize::try_from(size) {
            // Pages that the allocator has zeroed already are not touched before they are filled, which many
            // threads do.
            Ok(bytes) if Vec::<u8>::new().try_reserve_exact(bytes).is_ok() => {
                contents = vec![0; bytes];
            }
            _ => self.fail(
                ErrorKind::TooLarge,
                format!("section {name} of {size:#x} bytes does not fit memory"),
            ),
        }
        self.place(New {
            name,
            kind: Some(kind),
            align,
            size,
            addr,
            in_hole,
            contents,
        })
    }

    fn place(&mut self, new: New) -> Placed {
        let id = NewId(self.new.len() as u32); // one call each: not 4294967296
        let addr = new.addr;
        self.new.push(new);
        Placed { id, addr }
    }

    /// Contents of a new section, `size` bytes; none for the zero-filled one.
    pub fn contents(&mut self, id: NewId) -> &mut [u8] {
        self.new
            .get_mut(id.0 as usize)
            .map(|n| &mut n.contents[..])
            .unwrap_or_default()
    }

    /// What the contents of an appended section are by now.
    pub fn filled(&self, id: NewId) -> &[u8] {
        let new = self.new.get(id.0 as usize);
        new.map(|n| &n.contents[..]).unwrap_or_default()
    }

    /// As [`Writer::append_zero_fill_aligned`], aligned to pages.
    pub fn append_zero_fill(&mut self, name: &str, size: u64) -> Placed {
        self.append_zero_fill_aligned(name, size, 1)
    }

    /// The zero-filled read-write section (start aligned to pages and to `align`, whole pages): only once,
    /// after all other loaded sections, and only if [`WriteOptions::zero_fill`] made space for its segment.
    /// [`Writer::write`] reports what breaks this.
    pub fn append_zero_fill_aligned(&mut self, name: &str, size: u64, align: u64) -> Placed {
        if self.zero.is_some() || !self.options.zero_fill {
            self.fail(ErrorKind::Unsupported, format!(
                "a zero-filled section ({name}) is possible once, and if it was announced at the start"
            ));
        }
        let place = match self.joined {
            // It has its place already.
            Some((at, room)) if size <= room && at.get().is_multiple_of(align) => Some((at, room)),
            Some((at, room)) => {
                self.fail(ErrorKind::TooLarge, format!(
                    "section {name} has {size:#x} bytes, aligned to {align:#x}; at {at:#x} {room:#x} bytes were reserved"
                ));
                None
            }
            None => self
                .cursor
                .checked_next_multiple_of(self.page.max(align))
                .zip(size.checked_next_multiple_of(self.page)),
        };
        let (addr, size) = match place.filter(|(at, size)| at.checked_add(*size).is_some()) {
            Some(place) => place,
            None => {
                self.fail(
                    ErrorKind::TooLarge,
                    format!(
                        "section {name} of {size:#x} bytes does not fit after address {:#x}",
                        self.cursor
                    ),
                );
                (OutputAddr::default(), 0)
            }
        };
        let placed = self.place(New {
            name: name.to_string(),
            kind: None,
            align: self.page,
            size,
            addr,
            in_hole: false,
            contents: Vec::new(),
        });
        self.zero = Some(placed.id);
        placed
    }

    /// Overwrites bytes of the old image. Error if they are not in the file. Patches may overlap where they
    /// agree; two that differ are reported by [`Writer::write`]. The address is the input's also for what
    /// made way for the program headers.
    pub fn patch(&mut self, addr: InputAddr, bytes: &[u8]) -> Result<(), FormatError> {
        let len = bytes.len() as u64;
        let inside = self
            .elf
            .bytes_at(addr.get(), len)
            .and_then(|_| self.elf.offset_of(addr.get()));
        match inside {
            Some(offset) => self.patches.add(InputOffset::new(offset), bytes),
            None if bytes.is_empty() => Ok(()),
            None => Err(FormatError::new(format!(
                "a patch of {len} bytes at address {addr:#x} is not inside the file contents of one loaded segment"
            ))
            .of(ErrorKind::OutOfBounds)
            .at_address(addr.get())
            .values(len, "bytes inside one loaded segment")),
        }
    }

    /// Sets the program's entry.
    pub fn set_entry(&mut self, entry: OutputAddr) {
        self.entry = entry;
    }

    /// Changes the value of a dynamic tag that exists (its first occurrence).
    pub fn set_dynamic(&mut self, tag: i64, value: u64) -> Result<(), FormatError> {
        let Some(index) = self.elf.dynamic.iter().position(|d| d.0 == tag) else {
            return Err(FormatError::new(format!(
                "the dynamic section has no tag {tag:#x} whose value could become {value:#x}"
            ))
            .of(ErrorKind::Missing)
            .values(tag, "a tag of the dynamic section"));
        };
        self.dynamic.retain(|d| d.0 != index);
        self.dynamic.push((index, value));
        Ok(())
    }

    /// PT_GNU_EH_FRAME, and the section headers `.eh_frame_hdr` and `.eh_frame`, go to new sections of those
    /// names; the old ones stay loaded under the names `.eh_frame_hdr.old` and `.eh_frame.old`. A program
    /// that finds its table otherwise has no search table.
    pub fn replace_unwind(&mut self, eh_frame: NewId, eh_frame_hdr: Option<NewId>) {
        let known = self.new.len();
        if let Some(id) = [Some(eh_frame), eh_frame_hdr]
            .into_iter()
            .flatten()
            .find(|id| id.0 as usize >= known)
        {
            self.fail(
                ErrorKind::OutOfBounds,
                format!(
                    "section {} is to hold an unwind table; {known} were appended",
                    id.0
                ),
            );
            return;
        }
        self.unwind = Some((eh_frame, eh_frame_hdr));
    }

    /// Whether there is space for the program header of [`Writer::add_search_table`].
    pub fn has_search_table(&self) -> bool {
        self.has_search_table
    }

    /// A program header (PT_GNU_EH_FRAME) for a search table that says something of what is appended, in a file that
    /// has none: announced by [`WriteOptions::adds_search_table`]. What the file has otherwise stays.
    pub fn add_search_table(&mut self, eh_frame_hdr: NewId) {
        if !self.has_search_table {
            let text = "a search table is possible if it was announced at the start".to_string();
            self.fail(ErrorKind::Unsupported, text);
        }
        self.search_table = Some(eh_frame_hdr);
    }

    /// Changes a symbol of the input by its index. A later edit of the same symbol wins.
    pub fn edit_symbol(&mut self, table: SymbolTable, index: u32, edit: SymbolEdit) {
        match table {
            SymbolTable::Static => self.static_edits.push((index, edit)),
            SymbolTable::Dynamic => self.dynamic_edits.push((index, edit)),
        }
    }

    /// Adds a symbol to `.symtab` (nothing happens in a stripped file).
    pub fn add_symbol(&mut self, symbol: NewSymbol) {
        self.added.push(symbol);
    }

    /// Gives a section of the input that is not loaded new contents. Error if there is no such section, or
    /// something else makes its contents.
    pub fn replace(&mut self, section: usize, with: Replacement) -> Result<(), FormatError> {
        let index = self.unloaded(section, "new contents")?;
        if let (NewBytes::Edited(edits), Some(s)) = (&with.bytes, self.elf.sections.get(section)) {
            output::edited_len(s.size, &**edits).map_err(|at| {
                FormatError::new(format!(
                    "an edit of {} at {at:#x} begins in front of the end of the one before it, or ends behind its {:#x} bytes",
                    s.name, s.size
                ))
                .of(ErrorKind::Order)
                .at_offset(at)
                .values(at, s.size)
            })?;
        }
        self.replaced.insert(index, with);
        Ok(())
    }

    /// Leaves out a section of the input that is not loaded. Error as for [`Writer::replace`].
    pub fn leave_out(&mut self, section: usize) -> Result<(), FormatError> {
        let index = self.unloaded(section, "no place in the output")?;
        self.dropped.insert(index);
        Ok(())
    }

    /// The index of a section that is not loaded and means nothing to the writer.
    fn unloaded(&self, section: usize, what: &str) -> Result<u32, FormatError> {
        let free = |s: &&Section<'_>| {
            section > 0 && !s.is_alloc() && matches!(s.kind, raw::SHT_PROGBITS | raw::SHT_NOTE)
        };
        match self.elf.sections.get(section).filter(free) {
            Some(_) => Ok(section as u32), // section counts are 32-bit numbers
            None => Err(FormatError::new(format!(
                "section {section} was to have {what}, but it is loaded, absent, or of a kind that the writer makes"
            ))
            .of(ErrorKind::Unsupported)
            .at_entry(section as u64)
            .values(section, "a section that is copied and not loaded")),
        }
    }

    /// Writes the file: to a temporary one beside `path`, renamed when complete, with the input's permissions (`mode`).
    pub fn write(self, path: &Path, mode: u32) -> Result<WriteSummary, WriteError> {
        self.write_onto(path, mode, Onto::Anew)
    }

    /// The same, or over an output that is there.
    pub fn write_onto(
        mut self,
        path: &Path,
        mode: u32,
        onto: Onto,
    ) -> Result<WriteSummary, WriteError> {
        if let Some(problem) = self.problem.take() {
            return Err(problem.into());
        }
        assembly::write(&mut self, path, mode, onto)
    }

    /// The same; and gives what it takes to change the file.
    pub fn write_to_change(
        mut self,
        path: &Path,
        mode: u32,
        onto: Onto,
    ) -> Result<(WriteSummary, Written<'d>), WriteError> {
        if let Some(problem) = self.problem.take() {
            return Err(problem.into());
        }
        let summary = assembly::write(&mut self, path, mode, onto)?;
        Ok((summary, Written::new(self)))
    }
}

/// What is at the path that a file is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onto {
    /// Perhaps another file, which is there until the new one is complete.
    Anew,
    /// A file of its own for this output, that is empty: a rename onto it would have the system write all at once.
    Empty,
    /// An output that nobody else has, nor has mapped: it is changed where it differs, which costs a fraction of
    /// writing all. What was there before does not matter for what is there then.
    Before,
}

/// How the program header table got its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableGrowth {
    /// In zeroes that belonged to nothing.
    InGap,
    /// Where sections was that are now at the beginning of the new segment.
    MadeWay,
    /// The first segment begins a page lower, and all file offsets grew by that page.
    PageBelow,
    /// It is in the new segment. Linux before 5.18 gives programs a wrong address of it, and strip and
    /// objcopy may refuse the file.
    Elsewhere,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSummary {
    /// File size.
    pub size: u64,
    /// Where the program headers went.
    pub program_headers: TableGrowth,
    /// Where the segment of what was appended begins, and its offset. As far behind it as its address says is what
    /// [`Writer::append`] gave a place.
    pub appended: (OutputAddr, OutputOffset),
}

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The target.
        path: String,
        /// Its reason.
        source: std::io::Error,
    },
    /// The file cannot be expressed.
    #[error(transparent)]
    Format(#[from] FormatError),
}

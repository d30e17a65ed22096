//! The output's program headers.
//!
//! The old ones keep their addresses, but for what [`super::room`] moves. The new loadable ones directly
//! follow the last old one, since PT_LOADs must ascend.

use super::room::Room;
use crate::addr::{OutputAddr, OutputOffset};
use crate::elf::Elf;
use crate::raw::{self, Phdr};

/// A range of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub offset: OutputOffset,
    pub addr: OutputAddr,
    pub size: u64,
}

/// A new segment with contents.
pub(super) struct NewSegment {
    pub place: Place,
    /// Whether it holds code. Without, it is only read.
    pub executable: bool,
}

/// What the program headers are to say.
pub(super) struct Wanted<'a> {
    pub room: &'a Room,
    /// Bytes put in front of the file.
    pub shift: u64,
    /// Page size of the machine.
    pub page: u64,
    /// The new segment after everything.
    pub code: Option<NewSegment>,
    /// Its alignment.
    pub code_align: u64,
    /// The new zero-filled segment.
    pub zero: Option<Place>,
    /// Where the moved block begins.
    pub block: Option<Place>,
    /// Where the table begins, if it is elsewhere.
    pub table: Option<Place>,
    /// New search table for unwinding.
    pub unwind: Option<Place>,
    /// A segment that is longer, and by how much, in the file as in memory.
    pub longer: Option<(usize, u64)>,
    /// A hole of the file with a segment of its own, in front of the new one.
    pub mapped: Option<NewSegment>,
    /// Where the last segment ends, with zeros after it.
    pub zeros_to: Option<OutputAddr>,
}

/// The program headers of the output.
pub(super) fn program_headers(elf: &Elf<'_>, wanted: &Wanted<'_>) -> Vec<Phdr> {
    let count = elf.segments.len() as u64;
    // They have been read from there.
    let read = |i| Phdr::read(elf.data, elf.phoff + i * raw::PHDR).unwrap_or_default();
    let mut headers: Vec<Phdr> = (0..count).map(|i| old(read(i), wanted)).collect();
    if let Some((segment, by)) = wanted.longer
        && let Some(p) = headers.get_mut(segment)
    {
        p.p_filesz += by;
        p.p_memsz += by;
    }
    if let Some(end) = wanted.zeros_to
        && let Some(last) = headers
            .iter_mut()
            .filter(|p| p.p_type == raw::PT_LOAD)
            .max_by_key(|p| p.p_vaddr)
    {
        last.p_memsz = end.get().saturating_sub(last.p_vaddr).max(last.p_memsz);
    }
    let new = |segment: &NewSegment, align: u64| {
        let flags = if segment.executable { raw::PF_X } else { 0 };
        let place = segment.place;
        load(place, raw::PF_R | flags, place.size, align)
    };
    let extra = [
        wanted.mapped.as_ref().map(|s| new(s, wanted.page)),
        wanted.code.as_ref().map(|s| new(s, wanted.code_align)),
        wanted
            .zero
            .map(|place| load(place, raw::PF_R | raw::PF_W, 0, wanted.page)),
    ];
    let behind = headers
        .iter()
        .rposition(|p| p.p_type == raw::PT_LOAD)
        .map_or(headers.len(), |last| last + 1);
    headers.splice(behind..behind, extra.into_iter().flatten());
    if let Some(place) = wanted.unwind
        && !headers.iter().any(|p| p.p_type == raw::PT_GNU_EH_FRAME)
    {
        headers.push(Phdr {
            p_type: raw::PT_GNU_EH_FRAME,
            ..load(place, raw::PF_R, place.size, 4)
        });
    }
    let size = headers.len() as u64 * raw::PHDR;
    if *wanted.room == Room::Gap {
        // The loader and the program read the table in memory. The segment that holds it may have ended with it.
        let old_end = elf.phoff + count * raw::PHDR;
        let by_table = headers.iter_mut().find(|p| {
            p.p_type == raw::PT_LOAD
                && p.p_offset <= elf.phoff
                && p.p_offset + p.p_filesz >= old_end
        });
        if let Some(p) = by_table {
            let more = (elf.phoff + size).saturating_sub(p.p_offset + p.p_filesz);
            p.p_filesz += more;
            p.p_memsz += more;
        }
    }
    for p in headers.iter_mut().filter(|p| p.p_type == raw::PT_PHDR) {
        p.p_filesz = size;
        p.p_memsz = size;
    }
    if wanted.shift > 0
        && let Some(first) = headers.iter_mut().find(|p| p.p_type == raw::PT_LOAD)
    {
        // `room` has made sure that it begins at offset 0 and that these addresses are free.
        first.p_offset = 0;
        first.p_vaddr -= wanted.shift;
        first.p_paddr = first.p_paddr.wrapping_sub(wanted.shift);
        first.p_filesz += wanted.shift;
        first.p_memsz += wanted.shift;
        let addr = first.p_vaddr + raw::EHDR;
        for p in headers.iter_mut().filter(|p| p.p_type == raw::PT_PHDR) {
            (p.p_offset, p.p_vaddr, p.p_paddr) = (raw::EHDR, addr, addr);
        }
    }
    headers
}

fn load(place: Place, flags: u32, file_size: u64, align: u64) -> Phdr {
    Phdr {
        p_type: raw::PT_LOAD,
        p_flags: flags,
        p_offset: place.offset.get(),
        p_vaddr: place.addr.get(),
        p_paddr: place.addr.get(),
        p_filesz: file_size,
        p_memsz: place.size,
        p_align: align,
    }
}

fn old(mut p: Phdr, wanted: &Wanted<'_>) -> Phdr {
    let moved_to = |p: &mut Phdr, place: Place| {
        let (offset, addr) = (place.offset.get(), place.addr.get());
        p.p_paddr = p.p_paddr.wrapping_add(addr.wrapping_sub(p.p_vaddr));
        (p.p_offset, p.p_vaddr) = (offset, addr);
    };
    match p.p_type {
        raw::PT_NULL => return p,
        raw::PT_PHDR => {
            if let Some(table) = wanted.table {
                moved_to(&mut p, table);
            }
            return p;
        }
        raw::PT_GNU_EH_FRAME => {
            if let Some(unwind) = wanted.unwind {
                moved_to(&mut p, unwind);
                (p.p_filesz, p.p_memsz) = (unwind.size, unwind.size);
                return p;
            }
        }
        raw::PT_LOAD => {
            if wanted.shift > 0 && p.p_align > wanted.page {
                // Offsets grow by less than this alignment. In a program at a fixed address it has no effect
                // beyond the page's.
                p.p_align = wanted.page;
            }
        }
        _ => {
            if let (Room::Block(block), Some(to)) = (wanted.room, wanted.block)
                && block.holds(p.p_offset, p.p_filesz)
            {
                let into = p.p_offset - block.offset;
                moved_to(
                    &mut p,
                    Place {
                        offset: to.offset + into,
                        addr: to.addr + into,
                        size: 0,
                    },
                );
                return p;
            }
        }
    }
    if p.p_filesz > 0 || p.p_offset > 0 || p.p_type == raw::PT_LOAD {
        p.p_offset += wanted.shift;
    }
    p
}

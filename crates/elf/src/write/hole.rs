//! Bytes of the file that belong to nothing, between segments.
//!
//! Where the offset of a segment has to agree with its address modulo the page size, and code and data share
//! no page in memory, linkers pad the file: GNU ld on AArch64, for pages of 64 KiB, by 32 KiB on average; on
//! x86-64 by 2 KiB, several times. What is new goes there first. There are two ways to load it:
//!
//! * **Longer.** The segment of the code, with a hole after it, becomes longer by that much.
//!
//! | in the file | | in memory | |
//! |---|---|---|---|
//! | code | | the same | |
//! | the hole: zeros up to the next segment | becomes a part of the code's segment | nothing, up to the page with which the next segment begins | the same |
//! | the next segment | | the same | |
//!
//! * **Mapped.** Any other hole is loaded a second time, by a segment of its own after the image: the page of
//!   the file is then in memory twice, as where lld lays out a program. That costs a program header and a
//!   page of addresses, and is done where it is asked for: it pays where little is new.
//!
//! A hole has no section and no header in it, and only zeros, which nothing refers to.

use crate::addr::{InputOffset, OutputAddr};
use crate::elf::{Elf, Segment};
use crate::raw;

/// How a hole comes to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The segment of this program header becomes longer.
    Longer(usize),
    /// A new segment.
    Mapped,
}

/// What is left of a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    /// How it is loaded.
    pub way: Way,
    /// Address of its first byte: the segment's end in the input, or where the new segment begins.
    from: OutputAddr,
    /// Address of the first byte that is free.
    at: OutputAddr,
    /// One past the last.
    end: OutputAddr,
    /// Offset of its first byte in the input file.
    offset: InputOffset,
}

impl Hole {
    /// Where the next section begins, and how much space there is.
    fn next(&self, align: u64) -> Option<(OutputAddr, u64)> {
        let at = self.at.checked_next_multiple_of(align)?;
        Some((at, self.end.checked_sub(at)?))
    }

    /// Bytes for a section of the alignment.
    pub fn free(&self, align: u64) -> u64 {
        self.next(align).map_or(0, |n| n.1)
    }

    /// The address of a section, if there is space for it.
    pub fn take(&mut self, size: u64, align: u64) -> Option<OutputAddr> {
        if !align.is_power_of_two() {
            return None;
        }
        let (at, free) = self.next(align)?;
        if size == 0 || size > free {
            return None;
        }
        self.at = at + size;
        Some(at)
    }

    /// The address for bytes that moved from `addr` by a multiple of the alignment, a power of two, if there
    /// is space for them.
    pub fn take_like(&mut self, addr: u64, size: u64, align: u64) -> Option<OutputAddr> {
        let at = self
            .at
            .checked_add(addr.wrapping_sub(self.at.get()) & (align - 1))?;
        let end = at.checked_add(size).filter(|end| *end <= self.end)?;
        self.at = end;
        Some(at)
    }

    /// Whether an address belongs to it.
    pub fn covers(&self, addr: OutputAddr) -> bool {
        (self.from..self.end).contains(&addr)
    }

    /// Address of its first byte.
    pub fn start(&self) -> OutputAddr {
        self.from
    }

    /// Bytes up to the end of the last section in it.
    pub fn used(&self) -> u64 {
        self.at - self.from
    }

    /// One past the last address that it can ever have.
    pub fn end(&self) -> OutputAddr {
        self.end
    }

    /// Where an address in it is in the input file.
    pub fn offset_of(&self, addr: OutputAddr) -> InputOffset {
        self.offset + (addr - self.from)
    }
}

/// The zeros after a segment in the file that belong to nothing: offsets. None if no segment is after: there
/// everything moves. Nor where the segment ends with the program headers: they need that space themselves.
fn behind(elf: &Elf<'_>, p: &Segment) -> Option<(u64, u64)> {
    let from = p.offset + p.file_size;
    if from == elf.phoff + elf.segments.len() as u64 * raw::PHDR {
        return None;
    }
    let starts = elf.loads().map(|q| q.offset).filter(|o| *o >= from);
    let sections = elf.sections.iter().filter(|s| s.has_contents());
    let tables = [elf.phoff, elf.shoff].into_iter().filter(|o| *o >= from);
    let to = starts
        .chain(sections.map(|s| s.offset).filter(|o| *o >= from))
        .chain(tables)
        .min()?;
    elf.loads().find(|q| q.offset >= to && q.file_size > 0)?;
    Some((from, to))
}

fn is_zero(elf: &Elf<'_>, from: u64, to: u64) -> bool {
    let bytes = elf.data.get(from as usize..to as usize);
    bytes.is_some_and(|bytes| bytes.iter().all(|b| *b == 0))
}

/// The largest hole after a segment of code, which becomes longer.
pub(super) fn longer(elf: &Elf<'_>, page: u64) -> Option<Hole> {
    let hole = |(segment, p): (usize, &Segment)| {
        let code = p.kind == raw::PT_LOAD && p.flags & (raw::PF_W | raw::PF_X) == raw::PF_X;
        if !code || p.file_size != p.mem_size || p.file_size == 0 {
            return None;
        }
        // Up to what follows in the file, and to the page of what follows in memory.
        let ((from, to), addr) = (behind(elf, p)?, p.addr + p.mem_size);
        let next = elf.loads().map(|q| q.addr).filter(|a| *a >= addr).min();
        let until = next.map_or(addr, |a| a - a % page);
        let size = (to - from).min(until.saturating_sub(addr));
        let start = OutputAddr::new(addr);
        (size > 0 && is_zero(elf, from, from + size)).then_some(Hole {
            way: Way::Longer(segment),
            from: start,
            at: start,
            end: start + size,
            offset: InputOffset::new(from),
        })
    };
    elf.segments
        .iter()
        .enumerate()
        .filter_map(hole)
        .max_by_key(|hole| hole.end - hole.from)
}

/// The largest hole beside `other`, to be loaded in pages of their own from the address `at` on, which is a page's.
pub(super) fn mapped(
    elf: &Elf<'_>,
    other: Option<&Hole>,
    page: u64,
    at: OutputAddr,
) -> Option<Hole> {
    let taken = other.map(|hole| hole.offset.get());
    let (from, to) = elf
        .loads()
        .filter(|p| p.file_size > 0)
        .filter_map(|p| behind(elf, p))
        .filter(|(from, to)| to > from && Some(*from) != taken && is_zero(elf, *from, *to))
        .max_by_key(|(from, to)| to - from)?;
    let start = at.checked_add(from % page)?;
    Some(Hole {
        way: Way::Mapped,
        from: start,
        at: start,
        end: start.checked_add(to - from)?,
        offset: InputOffset::new(from),
    })
}

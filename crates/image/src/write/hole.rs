//! Bytes of the file that belong to nothing, between code and the segment behind it.
//!
//! Where the offset of a segment has to agree with its address modulo the page size, and code and data share no page in memory, linkers pad the file: GNU ld on AArch64,
//! for pages of 64 KiB, by 32 KiB on average. The segment of the code can be made longer by that much, and the file is not: what is new goes
//! there first.
//!
//! | in the file | | in memory | |
//! |---|---|---|---|
//! | code | | the same | |
//! | the hole: zeros up to the next segment | becomes a part of the code's segment | nothing, up to the page with which the next segment begins | the same |
//! | the next segment | | the same | |
//!
//! A hole has no section and no header in it, and only zeros, which nothing refers to.

use crate::elf::{Elf, Segment};
use crate::raw;

/// What is left of a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    /// Index of the program header of the code's segment.
    pub segment: usize,
    /// Address of the segment's end in the input.
    from: u64,
    /// Address of the first byte that is free.
    at: u64,
    /// One past the last.
    end: u64,
    /// Offset of an address in the input file.
    offset: u64,
}

impl Hole {
    /// Where the next section begins, and how much room there is.
    fn next(&self, align: u64) -> Option<(u64, u64)> {
        let at = self.at.checked_next_multiple_of(align)?;
        Some((at, self.end.checked_sub(at)?))
    }

    /// Bytes for a section of the alignment.
    pub fn free(&self, align: u64) -> u64 {
        self.next(align).map_or(0, |n| n.1)
    }

    /// The address of a section, if there is room for it.
    pub fn take(&mut self, size: u64, align: u64) -> Option<u64> {
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

    /// How much longer the segment is.
    pub fn used(&self) -> u64 {
        self.at - self.from
    }

    /// Where an address in it is in the input file.
    pub fn offset_of(&self, addr: u64) -> u64 {
        self.offset + (addr - self.from)
    }
}

/// The largest hole behind a segment of code.
pub(super) fn find(elf: &Elf<'_>, page: u64) -> Option<Hole> {
    let behind = |(segment, p): (usize, &Segment)| {
        let code = p.kind == raw::PT_LOAD && p.flags & (raw::PF_W | raw::PF_X) == raw::PF_X;
        if !code || p.file_size != p.mem_size || p.file_size == 0 {
            return None;
        }
        let (from, addr) = (p.offset + p.file_size, p.addr + p.mem_size);
        // Up to what follows in the file, and to the page of what follows in memory.
        let starts = elf.loads().map(|q| q.offset).filter(|o| *o >= from);
        let sections = elf.sections.iter().filter(|s| s.has_contents());
        let tables = [elf.phoff, elf.shoff].into_iter().filter(|o| *o >= from);
        let to = starts
            .chain(sections.map(|s| s.offset).filter(|o| *o >= from))
            .chain(tables)
            .min()?;
        // The end of the loaded part is not a hole: behind it everything moves.
        elf.loads().find(|q| q.offset >= to && q.file_size > 0)?;
        let next = elf.loads().map(|q| q.addr).filter(|a| *a >= addr).min();
        let until = next.map_or(addr, |a| a - a % page);
        let size = (to - from).min(until.saturating_sub(addr));
        let bytes = elf.data.get(from as usize..(from + size) as usize)?;
        (size > 0 && bytes.iter().all(|b| *b == 0)).then_some(Hole {
            segment,
            from: addr,
            at: addr,
            end: addr + size,
            offset: from,
        })
    };
    elf.segments
        .iter()
        .enumerate()
        .filter_map(behind)
        .max_by_key(|hole| hole.end - hole.from)
}

//! The sections that are read and changed, by number.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::splice::Splices;

/// A section that describes code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Section {
    /// `.debug_info`: the entries.
    Info,
    /// `.debug_types`: type units of DWARF 4.
    Types,
    /// `.debug_abbrev`: what entries consist of.
    Abbrev,
    /// `.debug_line`: line programs.
    Line,
    /// `.debug_aranges`: units by address.
    Aranges,
    /// `.debug_ranges`: range lists up to DWARF 4.
    Ranges,
    /// `.debug_rnglists`: range lists of DWARF 5.
    Rnglists,
    /// `.debug_loc`: location lists up to DWARF 4.
    Loc,
    /// `.debug_loclists`: location lists of DWARF 5.
    Loclists,
    /// `.debug_addr`: addresses by index.
    Addr,
    /// `.debug_macro`: macro definitions.
    Macro,
    /// `.gdb_index`: gdb's index.
    GdbIndex,
    /// `.debug_frame`: unwinding, where there is no `.eh_frame`.
    Frame,
}

const COUNT: usize = 13;

impl Section {
    /// Whether what is in it stays where it is: new lists of DWARF 2 to 4 are all behind the old ones.
    pub(crate) fn keeps_offsets(self) -> bool {
        matches!(self, Section::Ranges | Section::Loc)
    }

    /// All of them.
    pub const ALL: [Section; COUNT] = [
        Section::Info,
        Section::Types,
        Section::Abbrev,
        Section::Line,
        Section::Aranges,
        Section::Ranges,
        Section::Rnglists,
        Section::Loc,
        Section::Loclists,
        Section::Addr,
        Section::Macro,
        Section::GdbIndex,
        Section::Frame,
    ];

    /// The section's name in an ELF file.
    pub fn name(self) -> &'static str {
        match self {
            Section::Info => ".debug_info",
            Section::Types => ".debug_types",
            Section::Abbrev => ".debug_abbrev",
            Section::Line => ".debug_line",
            Section::Aranges => ".debug_aranges",
            Section::Ranges => ".debug_ranges",
            Section::Rnglists => ".debug_rnglists",
            Section::Loc => ".debug_loc",
            Section::Loclists => ".debug_loclists",
            Section::Addr => ".debug_addr",
            Section::Macro => ".debug_macro",
            Section::GdbIndex => ".gdb_index",
            Section::Frame => ".debug_frame",
        }
    }
}

/// The contents of an input's sections, unpacked. What is missing is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sections<'d> {
    data: [&'d [u8]; COUNT],
    give_back: Option<GiveBack<'d>>,
}

/// Memory that is not needed for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Parts of the sections that were read.
    Read,
    /// What was freed: rows of line programs, and what was found in entries, are a large part of all.
    Freed,
}

/// See [`Sections::giving_back`].
#[derive(Clone, Copy)]
struct GiveBack<'d>(&'d (dyn Fn(Memory) + Sync));

impl fmt::Debug for GiveBack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GiveBack")
    }
}

#[expect(clippy::indexing_slicing, reason = "a section's number is below COUNT")]
impl<'d> Sections<'d> {
    /// Takes each section from a function of its name.
    pub fn load(mut by_name: impl FnMut(&'static str) -> Option<&'d [u8]>) -> Self {
        Sections {
            data: Section::ALL.map(|s| by_name(s.name()).unwrap_or_default()),
            give_back: None,
        }
    }

    /// Says how to give back memory: that of what was read so far, for sections that are parts of a mapped file, where
    /// what is needed again is read again, and that of what was freed, where the allocator keeps it. An update reads
    /// nearly all of the sections, once, and needs few pages again. It is called now and then, by any thread.
    pub fn giving_back(mut self, give_back: &'d (dyn Fn(Memory) + Sync)) -> Self {
        self.give_back = Some(GiveBack(give_back));
        self
    }

    /// Contents of a section.
    pub fn get(&self, section: Section) -> &'d [u8] {
        self.data[section as usize]
    }

    /// Bytes of all sections.
    pub(crate) fn size(&self) -> u64 {
        self.data.iter().map(|data| data.len() as u64).sum()
    }

    /// Sets a section's contents.
    pub fn set(&mut self, section: Section, data: &'d [u8]) {
        self.data[section as usize] = data;
    }
}

/// How much of the sections was read since memory was given back.
pub(crate) struct Reading<'d> {
    give_back: Option<GiveBack<'d>>,
    bytes: AtomicU64,
    /// What is read between two times.
    between: u64,
}

impl<'d> Reading<'d> {
    /// The least and the most that is read between two times: giving back costs a small part of reading it.
    const BETWEEN: (u64, u64) = (1 << 17, 1 << 22);
    /// How often memory is given back while all is read once.
    const TIMES: u64 = 16;

    /// Reading of a program's sections, and of so many bytes beside them.
    pub fn new(sections: &Sections<'d>, others: u64) -> Self {
        let (least, most) = Self::BETWEEN;
        Reading {
            give_back: sections.give_back,
            bytes: AtomicU64::new(0),
            between: ((sections.size() + others) / Self::TIMES).clamp(least, most),
        }
    }

    /// So many bytes more were read.
    pub fn done(&self, bytes: u64) {
        let Some(GiveBack(give_back)) = self.give_back else {
            return;
        };
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes >= self.between {
            self.bytes.store(0, Ordering::Relaxed);
            give_back(Memory::Read);
        }
    }

    /// A place far from others was read: the system reads what is around it as well.
    pub fn one_place(&self) {
        const AROUND: u64 = 64 << 10;
        self.done(AROUND);
    }

    /// Much memory was freed.
    pub fn freed(&self) {
        if let Some(GiveBack(give_back)) = self.give_back {
            give_back(Memory::Freed);
        }
    }
}

/// Changes, by section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    by_section: [Splices; COUNT],
}

#[expect(clippy::indexing_slicing, reason = "a section's number is below COUNT")]
impl Changes {
    /// Changes of a section.
    pub fn get(&self, section: Section) -> &Splices {
        &self.by_section[section as usize]
    }

    pub(crate) fn get_mut(&mut self, section: Section) -> &mut Splices {
        &mut self.by_section[section as usize]
    }

    /// Sections that change, with what changes in them.
    pub fn into_sections(self) -> impl Iterator<Item = (Section, Splices)> {
        let all = Section::ALL.into_iter().zip(self.by_section);
        all.filter(|(_, splices)| !splices.is_empty())
    }

    /// Sections that change.
    pub fn sections(&self) -> impl Iterator<Item = (Section, &Splices)> {
        let all = Section::ALL.into_iter().map(|s| (s, self.get(s)));
        all.filter(|(_, splices)| !splices.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_after_each_part_that_was_read() {
        let calls = AtomicU64::new(0);
        let give_back = |what| {
            assert_eq!(what, Memory::Read);
            calls.fetch_add(1, Ordering::Relaxed);
        };
        let sections = Sections::default().giving_back(&give_back);
        let reading = Reading::new(&sections, 0);
        let after = |bytes| {
            reading.done(bytes);
            calls.load(Ordering::Relaxed)
        };
        let third = Reading::BETWEEN.0 / 3 + 1;
        assert_eq!([third; 7].map(after), [0, 0, 1, 1, 1, 2, 2]);
        assert_eq!(after(u64::from(u32::MAX)), 3);
        // Sections in memory of their own.
        Reading::new(&Sections::default(), 0).done(u64::from(u32::MAX));
    }
}

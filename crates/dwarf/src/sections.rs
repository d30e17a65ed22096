//! The sections that are read and changed, by number.

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
}

#[expect(clippy::indexing_slicing, reason = "a section's number is below COUNT")]
impl<'d> Sections<'d> {
    /// Takes each section from a function of its name.
    pub fn load(mut by_name: impl FnMut(&'static str) -> Option<&'d [u8]>) -> Self {
        Sections {
            data: Section::ALL.map(|s| by_name(s.name()).unwrap_or_default()),
        }
    }

    /// Contents of a section.
    pub fn get(&self, section: Section) -> &'d [u8] {
        self.data[section as usize]
    }

    /// Sets a section's contents.
    pub fn set(&mut self, section: Section, data: &'d [u8]) {
        self.data[section as usize] = data;
    }
}

/// Changes, by section.
#[derive(Clone, Debug, Default)]
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

//! Writing a package: the files of a program's split units, one after another, and an index ([`super::read`]).
//!
//! ```text
//! 1. plan    SplitFile ─► its units and their ids, strings in common, lengths ─► Package: sections and index
//! 2. write   section after section: of each SplitFile its contribution, with what changes in it
//! ```
//!
//! A package is about as long as its files, which may be gigabytes. So nothing of it but offsets of strings and the
//! index is in memory as a whole: contributions are made when they are written, those of one file at a time, and pages
//! of files are given back behind the reader ([`Sections::giving_back`]). Entries are changed twice for that: first for
//! the ids of their units.
//!
//! A type unit that is in several files is taken from the first.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;

use rustc_hash::FxHashSet;

use super::SplitFile;
use super::read::column;
use super::strings::Strings;
use crate::Error;
use crate::abbrev::Table;
use crate::read::put_number;
use crate::sections::{Changes, Reading, Section, Sections};
use crate::splice::Splices;
use crate::unit::{Identity, Root, Unit};

/// A package that is ready to be written.
pub struct Package<'p> {
    /// Units.
    pub units: u64,
    files: Vec<Planned<'p>>,
    /// Strings of all files, with the zero bytes at their ends, in their order.
    strings: Vec<&'p [u8]>,
    /// Those that are not empty: names, lengths and what is in them.
    sections: Vec<(&'static str, u64, Content)>,
    reading: Reading<'p>,
}

/// What is in a section of a package.
enum Content {
    /// A part of each file.
    Parts(Part),
    Strings,
    Index(Vec<u8>),
}

/// What a file has of a section of a package.
#[derive(Clone, Copy)]
enum Part {
    /// Units, each with a row of its own.
    Units(Section),
    /// A section that may change.
    Of(Section),
    Line,
    StrOffsets,
    Macinfo,
    Macros,
}

/// A section of a package that each file has a part of: its column in the index, and its name.
type Column = (u32, &'static str, Part);

const COLUMNS_2: [Column; 8] = [
    (column::INFO, ".debug_info.dwo", Part::Units(Section::Info)),
    (
        column::TYPES,
        ".debug_types.dwo",
        Part::Units(Section::Types),
    ),
    (
        column::ABBREV,
        ".debug_abbrev.dwo",
        Part::Of(Section::Abbrev),
    ),
    (column::LINE, ".debug_line.dwo", Part::Line),
    (column::LOCATIONS, ".debug_loc.dwo", Part::Of(Section::Loc)),
    (
        column::STR_OFFSETS,
        ".debug_str_offsets.dwo",
        Part::StrOffsets,
    ),
    (column::MACINFO, ".debug_macinfo.dwo", Part::Macinfo),
    (column::OLD_MACRO, ".debug_macro.dwo", Part::Macros),
];
const COLUMNS_5: [Column; 7] = [
    (column::INFO, ".debug_info.dwo", Part::Units(Section::Info)),
    (
        column::ABBREV,
        ".debug_abbrev.dwo",
        Part::Of(Section::Abbrev),
    ),
    (column::LINE, ".debug_line.dwo", Part::Line),
    (
        column::LOCATIONS,
        ".debug_loclists.dwo",
        Part::Of(Section::Loclists),
    ),
    (
        column::STR_OFFSETS,
        ".debug_str_offsets.dwo",
        Part::StrOffsets,
    ),
    (column::MACRO, ".debug_macro.dwo", Part::Macros),
    (
        column::RNGLISTS,
        ".debug_rnglists.dwo",
        Part::Of(Section::Rnglists),
    ),
];

/// A row of an index: id or signature, and the unit's parts.
struct Row {
    id: u64,
    parts: BTreeMap<u32, (u32, u32)>,
}

/// Plans the package of a program's files: what changes in each, or `None` for one that stays as it is. Those of
/// another version than most are left out. The program's sections say how memory is given back.
///
/// # Errors
///
/// If a section would exceed 4 GiB, or strings of a file cannot be read.
pub fn package<'p>(
    program: &Sections<'p>,
    files: &'p [SplitFile<'p>],
    changes: &'p [Option<Changes>],
) -> Result<Package<'p>, Error> {
    let version = super::version_of(files);
    let columns: &[Column] = if version == 5 { &COLUMNS_5 } else { &COLUMNS_2 };
    let bytes: u64 = files.iter().map(|file| file.own().size()).sum();
    let mut planning = Planning {
        columns,
        lengths: BTreeMap::new(),
        strings: Strings::default(),
        units: Vec::new(),
        types: Vec::new(),
        known: FxHashSet::default(),
        planned: Vec::new(),
    };
    let reading = Reading::new(program, bytes);
    for (i, file) in files.iter().enumerate() {
        if file.version() == version {
            planning.file(file, changes.get(i).and_then(Option::as_ref))?;
            reading.done(file.own().size());
        }
    }
    let mut sections = Vec::new();
    for (column, name, part) in columns {
        let len = planning.lengths.get(column).copied().unwrap_or_default();
        sections.push((*name, len, Content::Parts(*part)));
    }
    sections.push((".debug_str.dwo", planning.strings.len(), Content::Strings));
    for (name, rows) in [
        (".debug_cu_index", &planning.units),
        (".debug_tu_index", &planning.types),
    ] {
        let index = index(rows, columns, version);
        sections.push((name, index.len() as u64, Content::Index(index)));
    }
    sections.retain(|(_, len, _)| *len > 0);
    Ok(Package {
        units: (planning.units.len() + planning.types.len()) as u64,
        files: planning.planned,
        strings: planning.strings.into_list(),
        sections,
        reading,
    })
}

impl Package<'_> {
    /// Names and lengths of its sections, in their order in the file; none is empty.
    pub fn sections(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.sections.iter().map(|(name, len, _)| (*name, *len))
    }

    /// Writes the bytes of the section of a number.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(&self, number: usize, out: &mut dyn Write) -> io::Result<()> {
        let Some((_, _, content)) = self.sections.get(number) else {
            return Ok(());
        };
        match content {
            Content::Index(bytes) => out.write_all(bytes)?,
            Content::Strings => {
                for string in &self.strings {
                    out.write_all(string)?;
                    self.reading.done(string.len() as u64);
                }
            }
            Content::Parts(part) => {
                let mut buffer = Vec::new();
                for file in &self.files {
                    file.write(*part, &mut buffer, out)?;
                    self.reading.done(file.len(*part));
                }
            }
        }
        Ok(())
    }
}

/// A file, and what of it is in the package.
struct Planned<'p> {
    file: &'p SplitFile<'p>,
    changes: Option<&'p Changes>,
    /// Where the units of `.debug_info.dwo` and `.debug_types.dwo` are that the package has, after their change.
    units: [Vec<Range<usize>>; 2],
    /// `.debug_str_offsets.dwo` as it is in the package.
    str_offsets: Cow<'p, [u8]>,
}

impl<'p> Planned<'p> {
    /// A section of the file as it is in the package; `buffer` is for one that changes.
    fn section<'b>(&self, section: Section, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'p: 'b,
    {
        let old = self.old(section);
        let Some(splices) = self.changed(section) else {
            return old;
        };
        buffer.clear();
        splices.append_to(buffer, old);
        buffer
    }

    /// A section of the file as it is; for one that changes, as it was when that was decided.
    fn old(&self, section: Section) -> &'p [u8] {
        match section {
            Section::Rnglists if self.changed(section).is_none() => self.file.rnglists,
            _ => self.file.own().get(section),
        }
    }

    /// What changes in a section, if anything does.
    fn changed(&self, section: Section) -> Option<&'p Splices> {
        let splices = self.changes.map(|changes| changes.get(section));
        splices.filter(|splices| !splices.is_empty())
    }

    /// Bytes of a part.
    fn len(&self, part: Part) -> u64 {
        match part {
            Part::Units(section) => self.units(section).iter().map(|u| u.len() as u64).sum(),
            Part::Of(section) => {
                let old = self.old(section).len() as u64;
                let splices = self.changed(section);
                splices.map_or(old, |splices| splices.new_len(old))
            }
            Part::Line | Part::StrOffsets | Part::Macinfo | Part::Macros => {
                self.whole(part).len() as u64
            }
        }
    }

    /// A part that does not change after planning.
    fn whole(&self, part: Part) -> &[u8] {
        match part {
            Part::Line => self.file.line,
            Part::StrOffsets => &self.str_offsets,
            Part::Macinfo => self.file.macinfo,
            Part::Macros => self.file.macros,
            Part::Units(_) | Part::Of(_) => &[],
        }
    }

    fn units(&self, section: Section) -> &[Range<usize>] {
        let [info, types] = &self.units;
        if section == Section::Types {
            types
        } else {
            info
        }
    }

    /// Writes a part.
    fn write(&self, part: Part, buffer: &mut Vec<u8>, out: &mut dyn Write) -> io::Result<()> {
        match part {
            Part::Units(section) => {
                let bytes = self.section(section, buffer);
                let units = self.units(section).iter();
                let mut units = units.map(|unit| bytes.get(unit.clone()).unwrap_or_default());
                units.try_for_each(|unit| out.write_all(unit))
            }
            Part::Of(section) => out.write_all(self.section(section, buffer)),
            Part::Line | Part::StrOffsets | Part::Macinfo | Part::Macros => {
                out.write_all(self.whole(part))
            }
        }
    }
}

struct Planning<'p> {
    columns: &'static [Column],
    /// Of sections so far, by column.
    lengths: BTreeMap<u32, u64>,
    strings: Strings<'p>,
    units: Vec<Row>,
    types: Vec<Row>,
    /// Ids and signatures that were taken.
    known: FxHashSet<(bool, u64)>,
    planned: Vec<Planned<'p>>,
}

impl<'p> Planning<'p> {
    fn file(&mut self, file: &'p SplitFile<'p>, changes: Option<&'p Changes>) -> Result<(), Error> {
        let mut planned = Planned {
            file,
            changes,
            units: [Vec::new(), Vec::new()],
            str_offsets: self.strings.of_file(file)?,
        };
        let mut parts = BTreeMap::new();
        for (column, name, part) in self.columns {
            let len = planned.len(*part);
            if len > 0 {
                parts.insert(*column, self.place(*column, name, len)?);
            }
        }
        let mut buffers: [Vec<u8>; 3] = Default::default();
        let mut sections = Sections::default();
        let of_units = [Section::Info, Section::Types, Section::Abbrev];
        for (section, buffer) in of_units.into_iter().zip(&mut buffers) {
            sections.set(section, planned.section(section, buffer));
        }
        for section in [Section::Info, Section::Types] {
            for unit in Unit::read_all(sections.get(section), section).0 {
                if self.unit(&Unit { set: 1, ..unit }, &sections, &parts)? {
                    let [info, types] = &mut planned.units;
                    let units = if section == Section::Types {
                        types
                    } else {
                        info
                    };
                    units.push(unit.start..unit.end);
                }
            }
        }
        self.planned.push(planned);
        Ok(())
    }

    /// A unit of a file whose other parts are known. Says whether the package has it.
    fn unit(
        &mut self,
        unit: &Unit,
        sections: &Sections<'_>,
        shared: &BTreeMap<u32, (u32, u32)>,
    ) -> Result<bool, Error> {
        let (is_type, id) = match unit.identity {
            Identity::Type(signature) => (true, signature),
            Identity::Split(_, id) => (false, id),
            Identity::None => {
                let abbrev = sections.get(Section::Abbrev);
                let root = Table::read(abbrev, unit.abbrev, unit.encoding)
                    .and_then(|table| Root::read(unit, &table, sections))?;
                match root.split_id {
                    Some((_, id)) => (false, id),
                    // Nothing leads to it.
                    None => return Ok(false),
                }
            }
        };
        if !self.known.insert((is_type, id)) {
            return Ok(false);
        }
        let (column, name) = match unit.section {
            Section::Types => (column::TYPES, ".debug_types.dwo"),
            _ => (column::INFO, ".debug_info.dwo"),
        };
        let mut parts = shared.clone();
        parts.insert(column, self.place(column, name, unit.len())?);
        let rows = if is_type {
            &mut self.types
        } else {
            &mut self.units
        };
        rows.push(Row { id, parts });
        Ok(true)
    }

    /// Gives a part its place behind those that a section has: offset and length.
    fn place(&mut self, column: u32, name: &'static str, len: u64) -> Result<(u32, u32), Error> {
        let end = self.lengths.entry(column).or_default();
        let start = *end;
        *end += len;
        let too_long = |_| Error::new(name, start, "a package's section would exceed 4 GiB");
        u32::try_from(*end).map_err(too_long)?;
        Ok((start as u32, len as u32))
    }
}

/// An index of units. Without units it is empty.
fn index(rows: &[Row], columns: &[Column], version: u16) -> Vec<u8> {
    let mut out = Vec::new();
    if rows.is_empty() {
        return out;
    }
    let used = |c: &u32| rows.iter().any(|row| row.parts.contains_key(c));
    let columns: Vec<u32> = columns.iter().map(|c| c.0).filter(used).collect();
    let slots = (rows.len() * 3 / 2 + 1).next_power_of_two();
    put_number(&mut out, if version == 5 { 5 } else { 2 }, 4);
    for n in [columns.len(), rows.len(), slots] {
        put_number(&mut out, n as u64, 4);
    }
    let mut table: Vec<Option<usize>> = vec![None; slots];
    let mask = slots as u64 - 1;
    for (i, row) in rows.iter().enumerate() {
        let mut slot = row.id & mask;
        let step = row.id >> 32 & mask | 1;
        // There are more slots than rows, and an odd step visits all of them.
        while let Some(cell) = table.get_mut(slot as usize) {
            if cell.is_none() {
                *cell = Some(i);
                break;
            }
            slot = (slot + step) & mask;
        }
    }
    for slot in &table {
        let row = slot.and_then(|i| rows.get(i));
        put_number(&mut out, row.map_or(0, |row| row.id), 8);
    }
    for slot in &table {
        put_number(&mut out, slot.map_or(0, |i| i as u64 + 1), 4);
    }
    for column in &columns {
        put_number(&mut out, u64::from(*column), 4);
    }
    for value in [|part: (u32, u32)| part.0, |part: (u32, u32)| part.1] {
        for row in rows {
            for column in &columns {
                let part = row.parts.get(column).copied().unwrap_or_default();
                put_number(&mut out, value(part).into(), 4);
            }
        }
    }
    out
}

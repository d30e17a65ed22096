//! Writing a package: the files of a program's split units, one after another, and an index ([`super::read`]).
//!
//! ```text
//! SplitFile ─► changes applied ─► contributions, strings in common ─┐
//!                                 id or signature of each unit ─────┴► Package
//! ```
//!
//! Strings of `.dwo` files are merged, those of a package are taken whole. A type unit that is in several files is
//! taken from the first.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::SplitFile;
use super::read::column;
use crate::Error;
use crate::abbrev::Table;
use crate::read::{Reader, number, part, put_number};
use crate::sections::{Changes, Section, Sections};
use crate::unit::{Identity, Root, Unit};

/// The sections of a package by name.
#[derive(Clone, Debug, Default)]
pub struct Package {
    /// Names and contents; those that are empty are left out.
    pub sections: Vec<(&'static str, Vec<u8>)>,
    /// Units.
    pub units: u64,
}

/// Sections of a package that each file has a part of, by column.
const COLUMNS_2: [(u32, &str); 8] = [
    (column::INFO, ".debug_info.dwo"),
    (column::TYPES, ".debug_types.dwo"),
    (column::ABBREV, ".debug_abbrev.dwo"),
    (column::LINE, ".debug_line.dwo"),
    (column::LOCATIONS, ".debug_loc.dwo"),
    (column::STR_OFFSETS, ".debug_str_offsets.dwo"),
    (column::MACINFO, ".debug_macinfo.dwo"),
    (column::OLD_MACRO, ".debug_macro.dwo"),
];
const COLUMNS_5: [(u32, &str); 7] = [
    (column::INFO, ".debug_info.dwo"),
    (column::ABBREV, ".debug_abbrev.dwo"),
    (column::LINE, ".debug_line.dwo"),
    (column::LOCATIONS, ".debug_loclists.dwo"),
    (column::STR_OFFSETS, ".debug_str_offsets.dwo"),
    (column::MACRO, ".debug_macro.dwo"),
    (column::RNGLISTS, ".debug_rnglists.dwo"),
];

/// A row of an index: id or signature, and the unit's parts.
struct Row {
    id: u64,
    parts: BTreeMap<u32, (u32, u32)>,
}

/// Packs files: what changes in each, or `None` for one that stays as it is. Those of another version than most are
/// left out.
///
/// # Errors
///
/// If a section would exceed 4 GiB, or strings of a file cannot be read.
pub fn package(files: &[SplitFile<'_>], changes: &[Option<Changes>]) -> Result<Package, Error> {
    let version = super::version_of(files);
    let mut packing = Packing {
        columns: if version == 5 { &COLUMNS_5 } else { &COLUMNS_2 },
        sections: BTreeMap::new(),
        strings: Strings::default(),
        units: Vec::new(),
        types: Vec::new(),
        known: FxHashSet::default(),
    };
    for (i, file) in files
        .iter()
        .enumerate()
        .filter(|(_, f)| f.version() == version)
    {
        packing.file(file, changes.get(i).and_then(Option::as_ref))?;
    }
    let mut out = Package {
        sections: Vec::new(),
        units: (packing.units.len() + packing.types.len()) as u64,
    };
    for (column, name) in packing.columns {
        let bytes = packing.sections.remove(column).unwrap_or_default();
        out.sections.push((name, bytes));
    }
    out.sections.push((".debug_str.dwo", packing.strings.bytes));
    for (name, rows) in [
        (".debug_cu_index", &packing.units),
        (".debug_tu_index", &packing.types),
    ] {
        out.sections
            .push((name, index(rows, packing.columns, version)));
    }
    out.sections.retain(|(_, bytes)| !bytes.is_empty());
    Ok(out)
}

struct Packing {
    columns: &'static [(u32, &'static str)],
    /// By column.
    sections: BTreeMap<u32, Vec<u8>>,
    strings: Strings,
    units: Vec<Row>,
    types: Vec<Row>,
    /// Ids and signatures that were taken.
    known: FxHashSet<(bool, u64)>,
}

impl Packing {
    fn file(&mut self, file: &SplitFile<'_>, changes: Option<&Changes>) -> Result<(), Error> {
        let old = file.own();
        let new = |section: Section| -> Cow<'_, [u8]> {
            let data = old.get(section);
            match changes.map(|c| c.get(section)).filter(|c| !c.is_empty()) {
                Some(splices) => Cow::Owned(splices.apply(data)),
                None if section == Section::Rnglists => Cow::Borrowed(file.rnglists),
                None => Cow::Borrowed(data),
            }
        };
        let (info, types, abbrev) = (
            new(Section::Info),
            new(Section::Types),
            new(Section::Abbrev),
        );
        let (locations, lists) = match file.version() {
            5 => (new(Section::Loclists), new(Section::Rnglists)),
            _ => (new(Section::Loc), Cow::Borrowed(&[][..])),
        };
        let offsets = self.strings.of_file(file)?;
        let (macinfo, macros) = match file.version() {
            5 => (&[][..], (column::MACRO, file.macros)),
            _ => (file.macinfo, (column::OLD_MACRO, file.macros)),
        };
        let mut parts = BTreeMap::new();
        for (column, bytes) in [
            (column::MACINFO, macinfo),
            macros,
            (column::ABBREV, &*abbrev),
            (column::LINE, file.line),
            (column::LOCATIONS, &*locations),
            (column::RNGLISTS, &*lists),
            (column::STR_OFFSETS, &*offsets),
        ] {
            if !bytes.is_empty() {
                parts.insert(column, self.part(column, bytes)?);
            }
        }
        let mut sections = Sections::default();
        sections.set(Section::Info, &info);
        sections.set(Section::Types, &types);
        sections.set(Section::Abbrev, &abbrev);
        for section in [Section::Info, Section::Types] {
            for unit in Unit::read_all(sections.get(section), section).0 {
                self.unit(&Unit { set: 1, ..unit }, &sections, &parts)?;
            }
        }
        Ok(())
    }

    /// A unit of a file whose other parts are known.
    fn unit(
        &mut self,
        unit: &Unit,
        sections: &Sections<'_>,
        shared: &BTreeMap<u32, (u32, u32)>,
    ) -> Result<(), Error> {
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
                    None => return Ok(()),
                }
            }
        };
        if !self.known.insert((is_type, id)) {
            return Ok(());
        }
        let bytes = part(
            sections.get(unit.section),
            unit.start as u64..unit.end as u64,
            unit.section.name(),
        )?;
        let column = match unit.section {
            Section::Types => column::TYPES,
            _ => column::INFO,
        };
        let mut parts = shared.clone();
        parts.insert(column, self.part(column, bytes)?);
        let rows = if is_type {
            &mut self.types
        } else {
            &mut self.units
        };
        rows.push(Row { id, parts });
        Ok(())
    }

    /// Appends a part to a section. Returns its offset and length.
    fn part(&mut self, column: u32, bytes: &[u8]) -> Result<(u32, u32), Error> {
        let known = self.columns.iter().find(|c| c.0 == column);
        let name = known.map_or(".debug_info.dwo", |c| c.1);
        let section = self.sections.entry(column).or_default();
        let start = section.len();
        section.extend_from_slice(bytes);
        let too_long = |_| Error::new(name, start as u64, "a package's section would exceed 4 GiB");
        u32::try_from(section.len()).map_err(too_long)?;
        Ok((start as u32, bytes.len() as u32))
    }
}

/// Strings of all files.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    /// Where strings of `.dwo` files are.
    known: FxHashMap<Vec<u8>, u32>,
    /// Where the strings of packages begin, by where they are in memory.
    packages: FxHashMap<(usize, usize), u32>,
}

impl Strings {
    /// A file's offsets of strings, as they are in the package.
    fn of_file<'f>(&mut self, file: &SplitFile<'f>) -> Result<Cow<'f, [u8]>, Error> {
        let name = ".debug_str_offsets.dwo";
        let old = file.str_offsets;
        // A header in front, from DWARF 5 on.
        let mut r = Reader::new(old, 0, name)?;
        let is_headed = file.version() == 5 && !old.is_empty();
        if is_headed {
            let offset_size = r.unit_length()?;
            if offset_size != 4 {
                return Err(r.error("offsets of strings of 8 bytes; 4 are possible in a package"));
            }
            r.bytes(4)?;
        }
        let from_start = r.at;
        let whole = file.packed.then(|| self.whole(file.strings));
        let shared = whole.transpose()?;
        if shared == Some(0) {
            return Ok(Cow::Borrowed(old));
        }
        let mut out = old.get(..from_start).unwrap_or_default().to_vec();
        for field in old.get(from_start..).unwrap_or_default().chunks(4) {
            let offset = number(field);
            let new = match shared {
                Some(base) => offset + u64::from(base),
                None => self.one(file.strings, offset)?.into(),
            };
            put_number(&mut out, new, field.len() as u8);
        }
        Ok(Cow::Owned(out))
    }

    /// Takes all strings of a package. Returns where they begin.
    fn whole(&mut self, strings: &[u8]) -> Result<u32, Error> {
        let key = (strings.as_ptr().addr(), strings.len());
        if let Some(at) = self.packages.get(&key) {
            return Ok(*at);
        }
        let at = self.place(strings.len())?;
        self.bytes.extend_from_slice(strings);
        self.packages.insert(key, at);
        Ok(at)
    }

    /// Takes one string of a file.
    fn one(&mut self, strings: &[u8], offset: u64) -> Result<u32, Error> {
        let string = Reader::new(strings, offset, ".debug_str.dwo")?.string()?;
        if let Some(at) = self.known.get(string) {
            return Ok(*at);
        }
        let at = self.place(string.len() + 1)?;
        self.bytes.extend_from_slice(string);
        self.bytes.push(0);
        self.known.insert(string.to_vec(), at);
        Ok(at)
    }

    /// Where so many more bytes go.
    fn place(&self, len: usize) -> Result<u32, Error> {
        let at = self.bytes.len();
        let end = u32::try_from(at + len);
        let too_long = |_| Error::new(".debug_str.dwo", at as u64, "strings of more than 4 GiB");
        end.map(|_| at as u32).map_err(too_long)
    }
}

/// An index of units. Without units it is empty.
fn index(rows: &[Row], columns: &[(u32, &str)], version: u16) -> Vec<u8> {
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

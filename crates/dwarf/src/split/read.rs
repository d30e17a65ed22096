//! Reading files of split units and packages, and what a program says of where they are.
//!
//! A package (`.dwp`) has the sections of many files one after another, and an index of units (`.debug_cu_index`,
//! `.debug_tu_index`) that says which parts belong to each:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | version: 2 (GNU, DWARF 4), or 5 in two bytes |
//! | 4, 4, 4 | columns, units, slots of the hash table |
//! | 8 each | slots: id or signature |
//! | 4 each | slots: row, from 1 on |
//! | 4 each | kind of section of each column |
//! | 4 each | rows: offsets |
//! | 4 each | rows: lengths |
//!
//! Units of one file have the same abbreviations and strings, by which files are told apart here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::SplitFile;
use crate::Error;
use crate::abbrev::Table;
use crate::forms;
use crate::names::{at, form};
use crate::read::{Reader, number, part};
use crate::sections::{Section, Sections};
use crate::unit::{Root, Unit};

/// A skeleton unit of a program: where its other half is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skeleton {
    /// What both halves have in common.
    pub id: u64,
    /// The name of the file, as the compiler wrote it.
    pub name: Vec<u8>,
    /// The folder that it is relative to.
    pub dir: Vec<u8>,
}

/// The skeletons of a program. Sections are given by name, unpacked; what cannot be read is passed over.
pub fn skeletons<'d>(by_name: impl Fn(&str) -> &'d [u8]) -> Vec<Skeleton> {
    let sections = Sections::load(|name| Some(by_name(name)));
    let (units, _) = Unit::read_all(sections.get(Section::Info), Section::Info);
    let read = |unit: &Unit| -> Result<Option<Skeleton>, Error> {
        let table = Table::read(sections.get(Section::Abbrev), unit.abbrev, unit.encoding)?;
        let root = Root::read(unit, &table, &sections)?;
        let Some((_, id)) = root.split_id.filter(|_| root.is_skeleton) else {
            return Ok(None);
        };
        let (name, dir) = names(unit, &table, &sections, &by_name)?;
        Ok(Some(Skeleton { id, name, dir }))
    };
    units
        .iter()
        .filter_map(|unit| read(unit).ok().flatten())
        .collect()
}

/// Name and folder of a skeleton's other half.
fn names<'d>(
    unit: &Unit,
    table: &Table<'_>,
    sections: &Sections<'d>,
    by_name: &impl Fn(&str) -> &'d [u8],
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let mut r = Reader::new(
        sections.get(unit.section),
        unit.root as u64,
        unit.section.name(),
    )?;
    r.end = unit.end;
    let code = r.uleb()?;
    let mut fields = BTreeMap::new();
    for spec in table.get(code).into_iter().flat_map(|d| table.specs(d)) {
        let start = r.at;
        forms::skip(&mut r, spec.form, unit.encoding)?;
        let value = part(r.data, start as u64..r.at as u64, r.section)?;
        fields.insert(spec.name, (spec.form, value));
    }
    let offsets_base = fields.get(&at::STR_OFFSETS_BASE).map_or(0, |f| number(f.1));
    let text = |name: u16| -> Result<Vec<u8>, Error> {
        let Some((f, value)) = fields.get(&name) else {
            return Ok(Vec::new());
        };
        let (section, offset) = match *f {
            form::STRING => return Ok(value.strip_suffix(&[0]).unwrap_or(value).to_vec()),
            form::LINE_STRP => (".debug_line_str", number(value)),
            form::STRP => (".debug_str", number(value)),
            form::STRX1 | form::STRX2 | form::STRX3 | form::STRX4 | form::STRX => {
                let mut index = Reader::new(value, 0, unit.section.name())?;
                let index = if *f == form::STRX {
                    index.uleb()?
                } else {
                    number(value)
                };
                let size = unit.encoding.offset_size;
                let field = index
                    .checked_mul(size.into())
                    .and_then(|o| o.checked_add(offsets_base));
                let name = ".debug_str_offsets";
                let mut r = Reader::new(by_name(name), field.unwrap_or(u64::MAX), name)?;
                (".debug_str", r.number(size)?)
            }
            _ => return Ok(Vec::new()),
        };
        Ok(Reader::new(by_name(section), offset, section)?
            .string()?
            .to_vec())
    };
    let name = text(at::DWO_NAME)?;
    let name = if name.is_empty() {
        text(at::GNU_DWO_NAME)?
    } else {
        name
    };
    Ok((name, text(at::COMP_DIR)?))
}

/// Reads a `.dwo` or `.dwp` file: its sections, unpacked, by name, in the order of the file.
///
/// # Errors
///
/// If a package's index leads out of its sections.
pub fn read<'d>(sections: &'d [(String, Cow<'d, [u8]>)]) -> Result<Vec<SplitFile<'d>>, Error> {
    let of = |name: &str| {
        sections
            .iter()
            .find(|s| s.0 == name)
            .map_or(&[][..], |s| &s.1)
    };
    let [cu_index, tu_index] = [".debug_cu_index", ".debug_tu_index"].map(of);
    if !cu_index.is_empty() {
        return packed(of, [cu_index, tu_index]);
    }
    // Type units may be in sections of their own, several of the same name.
    let all = |name: &str| -> Cow<'d, [u8]> {
        let mut found = sections.iter().filter(|s| s.0 == name);
        match (found.next(), found.next()) {
            (Some(only), None) => Cow::Borrowed(&only.1[..]),
            (None, _) => Cow::Borrowed(&[]),
            _ => {
                let found = sections.iter().filter(|s| s.0 == name);
                Cow::Owned(found.flat_map(|s| s.1.iter().copied()).collect())
            }
        }
    };
    Ok(vec![SplitFile {
        info: all(".debug_info.dwo"),
        types: all(".debug_types.dwo"),
        abbrev: of(".debug_abbrev.dwo"),
        line: of(".debug_line.dwo"),
        loc: of(".debug_loc.dwo"),
        loclists: of(".debug_loclists.dwo"),
        rnglists: of(".debug_rnglists.dwo"),
        macros: of(".debug_macro.dwo"),
        macinfo: of(".debug_macinfo.dwo"),
        str_offsets: of(".debug_str_offsets.dwo"),
        strings: of(".debug_str.dwo"),
        packed: false,
    }])
}

/// Columns of a package's index, and the sections that they are of.
pub(super) mod column {
    pub const INFO: u32 = 1;
    pub const TYPES: u32 = 2;
    pub const ABBREV: u32 = 3;
    pub const LINE: u32 = 4;
    /// `.debug_loc.dwo`, or `.debug_loclists.dwo` in version 5.
    pub const LOCATIONS: u32 = 5;
    pub const STR_OFFSETS: u32 = 6;
    /// Of version 2.
    pub const MACINFO: u32 = 7;
    /// Of version 2.
    pub const OLD_MACRO: u32 = 8;
    /// Of version 5.
    pub const MACRO: u32 = 7;
    /// Of version 5.
    pub const RNGLISTS: u32 = 8;
}

/// Offset and length by column.
type Row = BTreeMap<u32, (u64, u64)>;

/// Ids of the units in a package; none if the file is not one.
pub fn ids(sections: &[(String, Cow<'_, [u8]>)]) -> Vec<u64> {
    let name = ".debug_cu_index";
    let read = |data: &[u8]| -> Result<Vec<u64>, Error> {
        let mut r = Reader::new(data, 12, name)?;
        let slots = r.number(4)?;
        let ids = r.bytes(slots.saturating_mul(8))?;
        let rows = r.bytes(slots.saturating_mul(4))?;
        let slots = ids.chunks_exact(8).zip(rows.chunks_exact(4));
        // A slot without a row is free.
        let used = slots.filter(|(_, row)| number(row) != 0);
        Ok(used.map(|(id, _)| number(id)).collect())
    };
    let index = sections.iter().find(|s| s.0 == name);
    index.map_or(Vec::new(), |s| read(&s.1).unwrap_or_default())
}

/// Rows of an index, and its version.
fn rows(data: &[u8], name: &'static str) -> Result<(u32, Vec<Row>), Error> {
    let mut r = Reader::new(data, 0, name)?;
    if r.is_empty() {
        return Ok((0, Vec::new()));
    }
    let version = r.number(4)?;
    let version = match version & 0xffff {
        5 => 5,
        2 if version == 2 => 2,
        _ => {
            return Err(r.error(format!(
                "version {version:#x} of a package's index; 2 and 5 are known"
            )));
        }
    };
    let (columns, units, slots) = (r.number(4)?, r.number(4)?, r.number(4)?);
    r.bytes(slots.saturating_mul(12))?;
    let column = |r: &mut Reader<'_>| r.number(4).map(|c| c as u32);
    let kinds: Vec<u32> = (0..columns)
        .map(|_| column(&mut r))
        .collect::<Result<_, _>>()?;
    let mut table = || -> Result<Vec<u64>, Error> {
        let bytes = r.bytes(units.saturating_mul(columns).saturating_mul(4))?;
        Ok(bytes.chunks_exact(4).map(number).collect())
    };
    let (offsets, lengths) = (table()?, table()?);
    let per_row = kinds.len().max(1);
    let all = offsets.chunks(per_row).zip(lengths.chunks(per_row));
    let row = |(offsets, lengths): (&[u64], &[u64])| -> Row {
        let cells = kinds.iter().zip(offsets).zip(lengths);
        cells
            .map(|((kind, offset), len)| (*kind, (*offset, *len)))
            .collect()
    };
    Ok((version, all.map(row).collect()))
}

/// What a package has of each file.
fn packed<'d>(
    of: impl Fn(&str) -> &'d [u8],
    [cu_index, tu_index]: [&'d [u8]; 2],
) -> Result<Vec<SplitFile<'d>>, Error> {
    let (version, units) = rows(cu_index, ".debug_cu_index")?;
    let (_, types) = rows(tu_index, ".debug_tu_index")?;
    let mut files: BTreeMap<((u64, u64), (u64, u64)), Vec<Row>> = BTreeMap::new();
    for row in units.into_iter().chain(types) {
        let cell = |c: u32| row.get(&c).copied().unwrap_or_default();
        let key = (cell(column::ABBREV), cell(column::STR_OFFSETS));
        files.entry(key).or_default().push(row);
    }
    let read = |mut rows: Vec<Row>| -> Result<SplitFile<'d>, Error> {
        let slice = |name: &'static str, c: u32, row: &Row| -> Result<&'d [u8], Error> {
            let (offset, len) = row.get(&c).copied().unwrap_or_default();
            part(of(name), offset..offset.saturating_add(len), name)
        };
        let all = |name: &'static str, c: u32, rows: &[Row]| -> Result<Cow<'d, [u8]>, Error> {
            let slices: Vec<&[u8]> = rows
                .iter()
                .map(|row| slice(name, c, row))
                .collect::<Result<_, _>>()?;
            let mut some = slices.iter().filter(|s| !s.is_empty());
            Ok(match (some.next(), some.next()) {
                (None, _) => Cow::Borrowed(&[]),
                (Some(only), None) => Cow::Borrowed(only),
                _ => Cow::Owned(slices.concat()),
            })
        };
        rows.sort_by_key(|row| {
            (
                row.get(&column::INFO).copied(),
                row.get(&column::TYPES).copied(),
            )
        });
        // What the units share: rows of type units may lack it.
        let shared = |name: &'static str, c: u32| -> Result<&'d [u8], Error> {
            let cells = rows
                .iter()
                .filter_map(|row| row.get(&c).filter(|cell| cell.1 > 0));
            let cell = cells.min().copied().unwrap_or_default();
            slice(name, c, &Row::from([(c, cell)]))
        };
        let (old, new) = (version == 2, version == 5);
        let only = |is: bool, name: &'static str, c: u32| {
            let found = is.then(|| shared(name, c));
            found.unwrap_or(Ok(&[]))
        };
        let macros = if old {
            column::OLD_MACRO
        } else {
            column::MACRO
        };
        Ok(SplitFile {
            info: all(".debug_info.dwo", column::INFO, &rows)?,
            types: all(".debug_types.dwo", column::TYPES, &rows)?,
            abbrev: shared(".debug_abbrev.dwo", column::ABBREV)?,
            line: shared(".debug_line.dwo", column::LINE)?,
            loc: only(old, ".debug_loc.dwo", column::LOCATIONS)?,
            loclists: only(new, ".debug_loclists.dwo", column::LOCATIONS)?,
            rnglists: only(new, ".debug_rnglists.dwo", column::RNGLISTS)?,
            macros: shared(".debug_macro.dwo", macros)?,
            macinfo: only(old, ".debug_macinfo.dwo", column::MACINFO)?,
            str_offsets: shared(".debug_str_offsets.dwo", column::STR_OFFSETS)?,
            strings: of(".debug_str.dwo"),
            packed: true,
        })
    };
    files.into_values().map(read).collect()
}

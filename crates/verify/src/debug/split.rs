//! Split DWARF: units whose entries are in files of their own (`.dwo`) or in a package (`.dwp`).
//!
//! The input has a skeleton of each unit, which an eight-byte id connects with its other half in one of the files. The
//! output's skeletons have ids of their own, and their other halves are in one package. What is shown:
//!
//! * Each skeleton whose id changed has an other half in the package under its new id, and had one in the files under
//!   its old id; both are compared like any other unit, with the addresses and bases that their skeletons give them.
//!   Strings are compared by what they are, line tables (of file names) and macros by their bytes.
//! * A skeleton whose id did not change did not change at all, and describes old code.
//! * Every other unit in the package is as it was: type units are compared like the others, what is left by its bytes.
//! * The package's index finds each unit under its id, and no type unit of the files is missing.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gimli::{
    Dwarf, DwarfFileType, DwarfPackage, EndianSlice, IndexSectionId, LittleEndian, Section,
    SectionId, UnitHeader, UnitIndex, UnitType,
};

use super::frame::{Pair, Units, entries};
use super::{Both, DebugReport, Slice, contributions};

/// The sections of a file with debug information, unpacked: names and contents in the order of the file.
pub type FileSections<'d> = Vec<(Vec<u8>, Cow<'d, [u8]>)>;

/// A unit in a file of split units.
pub(super) struct Half<'d> {
    dwarf: Arc<Dwarf<Slice<'d>>>,
    header: UnitHeader<Slice<'d>>,
    /// `.debug_loc`, `.debug_loclists` and `.debug_rnglists`, as far as they are its.
    lists: [&'d [u8]; 3],
}

/// Units of files, by id and by signature.
#[derive(Default)]
pub(crate) struct Halves<'d> {
    units: BTreeMap<u64, Half<'d>>,
    types: BTreeMap<u64, Half<'d>>,
}

/// Contents of a section; type units may be in several of one name.
fn contents<'d>(file: &'d FileSections<'d>, name: &str) -> Cow<'d, [u8]> {
    let mut found = file.iter().filter(|s| s.0 == name.as_bytes());
    match (found.next(), found.next()) {
        (Some(only), None) => Cow::Borrowed(&only.1[..]),
        (None, _) => Cow::Borrowed(&[]),
        _ => {
            let found = file.iter().filter(|s| s.0 == name.as_bytes());
            Cow::Owned(found.flat_map(|s| s.1.iter().copied()).collect())
        }
    }
}

/// The same sections with each name once: type units may be in several sections of one name.
pub fn joined<'d>(file: &'d FileSections<'d>) -> FileSections<'d> {
    let mut names: Vec<&Vec<u8>> = file.iter().map(|s| &s.0).collect();
    names.sort_unstable();
    names.dedup();
    let all = names.into_iter().filter_map(|name| {
        let text = std::str::from_utf8(name).ok()?;
        Some((name.clone(), contents(file, text)))
    });
    all.collect()
}

fn section<'d>(file: &'d FileSections<'d>, name: &str) -> &'d [u8] {
    let found = file.iter().find(|s| s.0 == name.as_bytes());
    found.map_or(&[][..], |s| &s.1)
}

fn slice(data: &[u8]) -> Slice<'_> {
    EndianSlice::new(data, LittleEndian)
}

/// The id of a unit: in its header, or an attribute of its root.
pub(super) fn id_of(dwarf: &Dwarf<Slice<'_>>, header: UnitHeader<Slice<'_>>) -> Option<u64> {
    match header.type_() {
        UnitType::Skeleton(id) | UnitType::SplitCompilation(id) => Some(id.0),
        UnitType::Compilation => {
            let abbreviations = dwarf.abbreviations(&header).ok()?;
            let mut entries = header.entries(&abbreviations);
            let root = entries.next_dfs().ok()??;
            match root.attr_value(gimli::constants::DW_AT_GNU_dwo_id)? {
                gimli::AttributeValue::DwoId(id) => Some(id.0),
                _ => None,
            }
        }
        _ => None,
    }
}

impl<'d> Halves<'d> {
    /// Reads all units of files. Of those with the same id the first counts, as for debuggers, unless it is an error.
    pub fn read(
        files: &'d [FileSections<'d>],
        parent: &Dwarf<Slice<'d>>,
        once: bool,
    ) -> Result<Self, String> {
        let mut out = Halves::default();
        for file in files {
            let is_package = !section(file, ".debug_cu_index").is_empty();
            let read = if is_package {
                out.package(file, parent, once)
            } else {
                out.file(file, parent, once)
            };
            match read {
                Err(what) if once => return Err(what),
                // What cannot be read of the input's files counts as missing.
                _ => {}
            }
        }
        Ok(out)
    }

    /// Takes a unit. Returns whether it is a type unit, and its number.
    fn add(&mut self, half: Half<'d>, once: bool) -> Result<Option<(bool, u64)>, String> {
        let (list, key) = match half.header.type_() {
            UnitType::Type { type_signature, .. } | UnitType::SplitType { type_signature, .. } => {
                (&mut self.types, (true, type_signature.0))
            }
            _ => match id_of(&half.dwarf, half.header) {
                Some(id) => (&mut self.units, (false, id)),
                None => return Ok(None),
            },
        };
        if once && list.contains_key(&key.1) {
            return Err(format!(
                "two units of the package have the id {:#018x}",
                key.1
            ));
        }
        list.entry(key.1).or_insert(half);
        Ok(Some(key))
    }

    /// Takes all units of a file, or of a row of a package. Returns what [`Self::add`] says of them.
    fn all_units(
        &mut self,
        dwarf: Dwarf<Slice<'d>>,
        lists: [&'d [u8]; 3],
        once: bool,
    ) -> Result<Vec<Option<(bool, u64)>>, String> {
        let dwarf = Arc::new(dwarf);
        let mut headers = Vec::new();
        let mut units = dwarf.units();
        while let Some(header) = units.next().map_err(|e| e.to_string())? {
            headers.push(header);
        }
        let mut types = dwarf.type_units();
        while let Some(header) = types.next().map_err(|e| e.to_string())? {
            headers.push(header);
        }
        let half = |header| Half {
            dwarf: Arc::clone(&dwarf),
            header,
            lists,
        };
        headers
            .into_iter()
            .map(|header| self.add(half(header), once))
            .collect()
    }

    /// A `.dwo` file.
    fn file(
        &mut self,
        file: &'d FileSections<'d>,
        parent: &Dwarf<Slice<'d>>,
        once: bool,
    ) -> Result<(), String> {
        let load = |id: SectionId| -> Result<Slice<'d>, std::convert::Infallible> {
            Ok(slice(
                id.dwo_name().map_or(&[][..], |name| section(file, name)),
            ))
        };
        let mut dwarf = match Dwarf::load(load) {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        };
        dwarf.make_dwo(parent);
        let lists = LISTS.map(|name| section(file, name));
        self.all_units(dwarf, lists, once).map(drop)
    }

    fn package(
        &mut self,
        file: &'d FileSections<'d>,
        parent: &Dwarf<Slice<'d>>,
        once: bool,
    ) -> Result<(), String> {
        let load = |id: SectionId| -> Result<Slice<'d>, gimli::Error> {
            Ok(slice(
                id.dwo_name().map_or(&[][..], |name| section(file, name)),
            ))
        };
        let package = DwarfPackage::load(load, slice(&[])).map_err(|e| e.to_string())?;
        let mut contributions: BTreeMap<&str, BTreeSet<(u32, u32)>> = BTreeMap::new();
        for (is_types, index) in [(false, &package.cu_index), (true, &package.tu_index)] {
            let name = [".debug_cu_index", ".debug_tu_index"][usize::from(is_types)];
            if once && !slots_are_whole(section(file, name), index.unit_count()) {
                return Err(format!("the slots of {name} are not one for each row"));
            }
            for row in 1..=index.unit_count() {
                let parts = index.sections(row).map_err(|e| e.to_string())?;
                for part in parts.clone() {
                    let of = contributions.entry(part.section.dwo_name()).or_default();
                    of.insert((part.offset, part.size));
                }
                let dwarf = package.sections(parts, parent).map_err(|e| e.to_string())?;
                let added = self.all_units(dwarf, lists(file, index, row)?, once)?;
                let found = match added[..] {
                    [Some((is_type, id))] => is_type == is_types && index.find(id) == Some(row),
                    _ => false,
                };
                if once && !found {
                    return Err(format!("row {row} of {name} is not that of one unit"));
                }
            }
        }
        match contributions.iter().find(|(_, of)| overlap(of)) {
            Some((name, _)) if once => Err(format!("two units have the same bytes of {name}")),
            _ => Ok(()),
        }
    }

    /// Whether a skeleton's other half is there and can be read to its end, and a package may have it.
    pub fn is_readable(&self, both: &Both<'d>, id: Option<u64>) -> bool {
        let Some(half) = id.and_then(|id| self.units.get(&id)) else {
            return false;
        };
        let of_package = both
            .halves
            .as_ref()
            .and_then(|h| h[1].units.values().next());
        let packs = of_package.is_none_or(|other| other.header.version() == half.header.version());
        packs && !super::stale::half_cannot_be_updated(&half.dwarf, half.header)
    }
}

/// Whether each row of an index is in one slot of its hash table, and the other slots are empty. (That a row is found
/// by its id is for the reader to say.)
fn slots_are_whole(index: &[u8], rows: u32) -> bool {
    let word = |at: usize| -> Option<u32> {
        let bytes = index.get(at..)?.get(..4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let Some(slots) = word(12).map(|slots| slots as usize) else {
        return index.is_empty() && rows == 0;
    };
    let mut found = BTreeSet::new();
    for slot in 0..slots {
        let id = (word(16 + 8 * slot), word(20 + 8 * slot));
        match word(16 + 8 * slots + 4 * slot) {
            Some(0) if id == (Some(0), Some(0)) => {}
            Some(row) if row > 0 && row <= rows && found.insert(row) => {}
            _ => return false,
        }
    }
    found.len() == rows as usize
}

/// Whether different contributions to a section have bytes in common. (Units may have the same one.)
fn overlap(contributions: &BTreeSet<(u32, u32)>) -> bool {
    let mut end = 0;
    let mut used = contributions.iter().filter(|c| c.1 > 0);
    used.any(|&(offset, size)| {
        let before = std::mem::replace(&mut end, u64::from(offset) + u64::from(size));
        u64::from(offset) < before
    })
}

/// Sections with lists.
const LISTS: [&str; 3] = [
    ".debug_loc.dwo",
    ".debug_loclists.dwo",
    ".debug_rnglists.dwo",
];

/// A row's parts of the sections with lists.
fn lists<'d>(
    file: &'d FileSections<'d>,
    index: &UnitIndex<Slice<'d>>,
    row: u32,
) -> Result<[&'d [u8]; 3], String> {
    let mut out = [&[][..]; 3];
    for part in index.sections(row).map_err(|e| e.to_string())? {
        let which = match part.section {
            IndexSectionId::DebugLoc => 0,
            IndexSectionId::DebugLocLists => 1,
            IndexSectionId::DebugRngLists => 2,
            _ => continue,
        };
        let name = LISTS[which];
        let bytes = section(file, name).get(part.offset as usize..);
        let bytes = bytes.and_then(|rest| rest.get(..part.size as usize));
        out[which] = bytes.ok_or_else(|| format!("row {row} of an index leads out of {name}"))?;
    }
    Ok(out)
}

/// Compares all other halves.
pub(super) fn compare<'d>(both: &Both<'d>, pairs: &[Pair<'d>]) -> DebugReport {
    let mut report = DebugReport::default();
    let Some([old, new]) = &both.halves else {
        return report;
    };
    // Skeletons that changed.
    let skeletons: Vec<(Pair<'d>, u64, u64)> = pairs
        .iter()
        .filter_map(|pair| Some((*pair, id_of(&both.old, pair.0)?, id_of(&both.new, pair.1)?)))
        .filter(|(_, a, b)| a != b)
        .collect();
    let updated: BTreeSet<u64> = skeletons.iter().map(|s| s.2).collect();
    for (a, b) in pairs {
        let (old, new) = (id_of(&both.old, *a), id_of(&both.new, *b));
        if old.is_some() && old == new && !is_unchanged(both, *a) {
            let what = "a skeleton unit changed, and goes on naming a unit that did not";
            report.fail(what.to_owned());
        }
    }
    if updated.len() != skeletons.len() {
        report.fail("two skeleton units have the same id".to_owned());
    }
    let mut parts: Vec<DebugReport> = postlink_parallel::map(&skeletons, |(pair, a, b)| {
        let mut part = DebugReport::default();
        match (old.units.get(a), new.units.get(b)) {
            (Some(old), Some(new)) => half(both, Some(*pair), old, new),
            (None, _) => {
                part.fail(format!(
                    "the id {a:#018x} changed of a unit whose entries were not found"
                ));
                part
            }
            (_, None) => {
                part.fail(format!(
                    "the package has no unit with the id {b:#018x}, which a skeleton names"
                ));
                part
            }
        }
    });
    for (signature, now) in &new.types {
        parts.push(match old.types.get(signature) {
            Some(before) => half(both, None, before, now),
            None => one_failure(format!(
                "the package has a type unit {signature:#018x}, which no file has"
            )),
        });
    }
    let version = new.units.values().next().map(|half| half.header.version());
    for (signature, before) in &old.types {
        if Some(before.header.version()) == version && !new.types.contains_key(signature) {
            parts.push(one_failure(format!(
                "the package lacks the type unit {signature:#018x}"
            )));
        }
    }
    for (id, now) in new.units.iter().filter(|(id, _)| !updated.contains(id)) {
        let same = old
            .units
            .get(id)
            .is_some_and(|before| same_bytes(before, now));
        if !same {
            parts.push(one_failure(format!(
                "the package has a unit with the id {id:#018x}, which no skeleton that was updated names, and which no file has like this"
            )));
        }
    }
    parts.into_iter().for_each(|part| report.add(part));
    report
}

/// Whether a unit has the bytes that it had.
fn is_unchanged(both: &Both<'_>, header: UnitHeader<Slice<'_>>) -> bool {
    let Some((section, start)) = super::frame::place(&header) else {
        return false;
    };
    let [old, new] = both.units[usize::from(section == super::TYPES)];
    let range = start as usize..start as usize + header.length_including_self();
    old.get(range.clone()) == new.get(range)
}

fn one_failure(what: String) -> DebugReport {
    let mut out = DebugReport::default();
    out.fail(what);
    out
}

/// Whether two units, their abbreviations, lists, strings, line tables and macros have the same bytes.
fn same_bytes(a: &Half<'_>, b: &Half<'_>) -> bool {
    fn all<'d>(half: &Half<'d>) -> (&'d [u8], Option<&'d [u8]>, [&'d [u8]; 3]) {
        let entries = gimli::UnitOffset(half.header.size_of_header());
        let entries = half.header.range_from(entries..);
        (
            half.dwarf.debug_abbrev.reader().slice(),
            entries.map(|r| r.slice()).ok(),
            half.lists,
        )
    }
    strings(a) == strings(b) && same_tables(a, b) && all(a) == all(b)
}

/// The header of a unit's table of strings, and those that it can name, by index.
fn strings<'d>(half: &Half<'d>) -> Option<(&'d [u8], Vec<Slice<'d>>)> {
    let offsets = half.dwarf.debug_str_offsets.reader().slice();
    let header = if half.header.version() == 5 { 8 } else { 0 };
    let (header, fields) = offsets.split_at(header.min(offsets.len()));
    let string = |field: &[u8]| -> Option<Slice<'d>> {
        let offset = u32::from_le_bytes(field.try_into().ok()?) as usize;
        half.dwarf
            .debug_str
            .get_str(gimli::DebugStrOffset(offset))
            .ok()
    };
    let strings = fields.chunks(4).map(string).collect::<Option<_>>()?;
    Some((header, strings))
}

/// Whether two units have the same line tables and macros.
fn same_tables(a: &Half<'_>, b: &Half<'_>) -> bool {
    fn all<'d>(half: &Half<'d>) -> [&'d [u8]; 3] {
        let d = &half.dwarf;
        [
            d.debug_line.reader().slice(),
            d.debug_macro.reader().slice(),
            d.debug_macinfo.reader().slice(),
        ]
    }
    all(a) == all(b)
}

/// Compares two units; with those of their skeletons, if they have any.
fn half<'d>(
    both: &Both<'d>,
    skeletons: Option<Pair<'d>>,
    a: &Half<'d>,
    b: &Half<'d>,
) -> DebugReport {
    let mut report = DebugReport::default();
    // Strings, lists and abbreviations are about as much as entries.
    both.maps.read(4 * a.header.length_including_self());
    let of_types = |half: &Half<'_>| {
        matches!(
            half.header.type_(),
            UnitType::Type { .. } | UnitType::SplitType { .. }
        )
    };
    let same_header = (a.header.unit_length(), a.header.encoding(), of_types(a))
        == (b.header.unit_length(), b.header.encoding(), of_types(b));
    if !same_header || a.dwarf.file_type != DwarfFileType::Dwo {
        report.fail("the header of a split unit changed".to_owned());
        return report;
    }
    let (strings, of_new) = (strings(a), strings(b));
    let same_strings = strings == of_new;
    if !same_strings || !same_tables(a, b) {
        report.fail("strings, file names or macros of a split unit changed".to_owned());
    }
    for i in [1, 2] {
        if let Err(what) = contributions::compare(LISTS[i], a.lists[i], b.lists[i]) {
            report.fail(what);
        }
    }
    let read = || -> gimli::Result<_> {
        let (mut old, mut new) = (a.dwarf.unit(a.header)?, b.dwarf.unit(b.header)?);
        if let Some((x, y)) = skeletons {
            old.copy_relocated_attributes(&both.old.unit(x)?);
            new.copy_relocated_attributes(&both.new.unit(y)?);
        }
        Ok((old, new))
    };
    let (old, new) = match read() {
        Ok(units) => units,
        Err(e) => {
            report.fail(format!("a split unit cannot be read: {e}"));
            return report;
        }
    };
    let halves = Both {
        old: Arc::clone(&a.dwarf),
        new: Arc::clone(&b.dwarf),
        map: both.map,
        new_locations: [b.lists[0], b.lists[1]],
        units: [[&[]; 2]; 2],
        old_bytes_stay: false,
        // The line table has the names of files alone.
        programs: vec![(0, 0)],
        halves: None,
        is_split: true,
        same_strings: same_strings && strings.is_some(),
        maps: both.maps,
    };
    let mut units = Units {
        both: &halves,
        old: &old,
        new: &new,
        report,
        start: 0,
        near: both.map.cursor(),
        image: Vec::new(),
        lists: Default::default(),
    };
    if let Err(e) = entries(&mut units) {
        units.report.fail(format!("a split unit: {e}"));
    }
    units.report
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A contribution that was longer than its lists went unseen.
    #[test]
    fn contributions_that_reach_into_others_are_found() {
        let overlaps = |of: &[(u32, u32)]| overlap(&of.iter().copied().collect());
        assert!(!overlaps(&[(0, 4), (4, 8), (12, 1)]));
        // Units that share one, and one of no bytes.
        assert!(!overlaps(&[(0, 4), (0, 4), (4, 8), (2, 0)]));
        assert!(overlaps(&[(0, 5), (4, 8)]));
        assert!(overlaps(&[(0, u32::MAX), (u32::MAX - 1, 8)]));
    }
}

//! The frame of debug information: units, entries, and attributes that must not change.

use std::ops::Range;

use gimli::constants as c;
use gimli::{
    Attribute, AttributeValue, DebuggingInformationEntry, DwAt, Unit, UnitHeader, UnitOffset,
    UnitType,
};

use super::map::Cursor;
use super::plain::Plain;
use super::{Both, DebugReport, INFO, Slice, TYPES, places, scopes};

/// An attribute of the rewriter's own, which takes up bytes.
const PADDING: DwAt = DwAt(0x3d51);

/// Section, and where a unit begins in it.
pub(super) type Place = (&'static str, u64);

/// Units by index in each file.
pub(super) type Pair<'d> = (UnitHeader<Slice<'d>>, UnitHeader<Slice<'d>>);

/// Both files' units, in pairs, and where units are whose headers cannot be read: they must not change.
pub(super) fn units<'d>(both: &Both<'d>) -> Result<(Vec<Pair<'d>>, Vec<Place>), String> {
    let (mut out, mut unreadable) = (Vec::new(), Vec::new());
    let [[old, new], [old_types, new_types]] = both.units;
    if old.len() != new.len() || old_types.len() != new_types.len() {
        return Err(format!(
            ".debug_info and .debug_types have {:#x} and {:#x} bytes and had {:#x} and {:#x}",
            new.len(),
            new_types.len(),
            old.len(),
            old_types.len()
        ));
    }
    let mut at = 0;
    while at < old.len() {
        let end = end_of_unit(old, at).unwrap_or(old.len());
        let header = |dwarf: &gimli::Dwarf<Slice<'d>>| {
            dwarf
                .debug_info
                .header_from_offset(gimli::DebugInfoOffset(at))
        };
        match (header(&both.old), header(&both.new)) {
            (Ok(a), Ok(b)) => out.push((a, b)),
            (Err(_), _) if both.old_bytes_stay && old[at..end] == new[at..end] => {
                unreadable.push((INFO, at as u64));
            }
            (Err(_), _) => {
                return Err(format!("unit at {at:#x}: it cannot be read, and changed"));
            }
            (_, Err(e)) => return Err(format!("unit at {at:#x}: it cannot be read: {e}")),
        }
        at = end;
    }
    let (mut old, mut new) = (both.old.type_units(), both.new.type_units());
    let mut at = 0;
    loop {
        match (old.next(), new.next()) {
            (Ok(None), Ok(None)) => return Ok((out, unreadable)),
            (Ok(Some(a)), Ok(Some(b))) => {
                at += a.length_including_self();
                out.push((a, b));
            }
            // Nothing after it can be read.
            (Err(_), _) if both.old_bytes_stay && old_types[at..] == new_types[at..] => {
                unreadable.push((TYPES, at as u64));
                return Ok((out, unreadable));
            }
            _ => {
                return Err(format!(
                    "type unit at {at:#x}: it cannot be read, or is in one file alone"
                ));
            }
        }
    }
}

/// One past a unit's last byte, by its length.
fn end_of_unit(section: &[u8], at: usize) -> Option<usize> {
    let word = |at: usize, len: usize| -> Option<u64> {
        let bytes = section.get(at..)?.get(..len)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |n, byte| n << 8 | u64::from(*byte)),
        )
    };
    let (start, len) = match word(at, 4)? {
        0xffff_ffff => (at + 12, word(at + 4, 8)?),
        0xffff_fff0.. => return None,
        len => (at + 4, len),
    };
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    Some(end).filter(|end| *end <= section.len())
}

/// Where a unit is.
pub(super) fn place(header: &UnitHeader<Slice<'_>>) -> Option<Place> {
    match (header.debug_info_offset(), header.debug_types_offset()) {
        (Some(at), _) => Some((INFO, at.0 as u64)),
        (None, at) => Some((TYPES, at?.0 as u64)),
    }
}

/// Whether a unit may stay as it was: nothing of it and of what it leads to changed, and it cannot be updated.
fn may_be_stale<'d>(both: &Both<'d>, (a, _): Pair<'d>) -> bool {
    let Some((section, start)) = place(&a) else {
        return false;
    };
    let [old, new] = both.units[usize::from(section == TYPES)];
    let start = start as usize;
    let range = start..start + a.length_including_self();
    both.old_bytes_stay
        && old.get(range.clone()) == new.get(range)
        && super::stale::cannot_be_updated(both, a)
}

/// A unit of each file, with what a comparison finds.
pub(super) struct Units<'a, 'd> {
    pub both: &'a Both<'d>,
    pub old: &'a Unit<Slice<'d>>,
    pub new: &'a Unit<Slice<'d>>,
    pub report: DebugReport,
    /// Where the unit begins, for messages.
    pub start: u64,
    /// The map, for addresses that are near to each other, and memory for an image, which anything may be in.
    pub near: Cursor<'a>,
    pub image: Vec<Range<u64>>,
    /// Memory for the location lists in hand.
    pub lists: [Vec<places::Place<'d>>; 2],
}

/// Entries of both files.
pub(super) struct Entries<'a, 'd> {
    pub old: &'a DebuggingInformationEntry<Slice<'d>>,
    pub new: &'a DebuggingInformationEntry<Slice<'d>>,
    pub is_root: bool,
    /// If both have the same bytes, with the same meaning: which attributes may say something else all the same.
    pub moving: Option<&'a [bool]>,
}

impl Units<'_, '_> {
    /// Notes a failure at an entry.
    pub fn fail(&mut self, entry: &Entries<'_, '_>, what: String) {
        let at = self.start + entry.old.offset().0 as u64;
        self.report
            .fail(format!("entry at {at:#x} ({}): {what}", entry.old.tag()));
    }
}

/// Compares a unit.
pub(super) fn unit<'d>(both: &Both<'d>, pair: Pair<'d>) -> DebugReport {
    let report = readable_unit(both, pair);
    if report.failed == 0 || !may_be_stale(both, pair) {
        return report;
    }
    DebugReport {
        stale: place(&pair.0).into_iter().collect(),
        ..DebugReport::default()
    }
}

fn readable_unit<'d>(both: &Both<'d>, (a, b): Pair<'d>) -> DebugReport {
    let start = match a.debug_info_offset() {
        Some(offset) => offset.0 as u64,
        None => 0,
    };
    let mut failed = DebugReport::default();
    if !same_header(&a, &b) {
        failed.fail(format!("unit at {start:#x}: its header changed"));
        return failed;
    }
    let (old, new) = match (both.old.unit(a), both.new.unit(b)) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(e), _) | (_, Err(e)) => {
            failed.fail(format!("unit at {start:#x}: {e}"));
            return failed;
        }
    };
    let mut units = Units {
        both,
        old: &old,
        new: &new,
        report: failed,
        start,
        near: both.map.cursor(),
        image: Vec::new(),
        lists: Default::default(),
    };
    if let Err(e) = entries(&mut units) {
        units.report.fail(format!("unit at {start:#x}: {e}"));
    }
    units.report
}

fn same_header(a: &UnitHeader<Slice<'_>>, b: &UnitHeader<Slice<'_>>) -> bool {
    let kind = |h: &UnitHeader<Slice<'_>>| match h.type_() {
        UnitType::Type {
            type_signature,
            type_offset,
        } => (1, type_signature.0, type_offset.0),
        // Its number is compared with that of its other half.
        UnitType::Skeleton(_) => (2, 0, 0),
        _ => (0, 0, 0),
    };
    (a.offset(), a.unit_length(), a.encoding(), kind(a))
        == (b.offset(), b.unit_length(), b.encoding(), kind(b))
}

/// A unit's entries as they are written.
fn entry_bytes<'d>(unit: &Unit<Slice<'d>>) -> gimli::Result<&'d [u8]> {
    let first = unit.header.root_offset();
    Ok(unit.header.range_from(first..)?.slice())
}

pub(super) fn entries(units: &mut Units<'_, '_>) -> gimli::Result<()> {
    let (of_old, of_new) = (units.old, units.new);
    let first = of_old.header.root_offset();
    let bytes = [entry_bytes(of_old)?, entry_bytes(of_new)?];
    let tables = [&*of_old.abbreviations, &*of_new.abbreviations];
    let same_strings = units.both.same_strings;
    let mut plain = Plain::new(bytes, tables, of_old.encoding(), same_strings);
    let mut old = DebuggingInformationEntry::null();
    let mut new = DebuggingInformationEntry::null();
    let (mut at, mut depth, mut is_root) = (0, 0, true);
    while at < bytes[0].len() {
        if !is_root {
            let passed = plain.pass(at, &mut depth);
            at = passed.at;
            units.report.entries += passed.entries;
            if at >= bytes[0].len() {
                break;
            }
        }
        let offset = Some(UnitOffset(first.0 + at));
        let mut a = of_old.entries_raw(offset)?;
        let is_there = a.read_entry(&mut old)?;
        let end = a.next_offset();
        let moving = plain.same(at, end.0 - first.0).filter(|_| is_there);
        // What has the same bytes and the same meaning need not be read twice.
        let (other, are_there, next) = match moving {
            Some(_) => (&old, (true, true), (end, end)),
            None => {
                let mut b = of_new.entries_raw(offset)?;
                let is_in_new = b.read_entry(&mut new)?;
                (&new, (is_there, is_in_new), (end, b.next_offset()))
            }
        };
        let entry = Entries {
            old: &old,
            new: other,
            is_root,
            moving,
        };
        match are_there {
            (true, true) => {
                units.report.entries += 1;
                let same = (old.tag(), old.has_children()) == (other.tag(), other.has_children());
                if !same {
                    units.fail(&entry, format!("its tag is {} now", other.tag()));
                    return Ok(());
                }
                attributes(units, &entry)?;
                scopes::compare(units, &entry)?;
                is_root = false;
                depth += a.next_depth();
            }
            (false, false) => depth -= 1,
            _ => {
                units.fail(&entry, "it is in one file alone".to_owned());
                return Ok(());
            }
        }
        if next.0 != next.1 {
            let what = format!("it ends at {:#x} and ended at {:#x}", next.1.0, next.0.0);
            units.fail(&entry, what);
            return Ok(());
        }
        at = next.0.0 - first.0;
    }
    Ok(())
}

/// Whether an attribute says what intervals a scope has.
fn is_of_scope(name: DwAt) -> bool {
    matches!(
        name,
        c::DW_AT_low_pc | c::DW_AT_high_pc | c::DW_AT_ranges | c::DW_AT_entry_pc
    )
}

/// Compares all attributes but those of the scope.
fn attributes<'d>(units: &mut Units<'_, 'd>, entry: &Entries<'_, 'd>) -> gimli::Result<()> {
    if let Some(moving) = entry.moving {
        let all = entry.old.attrs().iter().zip(moving);
        for (a, _) in all.filter(|(_, moving)| **moving) {
            let is_alone = a.name() == c::DW_AT_low_pc && is_single(entry.old);
            if is_alone || !is_of_scope(a.name()) {
                attribute(units, entry, a, a)?;
            }
        }
        return Ok(());
    }
    let converted = !entry.old.has_attr(c::DW_AT_ranges) && entry.new.has_attr(c::DW_AT_ranges);
    let single = is_single(entry.old);
    let is_other = |a: &&Attribute<Slice<'d>>| match a.name() {
        PADDING => !(converted && a.form() == c::DW_FORM_udata && a.udata_value() == Some(0)),
        c::DW_AT_low_pc if single => true,
        name => !is_of_scope(name),
    };
    let old = || entry.old.attrs().iter().filter(is_other);
    let new = || entry.new.attrs().iter().filter(is_other);
    let shape = |a: &Attribute<Slice<'d>>| (a.name(), a.form());
    if !old().map(shape).eq(new().map(shape)) {
        units.fail(entry, "its attributes changed".into());
        return Ok(());
    }
    for (a, b) in old().zip(new()) {
        attribute(units, entry, a, b)?;
    }
    Ok(())
}

/// Whether `low_pc` is the entry's only address.
pub(super) fn is_single(entry: &DebuggingInformationEntry<Slice<'_>>) -> bool {
    !entry.has_attr(c::DW_AT_high_pc) && !entry.has_attr(c::DW_AT_ranges)
}

fn attribute<'d>(
    units: &mut Units<'_, 'd>,
    entry: &Entries<'_, 'd>,
    a: &Attribute<Slice<'d>>,
    b: &Attribute<Slice<'d>>,
) -> gimli::Result<()> {
    use AttributeValue as V;
    let same = match (a.value(), b.value()) {
        (V::Addr(_) | V::DebugAddrIndex(_), _) => return single_address(units, entry, a, b),
        (V::Exprloc(x), V::Exprloc(y)) => places::same_expression(units, x, y)?,
        (V::LocationListsRef(_) | V::DebugLocListsIndex(_), _) => {
            return places::compare(units, entry, a, b);
        }
        (V::DebugLineRef(x), V::DebugLineRef(y)) => {
            let pair = (x.0 as u64, y.0 as u64);
            units.both.programs.binary_search(&pair).is_ok()
        }
        // What they name is compared where it is used.
        (V::DebugAddrBase(_), V::DebugAddrBase(_))
        | (V::DebugLocListsBase(_), V::DebugLocListsBase(_))
        | (V::DebugRngListsBase(_), V::DebugRngListsBase(_)) => true,
        _ if a.name() == c::DW_AT_GNU_locviews => true,
        // Is compared with that of the other half.
        (V::DwoId(_), V::DwoId(_)) => true,
        (V::DebugStrOffsetsIndex(x), V::DebugStrOffsetsIndex(y)) if units.both.is_split => {
            let old = units.both.old.attr_string(units.old, a.value())?;
            x == y && old == units.both.new.attr_string(units.new, b.value())?
        }
        (x, y) => x == y,
    };
    if !same {
        units.fail(entry, format!("{} changed", a.name()));
    }
    Ok(())
}

/// An address that is not part of a scope.
fn single_address<'d>(
    units: &mut Units<'_, 'd>,
    entry: &Entries<'_, 'd>,
    a: &Attribute<Slice<'d>>,
    b: &Attribute<Slice<'d>>,
) -> gimli::Result<()> {
    let (old_dwarf, new_dwarf, map) = (&units.both.old, &units.both.new, units.both.map);
    let (Some(old), Some(new)) = (
        old_dwarf.attr_address(units.old, a.value())?,
        new_dwarf.attr_address(units.new, b.value())?,
    ) else {
        units.fail(entry, format!("{} is no address any more", a.name()));
        return Ok(());
    };
    units.report.addresses += 1;
    let is_return = a.name() == c::DW_AT_call_return_pc
        || a.name() == c::DW_AT_low_pc && entry.old.tag() == c::DW_TAG_GNU_call_site;
    let expected = match a.name() {
        // Lists of the unit are relative to it.
        c::DW_AT_low_pc if entry.is_root => Some(old),
        _ if is_return => map.behind(old, false),
        c::DW_AT_low_pc | c::DW_AT_call_pc => map.instruction(old).or_else(|| {
            let rest: Range<u64> = old..map.body_end(old)?;
            map.first(&rest)
        }),
        _ => Some(map.pointer(old)),
    };
    // An address of an instruction that is gone may be anything that it was.
    let is_pointer = !is_return && !matches!(a.name(), c::DW_AT_low_pc | c::DW_AT_call_pc);
    let wanted = expected.unwrap_or(old);
    if wanted != new && !(is_pointer && map.settled(wanted) == map.settled(new)) {
        units.fail(
            entry,
            format!(
                "{} is {new:#x} for {old:#x}, where {:#x} is right",
                a.name(),
                expected.unwrap_or(old)
            ),
        );
    }
    Ok(())
}

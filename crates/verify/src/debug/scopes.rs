//! Scopes: the intervals of entries.

use std::collections::BTreeSet;
use std::ops::Range;

use gimli::constants as c;
use gimli::{AttributeValue, DebugAranges, Dwarf, EndianSlice, LittleEndian, Unit};
use smallvec::SmallVec;

use super::Slice;
use super::frame::{Entries, Units, is_single};
use super::map::{CodeMap, union};

/// Intervals of an entry: nearly always one.
pub(super) type Intervals = SmallVec<[Range<u64>; 1]>;

/// Intervals of an entry, as they are. gimli's own `die_ranges` adds a length to an address without a look at the
/// end of the address space; here that wraps.
pub(super) fn intervals<'d>(
    dwarf: &Dwarf<Slice<'d>>,
    unit: &Unit<Slice<'d>>,
    entry: &gimli::DebuggingInformationEntry<Slice<'d>>,
) -> gimli::Result<Intervals> {
    let mut out = Intervals::new();
    if is_single(entry) {
        return Ok(out);
    }
    if let Some(ranges) = entry.attr_value(c::DW_AT_ranges)
        && let Some(mut ranges) = dwarf.attr_ranges(unit, ranges)?
    {
        while let Some(range) = ranges.next()? {
            out.push(range.begin..range.end);
        }
        return Ok(out);
    }
    let address = |value| {
        dwarf
            .attr_address(unit, value)?
            .ok_or(gimli::Error::UnsupportedAttributeForm(c::DW_FORM_addr))
    };
    let low = entry.attr_value(c::DW_AT_low_pc).map(address);
    let (low, high) = (low.transpose()?, entry.attr_value(c::DW_AT_high_pc));
    let length = match high {
        Some(AttributeValue::Udata(length)) => Some(length),
        _ => None,
    };
    let high = match (low, length) {
        (Some(low), Some(length)) => Some(low.wrapping_add(length)),
        (_, Some(_)) => None,
        (_, None) => high.map(address).transpose()?,
    };
    out.extend(low.zip(high).map(|(low, high)| low..high));
    Ok(out)
}

/// Compares the intervals of an entry.
pub(super) fn compare<'d>(units: &mut Units<'_, 'd>, entry: &Entries<'_, 'd>) -> gimli::Result<()> {
    let map = units.both.map;
    let old = intervals(&units.both.old, units.old, entry.old)?;
    let new = intervals(&units.both.new, units.new, entry.new)?;
    if old.is_empty() && new.is_empty() {
        return if is_single(entry.old) || entry.is_root {
            Ok(())
        } else {
            entry_address(units, entry, &old, &new)
        };
    }
    units.report.scopes += 1;
    let both = |e: &gimli::DebuggingInformationEntry<_>| {
        e.has_attr(c::DW_AT_ranges) && e.has_attr(c::DW_AT_high_pc)
    };
    if both(entry.new) && !both(entry.old) {
        units.fail(entry, "it has ranges and high_pc".to_owned());
    }
    // A scope without a byte goes with the instruction at which it is.
    if let ([a], [b]) = (&old[..], &new[..])
        && a.is_empty()
        && map.moved(a.start)
        && let Some(at) = map.instruction(a.start)
        && entry.old.has_attr(c::DW_AT_low_pc)
        && (b.start, b.end) != (at, at)
    {
        let what = format!("it is empty and at {:#x}, where {at:#x} is right", b.start);
        units.fail(entry, what);
    }
    let touched = old.iter().any(|r| units.near.touches(r));
    // Most stay as they are.
    if touched || old != new {
        let expected = match (touched, entry.is_root) {
            (false, _) => union(old.to_vec()),
            (true, true) => map.unit(&old),
            (true, false) => {
                let mut all = Vec::new();
                for range in &old {
                    units.near.put_image(range, &mut units.image);
                    all.append(&mut units.image);
                }
                union(all)
            }
        };
        if union(new.to_vec()) != expected {
            let what =
                format!("its intervals are {new:x?} for {old:x?}, where {expected:x?} is right");
            units.fail(entry, what);
            return Ok(());
        }
    }
    let overlaps = |list: &[Range<u64>]| {
        let size = |list: &[Range<u64>]| {
            list.iter()
                .map(|r| r.end.saturating_sub(r.start))
                .fold(0, u64::saturating_add)
        };
        list.len() > 1 && size(list) != size(&union(list.to_vec()))
    };
    if overlaps(&new) && !overlaps(&old) {
        units.fail(entry, format!("its intervals {new:x?} overlap"));
    }
    if entry.is_root {
        let (a, b) = (units.old.low_pc, units.new.low_pc);
        // Lists are compared by what they are resolved to, each with the base of its own unit. In DWARF 5 they may do
        // without one.
        let without = b == 0 && units.new.header.version() >= 5;
        if a != b && !without {
            units.fail(
                entry,
                format!("the base of its unit is {b:#x} and was {a:#x}"),
            );
        }
        return Ok(());
    }
    entry_address(units, entry, &old, &new)
}

/// The address at which a scope is entered.
fn entry_address<'d>(
    units: &mut Units<'_, 'd>,
    entry: &Entries<'_, 'd>,
    old: &[Range<u64>],
    new: &[Range<u64>],
) -> gimli::Result<()> {
    let map = units.both.map;
    let address = |dwarf: &Dwarf<_>, unit: &Unit<_>, value: Option<AttributeValue<_>>| match value {
        Some(value) => dwarf.attr_address(unit, value),
        None => Ok(None),
    };
    let old_field = address(
        &units.both.old,
        units.old,
        entry.old.attr_value(c::DW_AT_entry_pc),
    )?;
    let new_field = address(
        &units.both.new,
        units.new,
        entry.new.attr_value(c::DW_AT_entry_pc),
    )?;
    let is_number = entry.old.has_attr(c::DW_AT_entry_pc) && old_field.is_none();
    if entry.new.has_attr(c::DW_AT_entry_pc) && new_field.is_none() && !is_number {
        units.fail(entry, "entry_pc is no address".into());
    }
    let Some(first) = old.first() else {
        entry_of_nothing(units, entry, (old_field, new_field));
        return Ok(());
    };
    let old_entry = old_field.unwrap_or(first.start);
    let from_entry = old
        .iter()
        .find(|r| r.contains(&old_entry))
        .map(|r| old_entry..r.end);
    let expected = from_entry.iter().chain(old).find_map(|r| map.first(r));
    let (Some(expected), Some(begins)) = (expected, new.first()) else {
        entry_of_nothing(units, entry, (old_field, new_field));
        return Ok(());
    };
    let touched = old.iter().any(|r| map.touches(r));
    // Scopes of split units of DWARF 5 may share a list by its index and have different entries: those that `entry_pc`
    // tells may be anywhere in it, if it begins where it did.
    let by_index = units.both.is_split && units.new.header.version() == 5;
    let is_told = by_index && old_field.is_some() && new_field == Some(expected);
    let as_before = old.iter().find_map(|r| map.first(r)) == Some(begins.start);
    if touched && begins.start != expected && !(is_told && as_before) {
        units.fail(
            entry,
            format!(
                "its first interval begins at {:#x}, its entry is {expected:#x}",
                begins.start
            ),
        );
    }
    if old_field.is_some() && new_field.is_none()
        || new_field.is_some_and(|field| touched && field != expected)
    {
        units.fail(
            entry,
            format!("entry_pc is {new_field:x?}, its entry is {expected:#x}"),
        );
    }
    if !touched && old_field.is_some() && new_field != old_field {
        units.fail(
            entry,
            format!("entry_pc is {new_field:x?} and was {old_field:x?}"),
        );
    }
    Ok(())
}

/// The entry of a scope without a byte: where it was, or where the instruction there is now. If that is gone, there is
/// nothing to compare it with.
fn entry_of_nothing(
    units: &mut Units<'_, '_>,
    entry: &Entries<'_, '_>,
    (old, new): (Option<u64>, Option<u64>),
) {
    let map = units.both.map;
    let right = match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => match map.instruction(old) {
            Some(at) => [old, at, map.pointer(old)].contains(&new),
            None => true,
        },
        _ => false,
    };
    if !right {
        units.fail(entry, format!("entry_pc is {new:x?} and was {old:x?}"));
    }
}

/// Compares `.debug_aranges`. What it says of units that were not updated must not change.
pub(super) fn aranges(
    old: &[u8],
    new: &[u8],
    map: &CodeMap,
    updated: &BTreeSet<u64>,
) -> Result<(), String> {
    let read = |section: &[u8]| -> gimli::Result<Vec<(usize, Vec<Range<u64>>)>> {
        let mut out = Vec::new();
        let aranges = DebugAranges::from(EndianSlice::new(section, LittleEndian));
        let mut headers = aranges.headers();
        while let Some(header) = headers.next()? {
            let mut ranges = Vec::new();
            let mut entries = header.entries();
            while let Some(entry) = entries.next()? {
                let range = entry.range();
                ranges.push(range.begin..range.end);
            }
            out.push((header.debug_info_offset().0, ranges));
        }
        Ok(out)
    };
    let Ok(old) = read(old) else {
        return Ok(());
    };
    let new = read(new).map_err(|e| format!(".debug_aranges cannot be read: {e}"))?;
    if old.len() != new.len() {
        return Err(format!(
            ".debug_aranges has {} sets and had {}",
            new.len(),
            old.len()
        ));
    }
    for ((unit, a), (unit_now, b)) in old.iter().zip(&new) {
        let is_updated = updated.contains(&(*unit as u64));
        let touched = is_updated && a.iter().any(|r| map.touches(r));
        let expected = if touched {
            map.unit(a)
        } else {
            union(a.clone())
        };
        if unit != unit_now || union(b.clone()) != expected {
            return Err(format!(
                "the set of .debug_aranges for the unit at {unit:#x} is {b:x?}, where {expected:x?} is right"
            ));
        }
    }
    Ok(())
}

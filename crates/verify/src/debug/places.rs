//! Places: expressions of variables, and where they hold.

use std::collections::BTreeMap;
use std::ops::Range;

use gimli::{Attribute, AttributeValue, Dwarf, Expression, Operation, Unit, constants as c};

use super::Slice;
use super::frame::{Entries, Units};
use super::map::union;

/// An entry of a list: where, and what.
type Place<'d> = (Range<u64>, Expression<Slice<'d>>);

fn list<'d>(
    dwarf: &Dwarf<Slice<'d>>,
    unit: &Unit<Slice<'d>>,
    value: AttributeValue<Slice<'d>>,
) -> gimli::Result<Vec<Place<'d>>> {
    let mut out = Vec::new();
    if let Some(mut locations) = dwarf.attr_locations(unit, value)? {
        while let Some(entry) = locations.next()? {
            out.push((entry.range.begin..entry.range.end, entry.data));
        }
    }
    Ok(out)
}

/// Compares two location lists.
///
/// Lengths of DWARF 4 in split units have 32 bits. GCC writes the difference of two labels there, which is negative
/// where an entry holds nowhere.
pub(super) fn compare<'d>(
    units: &mut Units<'_, 'd>,
    entry: &Entries<'_, 'd>,
    a: &Attribute<Slice<'d>>,
    b: &Attribute<Slice<'d>>,
) -> gimli::Result<()> {
    units.report.places += 1;
    let mut old = list(&units.both.old, units.old, a.value())?;
    let mut new = list(&units.both.new, units.new, b.value())?;
    if units.both.is_split && units.old.encoding().version < 5 {
        let is_negative = |r: &Range<u64>| r.end.wrapping_sub(r.start) > i32::MAX as u64;
        for side in [&mut old, &mut new] {
            side.retain(|(range, _)| !is_negative(range));
        }
    }
    // By expression, with addresses replaced by what they name: which bytes it holds for.
    let mut expected: BTreeMap<Vec<u8>, Vec<Range<u64>>> = BTreeMap::new();
    let mut found = expected.clone();
    for (range, expression) in &old {
        let key = canonical(units, expression, true)?;
        expected
            .entry(key)
            .or_default()
            .extend(units.both.map.image(range));
    }
    for (range, expression) in &new {
        let key = canonical(units, expression, false)?;
        found.entry(key).or_default().push(range.clone());
    }
    for side in [&mut expected, &mut found] {
        side.values_mut()
            .for_each(|list| *list = union(std::mem::take(list)));
        side.retain(|_, list| !list.is_empty());
    }
    if expected != found {
        let what = format!(
            "{} has places {found:x?}, where {expected:x?} is right",
            a.name()
        );
        units.fail(entry, what);
    }
    if a.name() == c::DW_AT_location {
        views(units, entry, b)?;
    }
    Ok(())
}

/// Whether two expressions say the same, each of its file.
pub(super) fn same_expression<'d>(
    units: &Units<'_, 'd>,
    a: Expression<Slice<'d>>,
    b: Expression<Slice<'d>>,
) -> gimli::Result<bool> {
    if a.0.len() != b.0.len() {
        return Ok(false);
    }
    Ok(canonical(units, &a, true)? == canonical(units, &b, false)?)
}

/// An expression with addresses of code encoded out: those of the input as they should be in the output.
fn canonical<'d>(
    units: &Units<'_, 'd>,
    expression: &Expression<Slice<'d>>,
    of_input: bool,
) -> gimli::Result<Vec<u8>> {
    let (dwarf, unit) = if of_input {
        (&units.both.old, units.old)
    } else {
        (&units.both.new, units.new)
    };
    let value = |address: u64| {
        if of_input {
            units.both.map.settled(units.both.map.pointer(address))
        } else {
            units.both.map.settled(address)
        }
    };
    let bytes = expression.0.slice();
    let mut out = Vec::new();
    let mut operations = expression.operations(unit.encoding());
    let mut at = 0;
    while at < bytes.len() {
        let operation = match operations.next() {
            Ok(Some(operation)) => operation,
            Ok(None) => break,
            Err(_) => {
                // What is not known must not change.
                out.extend_from_slice(&bytes[at..]);
                break;
            }
        };
        let end = operations.offset_from(expression);
        let address = match operation {
            Operation::Address { address } => Some(address),
            Operation::AddressIndex { index } => Some(dwarf.address(unit, index)?),
            Operation::ConstantIndex { index } => {
                out.push(c::DW_OP_constx.0);
                out.extend(dwarf.address(unit, index)?.to_le_bytes());
                at = end;
                continue;
            }
            Operation::EntryValue { expression } => {
                let inner = canonical(units, &Expression(expression), of_input)?;
                out.push(c::DW_OP_entry_value.0);
                out.extend((inner.len() as u64).to_le_bytes());
                out.extend(inner);
                at = end;
                continue;
            }
            _ => None,
        };
        match address {
            Some(address) => {
                out.push(c::DW_OP_addr.0);
                out.extend(value(address).to_le_bytes());
            }
            None => out.extend_from_slice(&bytes[at..end]),
        }
        at = end;
    }
    Ok(out)
}

/// View pairs are right in front of their list, one for each entry.
fn views<'d>(
    units: &mut Units<'_, 'd>,
    entry: &Entries<'_, 'd>,
    b: &Attribute<Slice<'d>>,
) -> gimli::Result<()> {
    let Some(views) = entry.new.attr(c::DW_AT_GNU_locviews) else {
        return Ok(());
    };
    let Some(list) = units.both.new.attr_locations_offset(units.new, b.value())? else {
        return Ok(());
    };
    // Before DWARF 4 offsets have the forms of numbers.
    let mut at = match views.raw_value() {
        AttributeValue::SecOffset(at) => at,
        AttributeValue::Data4(at) => at as usize,
        AttributeValue::Data8(at) => at as usize,
        _ => return Ok(()),
    };
    // In files of split units of DWARF 5, GCC counts from behind the header of the lists.
    if units.both.is_split && units.new.encoding().version == 5 {
        at = at.saturating_add(units.new.loclists_base.0);
    }
    let section = match units.new.encoding().version {
        5 => units.both.new_locations[1],
        _ => units.both.new_locations[0],
    };
    let mut pairs = 0;
    // An offset behind the section's end is told below: it is not counted up to it.
    while at < list.0.min(section.len()) {
        for _ in 0..2 {
            let rest = section.get(at..).unwrap_or_default();
            at += 1 + rest.iter().take_while(|b| **b >= 0x80).count();
        }
        pairs += 1;
    }
    let mut entries = 0;
    let mut raw = units.both.new.raw_locations(units.new, list)?;
    while let Some(item) = raw.next()? {
        entries += usize::from(is_entry(&item));
    }
    if (at, pairs) != (list.0, entries) {
        units.fail(
            entry,
            format!(
                "{pairs} pairs of views up to {at:#x} for {entries} places at {:#x}",
                list.0
            ),
        );
    }
    Ok(())
}

fn is_entry(item: &gimli::RawLocListEntry<Slice<'_>>) -> bool {
    use gimli::RawLocListEntry as R;
    !matches!(
        item,
        R::BaseAddress { .. } | R::BaseAddressx { .. } | R::DefaultLocation { .. }
    )
}

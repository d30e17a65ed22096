//! Places: expressions of variables, and where they hold.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use gimli::{Attribute, AttributeValue, Dwarf, Expression, Operation, Unit, constants as c};

use super::Slice;
use super::frame::{Entries, Units};

/// An entry of a list: where, and what.
pub(super) type Place<'d> = (Range<u64>, Expression<Slice<'d>>);

/// Reads a list in the place of what was read before.
fn list<'d>(
    dwarf: &Dwarf<Slice<'d>>,
    unit: &Unit<Slice<'d>>,
    value: AttributeValue<Slice<'d>>,
    out: &mut Vec<Place<'d>>,
) -> gimli::Result<()> {
    out.clear();
    if let Some(mut locations) = dwarf.attr_locations(unit, value)? {
        while let Some(entry) = locations.next()? {
            out.push((entry.range.begin..entry.range.end, entry.data));
        }
    }
    Ok(())
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
    let [mut old, mut new] = std::mem::take(&mut units.lists);
    list(&units.both.old, units.old, a.value(), &mut old)?;
    list(&units.both.new, units.new, b.value(), &mut new)?;
    if units.both.is_split && units.old.encoding().version < 5 {
        let is_negative = |r: &Range<u64>| r.end.wrapping_sub(r.start) > i32::MAX as u64;
        for side in [&mut old, &mut new] {
            side.retain(|(range, _)| !is_negative(range));
        }
    }
    if !stay(units, &old, &new) {
        let expected = expected(units, &old)?;
        let found = found(units, &new)?;
        if expected != found {
            let by_expression = |said: Vec<Said<'d>>| {
                let mut out: BTreeMap<Cow<'d, [u8]>, Vec<Range<u64>>> = BTreeMap::new();
                for (expression, start, end) in said {
                    out.entry(expression).or_default().push(start..end);
                }
                out
            };
            let what = format!(
                "{} has places {:x?}, where {:x?} is right",
                a.name(),
                by_expression(found),
                by_expression(expected)
            );
            units.fail(entry, what);
        }
    }
    units.lists = [old, new];
    if a.name() == c::DW_AT_location {
        views(units, entry, b)?;
    }
    Ok(())
}

/// Whether two lists say the same of code that stayed, without a name of an address. Most do.
fn stay(units: &mut Units<'_, '_>, old: &[Place<'_>], new: &[Place<'_>]) -> bool {
    let mut pairs = old.iter().zip(new);
    old.len() == new.len()
        && pairs.all(|(a, b)| {
            let (bytes, range) = (a.1.0.slice(), &a.0);
            (range, bytes) == (&b.0, b.1.0.slice())
                && !units.near.touches(range)
                && !may_name_address(bytes)
        })
}

/// An expression, with addresses replaced by what they name, and bytes that it holds for: start and end.
type Said<'d> = (Cow<'d, [u8]>, u64, u64);

/// What the input says, of new code.
fn expected<'d>(units: &mut Units<'_, 'd>, old: &[Place<'d>]) -> gimli::Result<Vec<Said<'d>>> {
    let mut out = Vec::with_capacity(old.len());
    let mut image = std::mem::take(&mut units.image);
    for (range, expression) in old {
        let key = canonical(units, expression, true)?;
        units.near.put_image(range, &mut image);
        out.extend(image.iter().map(|r| (key.clone(), r.start, r.end)));
    }
    units.image = image;
    Ok(normal(out))
}

/// What the output says.
fn found<'d>(units: &Units<'_, 'd>, new: &[Place<'d>]) -> gimli::Result<Vec<Said<'d>>> {
    let said = |(range, expression): &Place<'d>| {
        Ok((canonical(units, expression, false)?, range.start, range.end))
    };
    let said: gimli::Result<Vec<Said<'d>>> = new.iter().map(said).collect();
    Ok(normal(said?))
}

/// Sorted, with neighbours joined that say the same.
fn normal(mut said: Vec<Said<'_>>) -> Vec<Said<'_>> {
    said.retain(|s| s.1 < s.2);
    said.sort_unstable();
    said.dedup_by(|next, last| {
        let joins = next.0 == last.0 && next.1 <= last.2;
        if joins {
            last.2 = last.2.max(next.2);
        }
        joins
    });
    said
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

/// Whether an operation may be among these bytes that names an address, or an entry of the pool of addresses.
fn may_name_address(expression: &[u8]) -> bool {
    const NAMES: [gimli::DwOp; 5] = [
        c::DW_OP_addr,
        c::DW_OP_addrx,
        c::DW_OP_constx,
        c::DW_OP_GNU_addr_index,
        c::DW_OP_GNU_const_index,
    ];
    expression
        .iter()
        .any(|byte| NAMES.contains(&gimli::DwOp(*byte)))
}

/// An expression with addresses of code encoded out: those of the input as they should be in the output.
fn canonical<'d>(
    units: &Units<'_, 'd>,
    expression: &Expression<Slice<'d>>,
    of_input: bool,
) -> gimli::Result<Cow<'d, [u8]>> {
    let bytes = expression.0.slice();
    Ok(if may_name_address(bytes) {
        Cow::Owned(encoded_out(units, expression, of_input)?)
    } else {
        Cow::Borrowed(bytes)
    })
}

/// The same of one that may name addresses.
fn encoded_out<'d>(
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
                let inner = encoded_out(units, &Expression(expression), of_input)?;
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

//! Units that continue describing old code.
//!
//! A unit that cannot be read cannot be made to describe moved code, and neither can one whose entries are in a file
//! of their own. Such a unit may stay as it is, beside others that were updated, if what it says is what it said in
//! the input:
//!
//! * its bytes are the same, and
//! * all sections that its offsets may lead into have their old bytes where they were: what is new is after them.
//!
//! That a unit cannot be read is seen here, by the checker's own reader: one that can must have been updated.

use std::collections::BTreeSet;

use gimli::constants as c;
use gimli::{AttributeValue, UnitHeader};

use super::frame::{Place, place};
use super::{Both, Slice, scopes};

/// Sections that offsets of units lead into, and that may grow.
const GROWING: [&str; 8] = [
    ".debug_abbrev",
    ".debug_line",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_loc",
    ".debug_loclists",
    ".debug_addr",
    ".debug_macro",
];

/// Whether all old bytes that offsets lead to are where they were.
pub(super) fn old_bytes_stay<'d>(
    old: &impl Fn(&str) -> &'d [u8],
    new: &impl Fn(&str) -> &'d [u8],
) -> bool {
    GROWING.iter().all(|name| new(name).starts_with(old(name)))
}

/// Whether a unit of the input cannot be read to its end, or has something that has no update.
pub(super) fn cannot_be_updated<'d>(both: &Both<'d>, header: UnitHeader<Slice<'d>>) -> bool {
    reads(both, header).unwrap_or(true)
}

/// Whether a line program has rows that ascend, one operation per instruction, and no operations that nothing is known
/// of.
fn program_is_plain(program: &gimli::IncompleteLineProgram<Slice<'_>>) -> gimli::Result<bool> {
    use gimli::LineInstruction as I;
    let header = program.header();
    if header.maximum_operations_per_instruction() > 1 {
        return Ok(false);
    }
    let mut instructions = header.instructions();
    while let Some(instruction) = instructions.next_instruction(header)? {
        if let I::UnknownExtended(..) = instruction {
            return Ok(false);
        }
    }
    let mut rows = program.clone().rows();
    let mut last = 0;
    while let Some((_, row)) = rows.next_row()? {
        if row.address() < last {
            return Ok(false);
        }
        last = if row.end_sequence() { 0 } else { row.address() };
    }
    Ok(true)
}

/// Reads everything that a unit leads to. Says whether it has something that has no update: entries in another file,
/// or such a line program.
fn reads<'d>(both: &Both<'d>, header: UnitHeader<Slice<'d>>) -> gimli::Result<bool> {
    let dwarf = &both.old;
    let unit = dwarf.unit(header)?;
    if unit.dwo_name()?.is_some() {
        let id = super::split::id_of(dwarf, header);
        let half = both.halves.as_ref().map(|[old, _]| old);
        if half.is_none_or(|half| !half.is_readable(both, id)) {
            return Ok(true);
        }
    }
    if let Some(program) = &unit.line_program
        && !program_is_plain(program)?
    {
        return Ok(true);
    }
    reads_entries(dwarf, &unit)?;
    Ok(false)
}

/// Whether a unit in a file of split units cannot be read to its end.
pub(super) fn half_cannot_be_updated<'d>(
    dwarf: &gimli::Dwarf<Slice<'d>>,
    header: UnitHeader<Slice<'d>>,
) -> bool {
    // Addresses by index are not looked at: their place is known to the skeleton alone.
    let read = || -> gimli::Result<()> {
        let unit = dwarf.unit(header)?;
        let mut entries = unit.entries();
        while entries.next_dfs()?.is_some() {}
        Ok(())
    };
    read().is_err()
}

fn reads_entries<'d>(
    dwarf: &gimli::Dwarf<Slice<'d>>,
    unit: &gimli::Unit<Slice<'d>>,
) -> gimli::Result<()> {
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        let single = !entry.has_attr(c::DW_AT_high_pc) && !entry.has_attr(c::DW_AT_ranges);
        if !single {
            scopes::intervals(dwarf, unit, entry)?;
        }
        for attribute in entry.attrs() {
            match attribute.value() {
                value @ (AttributeValue::Addr(_) | AttributeValue::DebugAddrIndex(_)) => {
                    dwarf.attr_address(unit, value)?;
                }
                AttributeValue::Exprloc(expression) => {
                    let mut operations = expression.operations(unit.encoding());
                    while operations.next()?.is_some() {}
                }
                value @ (AttributeValue::LocationListsRef(_)
                | AttributeValue::DebugLocListsIndex(_)) => {
                    if let Some(mut list) = dwarf.attr_locations(unit, value)? {
                        while list.next()?.is_some() {}
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The line programs that readable units lead to: old and new offset, of units that are not stale.
pub(super) fn programs(
    both: &Both<'_>,
    pairs: &[super::frame::Pair<'_>],
    stale: &BTreeSet<Place>,
) -> Vec<(u64, u64)> {
    let program = |dwarf: &gimli::Dwarf<_>, header: UnitHeader<_>| -> Option<u64> {
        let abbreviations = dwarf.abbreviations(&header).ok()?;
        let mut entries = header.entries(&abbreviations);
        let root = entries.next_dfs().ok()??;
        match root.attr_value(c::DW_AT_stmt_list)? {
            AttributeValue::DebugLineRef(at) => Some(at.0 as u64),
            _ => None,
        }
    };
    let mut out: Vec<(u64, u64)> = pairs
        .iter()
        .filter(|(a, _)| place(a).is_none_or(|at| !stale.contains(&at)))
        .filter_map(|(a, b)| Some((program(&both.old, *a)?, program(&both.new, *b)?)))
        .collect();
    out.sort_unstable();
    out.dedup();
    out
}

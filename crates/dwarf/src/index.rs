//! Indexes by address: `.debug_aranges` and the address area of `.gdb_index`.
//!
//! Both say which unit an address belongs to. Like the units themselves they keep old bodies and gain new code.
//!
//! | `.debug_aranges`, a set | |
//! |---|---|
//! | 4 or 12 | length |
//! | 2 | version 2 |
//! | 4 or 8 | offset of the unit |
//! | 1, 1 | sizes of addresses and of segment selectors |
//! | | zeros up to a multiple of 16 from the set's start |
//! | 16 each | address and length; a pair of zeros ends the set |
//!
//! | `.gdb_index` of version 7 to 9 | |
//! |---|---|
//! | 4 | version |
//! | 4 each | offsets of: list of units, list of type units, address area, symbol table, from version 9 on shortcuts, constant pool |
//! | 20 each | address area: first address, one past the last, number of the unit |

use std::collections::BTreeSet;
use std::ops::Range;

use crate::Error;
use crate::map::AddressMap;
use crate::read::{Reader, put_number};
use crate::sections::Section;
use crate::splice::Splices;

/// Where the units begin that were updated. What indexes say of others stays.
pub(crate) type Updated = BTreeSet<u64>;

/// Updates `.debug_aranges`.
pub(crate) fn aranges(
    section: &[u8],
    map: &AddressMap,
    updated: &Updated,
    out: &mut Splices,
) -> Result<(), Error> {
    let mut at = 0u64;
    while at < section.len() as u64 {
        let mut r = Reader::new(section, at, Section::Aranges.name())?;
        let offset_size = r.unit_length()?;
        let length_end = r.at as u64;
        let version = r.u16()?;
        let unit = r.number(offset_size)?;
        let sizes = (r.u8()?, r.u8()?);
        if version != 2 || sizes != (8, 0) {
            let (address, segment) = sizes;
            return Err(r.error(format!(
                "version {version}, addresses of {address} bytes, segments of {segment}; 2, 8 and 0 are possible"
            )));
        }
        let padding = (r.at as u64 - at).next_multiple_of(16) - (r.at as u64 - at);
        r.bytes(padding)?;
        let first = r.at as u64;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut end = r.end as u64;
        while r.end - r.at >= 16 {
            let (start, len) = (r.number(8)?, r.number(8)?);
            if (start, len) == (0, 0) {
                end = r.at as u64 - 16;
                break;
            }
            ranges.push(start..start.saturating_add(len));
        }
        if updated.contains(&unit) && ranges.iter().any(|range| map.touches(range)) {
            let mut pairs = Vec::new();
            for range in map.with_old_bodies(&ranges) {
                put_number(&mut pairs, range.start, 8);
                put_number(&mut pairs, range.end - range.start, 8);
            }
            let mut len = Vec::new();
            let new_len = r.end as u64 - length_end + pairs.len() as u64 - (end - first);
            put_number(&mut len, new_len, offset_size);
            out.push(length_end - u64::from(offset_size)..length_end, &len);
            out.push(first..end, &pairs);
        }
        at = r.end as u64;
    }
    Ok(())
}

/// Updates the address area of `.gdb_index`.
pub(crate) fn gdb_index(
    section: &[u8],
    map: &AddressMap,
    updated: &Updated,
    out: &mut Splices,
) -> Result<(), Error> {
    if section.is_empty() {
        return Ok(());
    }
    let mut r = Reader::new(section, 0, Section::GdbIndex.name())?;
    let version = r.number(4)?;
    let fields = match version {
        7 | 8 => 5u64,
        9 => 6,
        _ => return Err(r.error(format!("version {version}; 7 to 9 are known"))),
    };
    let mut offsets = Vec::new();
    for _ in 0..fields {
        offsets.push(r.number(4)?);
    }
    let [units, type_units, start, end, ..] = offsets[..] else {
        return Err(r.error("a header without an address area"));
    };
    if start > end || end > section.len() as u64 || !(end - start).is_multiple_of(20) {
        return Err(r.error(format!(
            "the address area is said to be at {start:#x}..{end:#x}"
        )));
    }
    let mut area = Reader::new(section, start, Section::GdbIndex.name())?;
    let mut new = Vec::new();
    let mut touched = false;
    while (area.at as u64) < end {
        let (low, high, unit) = (area.number(8)?, area.number(8)?, area.number(4)?);
        let old = low..high;
        // Numbers beyond the list of units are those of type units.
        let at = units + 16 * unit;
        let stays = at + 16 <= type_units && {
            let mut of_unit = Reader::new(section, at, Section::GdbIndex.name())?;
            !updated.contains(&of_unit.number(8)?)
        };
        touched |= !stays && map.touches(&old);
        let ranges = if stays {
            vec![old]
        } else {
            map.with_old_bodies(&[old])
        };
        for range in ranges {
            put_number(&mut new, range.start, 8);
            put_number(&mut new, range.end, 8);
            put_number(&mut new, unit, 4);
        }
    }
    if !touched {
        return Ok(());
    }
    let mut header = Vec::new();
    put_number(&mut header, version, 4);
    for offset in &offsets {
        let moved = if *offset >= end {
            offset - (end - start) + new.len() as u64
        } else {
            *offset
        };
        let Ok(moved) = u32::try_from(moved) else {
            return Err(r.error(format!("an offset {moved:#x} does not fit 32 bits")));
        };
        header.extend(moved.to_le_bytes());
    }
    out.push(0..4 + 4 * fields, &header);
    out.push(start..end, &new);
    Ok(())
}

/// The field of a macro unit's header that names a line program: where it is, its size and its value.
pub(crate) fn macro_line(section: &[u8], at: u64) -> Result<Option<(Range<u64>, u64)>, Error> {
    const OFFSET_SIZE: u8 = 1;
    const HAS_LINE: u8 = 2;
    let mut r = Reader::new(section, at, Section::Macro.name())?;
    let _version = r.u16()?;
    let flags = r.u8()?;
    if flags & HAS_LINE == 0 {
        return Ok(None);
    }
    let size = if flags & OFFSET_SIZE != 0 { 8 } else { 4 };
    let start = r.at as u64;
    let value = r.number(size)?;
    Ok(Some((start..r.at as u64, value)))
}

//! gdb's index: the units of addresses, and everything else as it was.
//!
//! | field | |
//! |---|---|
//! | u32 | version, 7 to 9 |
//! | u32 each | offsets of: units, type units, address area, symbols, (9: shortcuts,) names |
//! | address area | u64 first address, u64 end, u32 unit; for each interval |

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::map::{CodeMap, union};
use crate::files::bytes::Reader;

/// An index in parts.
struct Index<'d> {
    version: u32,
    offsets: Vec<u64>,
    /// Interval and unit.
    area: Vec<(Range<u64>, u32)>,
    /// What is in front of the area, after the header, and after it.
    rest: [&'d [u8]; 2],
}

fn read(section: &[u8]) -> Option<Index<'_>> {
    let mut r = Reader::new(section);
    let version = r.u32()?;
    let fields = match version {
        7 | 8 => 5,
        9 => 6,
        _ => return None,
    };
    let mut offsets = Vec::new();
    for _ in 0..fields {
        offsets.push(u64::from(r.u32()?));
    }
    let at = |i: usize| usize::try_from(*offsets.get(i)?).ok();
    let (start, end) = (at(2)?, at(3)?);
    let mut area = Vec::new();
    let bytes = section.get(start..end)?;
    for entry in bytes.chunks(20) {
        let mut r = Reader::new(entry);
        let (low, high, unit) = (r.u64()?, r.u64()?, r.u32()?);
        area.push((low..high, unit));
    }
    let rest = [section.get(4 + 4 * fields..start)?, section.get(end..)?];
    Some(Index {
        version,
        area,
        rest,
        offsets,
    })
}

/// Compares `.gdb_index`. What it says of units that were not updated must not change.
pub(super) fn compare(
    old: &[u8],
    new: &[u8],
    map: &CodeMap,
    updated: &BTreeSet<u64>,
) -> Result<(), String> {
    if old == new && old.is_empty() {
        return Ok(());
    }
    let Some(a) = read(old) else {
        // What cannot be read must not change.
        return if old == new {
            Ok(())
        } else {
            Err(".gdb_index changed, which cannot be read".into())
        };
    };
    let b = read(new).ok_or(".gdb_index cannot be read any more")?;
    let grown = |offset: &u64| {
        if offset > &a.offsets.get(2).copied().unwrap_or(0) {
            (offset + 20 * b.area.len() as u64).saturating_sub(20 * a.area.len() as u64)
        } else {
            *offset
        }
    };
    let right: Vec<u64> = a.offsets.iter().map(grown).collect();
    if (a.version, &right, a.rest) != (b.version, &b.offsets, b.rest) {
        return Err(".gdb_index changed beside its address area".into());
    }
    let by_unit = |area: &[(Range<u64>, u32)]| {
        let mut out: BTreeMap<u32, Vec<Range<u64>>> = BTreeMap::new();
        for (range, unit) in area {
            out.entry(*unit).or_default().push(range.clone());
        }
        out
    };
    let areas = [by_unit(&a.area), by_unit(&b.area)];
    let of_unit = |which: usize, unit: u32, map: Option<&CodeMap>| {
        let own = areas[which].get(&unit).cloned().unwrap_or_default();
        match map {
            Some(map) => map.unit(&own),
            None => union(own),
        }
    };
    let units: BTreeSet<u32> = areas.iter().flat_map(BTreeMap::keys).copied().collect();
    // Numbers beyond the list of units are those of type units.
    let stays = |unit: u32| -> Option<bool> {
        let [first, end] = [*a.offsets.first()?, *a.offsets.get(1)?];
        let at = first + 16 * u64::from(unit);
        if at + 16 > end {
            return Some(false);
        }
        let mut r = Reader::new(old.get(usize::try_from(at).ok()?..)?);
        Some(!updated.contains(&r.u64()?))
    };
    for unit in units {
        let moved = Some(map).filter(|_| stays(unit) != Some(true));
        let (is, should) = (of_unit(1, unit, None), of_unit(0, unit, moved));
        if is != should {
            return Err(format!(
                ".gdb_index gives unit {unit} the addresses {is:x?}, where {should:x?} is right"
            ));
        }
    }
    Ok(())
}

//! Writing lists.
//!
//! In DWARF 5 entries are taken in groups that ascend and stay near their first one; each group is written
//! with its starts and lengths, or with a base and offsets, whichever is shorter (the former if both are).
//! Before that, entries are relative to the unit's base if none is below it, and to 0 else. What is written
//! does not depend on where it will be.

use std::ops::Range;

use super::{Location, Views, kind};
use crate::Error;
use crate::forms::Encoding;
use crate::read::{put_uleb, put_uleb_padded, uleb_len};

/// Offsets in a group stay below this: three bytes each.
const NEAR: u64 = 1 << 21;

/// Appends a range list. Ranges are neither empty nor descending in themselves.
pub(crate) fn put_ranges(out: &mut Vec<u8>, encoding: Encoding, base: u64, ranges: &[Range<u64>]) {
    if encoding.version < 5 {
        let base = put_base_4(out, base, ranges.iter());
        ranges.iter().for_each(|r| put_pair_4(out, r, base));
        out.extend([0; 16]);
        return;
    }
    for group in groups(ranges) {
        let base = start_of(group);
        if based(group) < direct(group) {
            out.push(kind::RNG_BASE_ADDRESS);
            out.extend(base.to_le_bytes());
            group.iter().for_each(|r| put_offset_pair(out, r, base));
        } else {
            for r in group {
                out.push(kind::RNG_START_LENGTH);
                out.extend(r.start.to_le_bytes());
                put_uleb(out, r.end - r.start);
            }
        }
    }
    out.push(kind::END_OF_LIST);
}

/// Appends a location list, in which default locations come last. Fails for an expression longer than its length's
/// field allows.
pub(crate) fn put_locations(
    out: &mut Vec<u8>,
    encoding: Encoding,
    base: u64,
    list: &[Location<'_>],
    inline_views: bool,
) -> Result<(), Error> {
    if encoding.version < 5 {
        let base = put_base_4(out, base, list.iter().filter_map(|l| l.range.as_ref()));
        for location in list {
            // There is no default location in these versions.
            let Some(range) = &location.range else {
                continue;
            };
            put_pair_4(out, range, base);
            let len = location.expression.len();
            let Ok(len) = u16::try_from(len) else {
                let what = format!("an expression of {len} bytes; 65535 are possible");
                return Err(Error::new(".debug_loc", 0, what));
            };
            out.extend(len.to_le_bytes());
            out.extend_from_slice(&location.expression);
        }
        out.extend([0; 16]);
        return Ok(());
    }
    for group in groups(list) {
        let base = start_of(group);
        let by_base = based(group) < direct(group);
        if by_base {
            out.push(kind::LOC_BASE_ADDRESS);
            out.extend(base.to_le_bytes());
        }
        for location in group {
            let Some(range) = &location.range else {
                continue;
            };
            if inline_views && location.views != (0, 0) {
                out.push(kind::GNU_VIEW_PAIR);
                put_views(out, location.views);
            }
            if by_base {
                put_offset_pair(out, range, base);
            } else {
                out.push(kind::LOC_START_LENGTH);
                out.extend(range.start.to_le_bytes());
                put_uleb(out, range.end - range.start);
            }
            put_expression(out, location);
        }
    }
    for location in list.iter().filter(|l| l.range.is_none()) {
        out.push(kind::DEFAULT_LOCATION);
        put_expression(out, location);
    }
    out.push(kind::END_OF_LIST);
    Ok(())
}

/// Bytes of an index that follows later.
pub(crate) const INDEX: usize = 5;

/// Appends an entry of a location list of DWARF 4 in a file of split units. Returns where its index is, which follows
/// later.
pub(crate) fn put_split_location(
    out: &mut Vec<u8>,
    range: &Range<u64>,
    expression: &[u8],
) -> Result<usize, Error> {
    let error = |what| Err(Error::new(".debug_loc.dwo", 0, what));
    out.push(kind::STARTX_LENGTH);
    let at = out.len();
    put_uleb_padded(out, 0, INDEX);
    let len = range.end - range.start;
    let Ok(len) = u32::try_from(len) else {
        return error(format!(
            "an entry of {len:#x} bytes of code; 2^32 are too many"
        ));
    };
    out.extend(len.to_le_bytes());
    let len = expression.len();
    let Ok(len) = u16::try_from(len) else {
        return error(format!("an expression of {len} bytes; 65535 are possible"));
    };
    out.extend(len.to_le_bytes());
    out.extend_from_slice(expression);
    Ok(at)
}

/// Appends a pair of views.
pub(crate) fn put_views(out: &mut Vec<u8>, views: Views) {
    put_uleb(out, views.0);
    put_uleb(out, views.1);
}

fn put_expression(out: &mut Vec<u8>, location: &Location<'_>) {
    put_uleb(out, location.expression.len() as u64);
    out.extend_from_slice(&location.expression);
}

fn put_offset_pair(out: &mut Vec<u8>, range: &Range<u64>, base: u64) {
    out.push(kind::OFFSET_PAIR);
    put_uleb(out, range.start - base);
    put_uleb(out, range.end - base);
}

/// Sets another base where one entry is below the unit's. Returns the base.
fn put_base_4<'r>(
    out: &mut Vec<u8>,
    base: u64,
    mut ranges: impl Iterator<Item = &'r Range<u64>>,
) -> u64 {
    if ranges.all(|r| r.start >= base) {
        return base;
    }
    out.extend([0xff; 8]);
    out.extend([0; 8]);
    0
}

fn put_pair_4(out: &mut Vec<u8>, range: &Range<u64>, base: u64) {
    out.extend((range.start - base).to_le_bytes());
    out.extend((range.end - base).to_le_bytes());
}

/// An entry of a list of either kind.
trait Ranged {
    /// Where it holds; `None` for a default location, which is behind all others.
    fn range(&self) -> Option<&Range<u64>>;
}

impl Ranged for Range<u64> {
    fn range(&self) -> Option<&Range<u64>> {
        Some(self)
    }
}

impl Ranged for Location<'_> {
    fn range(&self) -> Option<&Range<u64>> {
        self.range.as_ref()
    }
}

/// Ascending entries near the first of each group, those without a range left out.
fn groups<T: Ranged>(list: &[T]) -> impl Iterator<Item = &[T]> {
    let with_range = list.iter().take_while(|e| e.range().is_some()).count();
    let list = list.get(..with_range).unwrap_or(list);
    let mut first = start_of(list);
    list.chunk_by(move |a, b| {
        let (Some(a), Some(b)) = (a.range(), b.range()) else {
            return false;
        };
        let near = a.start <= b.start && b.end - first < NEAR;
        if !near {
            first = b.start;
        }
        near
    })
}

/// Where the first range of a group begins.
fn start_of(group: &[impl Ranged]) -> u64 {
    let first = group.first().and_then(Ranged::range);
    first.map_or(0, |range| range.start)
}

/// Bytes of a group with a base.
fn based(group: &[impl Ranged]) -> usize {
    let base = start_of(group);
    let offsets = |r: &Range<u64>| 1 + uleb_len(r.start - base) + uleb_len(r.end - base);
    9 + group
        .iter()
        .filter_map(Ranged::range)
        .map(offsets)
        .sum::<usize>()
}

/// Bytes of a group of starts and lengths.
fn direct(group: &[impl Ranged]) -> usize {
    let lengths = |r: &Range<u64>| 9 + uleb_len(r.end - r.start);
    group.iter().filter_map(Ranged::range).map(lengths).sum()
}

#[cfg(test)]
mod tests {
    use super::super::{List, Source, read_locations, read_ranges};
    use super::*;
    use crate::pool::Pool;
    use arbitrary::Unstructured;

    fn source(section: &[u8], version: u16, base: u64) -> Source<'_> {
        Source {
            section,
            name: ".debug_test",
            encoding: Encoding {
                version,
                offset_size: 4,
            },
            base,
            pool: Pool {
                section: &[],
                base: None,
            },
            is_split: false,
        }
    }

    fn random(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<Range<u64>>> {
        let mut out = Vec::new();
        for _ in 0..u.int_in_range(0..=6)? {
            let start = u.int_in_range(1..=0x1000u64)? << u.int_in_range(0..=20)?;
            out.push(start..start + u.int_in_range(1..=500)?);
        }
        if u.arbitrary()? {
            out.sort_by_key(|r| r.start);
        }
        Ok(out)
    }

    #[test]
    fn lists_are_read_as_they_were_written() {
        arbtest::arbtest(|u| {
            let ranges = random(u)?;
            let version = u.int_in_range(2..=5)?;
            let base = *u.choose(&[0, 0x500, 1 << 40])?;
            let mut out = vec![0x77; 3];
            let s = source(&[], version, base);
            put_ranges(&mut out, s.encoding, base, &ranges);
            let read = read_ranges(&source(&out, version, base), 3).unwrap();
            assert_eq!(read.entries, ranges);

            let inline = version == 5 && u.arbitrary()?;
            let mut locations = Vec::new();
            for range in &ranges {
                let views = (u.int_in_range(0..=3)?, u.int_in_range(0..=200)?);
                locations.push(Location {
                    range: Some(range.clone()),
                    expression: vec![1; u.int_in_range(0..=3)?].into(),
                    views: if inline { views } else { (0, 0) },
                });
            }
            if version == 5 {
                locations.push(Location {
                    range: None,
                    expression: vec![2].into(),
                    views: (0, 0),
                });
            }
            let at = out.len() as u64;
            put_locations(&mut out, s.encoding, base, &locations, inline).unwrap();
            let mut read = List::default();
            read_locations(&source(&out, version, base), at, None, &mut read).unwrap();
            assert_eq!(read.entries, locations);
            Ok(())
        });
    }

    /// GCC writes the difference of two labels, the second of which is in front of the first: it was read as 4 GiB of
    /// code, and debuggers found that entry before the one of a function that had moved.
    #[test]
    fn entries_of_split_units_with_negative_lengths_hold_nowhere() {
        let mut out = vec![kind::STARTX_LENGTH, 0];
        out.extend((-1i32).to_le_bytes());
        out.extend([1, 0, 0x9f, kind::END_OF_LIST]);
        let address = 0x14bfu64.to_le_bytes();
        let source = Source {
            is_split: true,
            pool: Pool {
                section: &address,
                base: Some(0),
            },
            ..source(&out, 4, 0)
        };
        let mut read = List::default();
        read_locations(&source, 0, None, &mut read).unwrap();
        let range = read.entries[0].range.clone();
        assert_eq!(range.map(|r| (r.start, r.end)), Some((0x14bf, 0x14be)));
    }

    #[test]
    fn neighbours_share_a_base_where_that_is_shorter() {
        let mut out = Vec::new();
        let s = source(&[], 5, 0);
        put_ranges(&mut out, s.encoding, 0, &[0x5100..0x5172, 0x5190..0x520a]);
        let mut expected = vec![kind::RNG_BASE_ADDRESS, 0, 0x51, 0, 0, 0, 0, 0, 0];
        expected.extend([
            kind::OFFSET_PAIR,
            0,
            0x72,
            kind::OFFSET_PAIR,
            0x90,
            1,
            0x8a,
            2,
            0,
        ]);
        assert_eq!(out, expected);
    }
}

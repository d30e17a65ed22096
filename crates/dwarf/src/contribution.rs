//! Contributions of `.debug_rnglists` and `.debug_loclists`, and how they grow.
//!
//! | bytes | field |
//! |---|---|
//! | 4, or 12 in DWARF 64 | length of what follows |
//! | 2, 1, 1 | version 5, size of addresses, size of segment selectors |
//! | 4 | number of offsets |
//! | 4 or 8 each | offsets of lists, relative to the first of these fields (the *base* that units name) |
//! | | lists |
//!
//! New lists of a unit are put after the old ones of its contribution: LLDB does not find lists in another
//! one. Units without a contribution get one of their own at the section's end. Old lists stay, also those
//! that nothing refers to any more.

use crate::Error;
use crate::read::{Reader, fits, number, part, put_number, set_number};
use crate::splice::Splices;

/// One contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contribution {
    /// Its first byte.
    pub start: u64,
    /// The first offset.
    pub base: u64,
    /// The first list.
    pub lists: u64,
    /// One past its last byte.
    pub end: u64,
    /// 4 or 8.
    pub offset_size: u8,
    /// Each offset is behind the one before it, so that an index and a list are of each other alone.
    pub ascends: bool,
}

impl Contribution {
    /// Number of offsets.
    pub fn count(&self) -> u64 {
        (self.lists - self.base) / u64::from(self.offset_size)
    }

    /// The index of the list at an offset of the section, if offsets ascend and it has one.
    pub fn index_of(&self, section: &[u8], offset: u64) -> Option<u64> {
        let wanted = offset.checked_sub(self.base).filter(|_| self.ascends)?;
        let slots =
            section.get(usize::try_from(self.base).ok()?..usize::try_from(self.lists).ok()?)?;
        let (mut low, mut high) = (0, self.count() as usize);
        let size = usize::from(self.offset_size);
        while low < high {
            let middle = low + (high - low) / 2;
            let slot = number(slots.get(middle * size..(middle + 1) * size)?);
            if slot == wanted {
                return Some(middle as u64);
            }
            (low, high) = if slot < wanted {
                (middle + 1, high)
            } else {
                (low, middle)
            };
        }
        None
    }
}

/// Reads all contributions of a section.
pub(crate) fn read_all(section: &[u8], name: &'static str) -> Result<Vec<Contribution>, Error> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < section.len() as u64 {
        let mut r = Reader::new(section, at, name)?;
        let offset_size = r.unit_length()?;
        let (version, address_size, segment_size) = (r.u16()?, r.u8()?, r.u8()?);
        if (version, address_size, segment_size) != (5, 8, 0) {
            return Err(r.error(format!(
                "lists of version {version}, addresses of {address_size} bytes, segments of {segment_size}; 5, 8 and 0 are possible"
            )));
        }
        let count = r.number(4)?;
        let base = r.at as u64;
        let slots = r.bytes(count * u64::from(offset_size))?;
        let slots = slots.chunks_exact(usize::from(offset_size)).map(number);
        out.push(Contribution {
            start: at,
            base,
            lists: r.at as u64,
            end: r.end as u64,
            offset_size,
            ascends: slots.is_sorted_by(|a, b| a < b),
        });
        at = r.end as u64;
    }
    Ok(out)
}

/// Index of the contribution that an offset is in.
pub(crate) fn holding(all: &[Contribution], offset: u64) -> Option<usize> {
    let i = all.partition_point(|c| c.end <= offset);
    all.get(i).filter(|c| c.start <= offset).map(|_| i)
}

/// What a contribution gains.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growth {
    /// New lists.
    pub lists: Vec<u8>,
    /// Offsets that change: index, and where the list begins in `lists`.
    pub slots: Vec<(u64, u64)>,
    /// Offsets that are added: where each list begins in `lists`.
    pub new_slots: Vec<u64>,
}

/// Writes a contribution's growth. Returns how far behind its start its new lists begin.
pub(crate) fn grow(
    section: &[u8],
    name: &'static str,
    c: &Contribution,
    growth: Growth,
    out: &mut Splices,
) -> Result<u64, Error> {
    let error = |what: String| Error::new(name, c.start, what);
    let first = out.len();
    let size = u64::from(c.offset_size);
    let old_slots = c.count();
    let added = growth.new_slots.len() as u64;
    let length_end = c.start + if c.offset_size == 8 { 12 } else { 4 };
    let new_len = c.end - length_end + size * added + growth.lists.len() as u64;
    if c.offset_size == 4 && new_len >= 0xffff_fff0 {
        return Err(error(format!(
            "it would grow to {new_len:#x} bytes, more than its format allows"
        )));
    }
    let mut header = Vec::new();
    if c.offset_size == 8 {
        header.extend([0xff; 4]);
    }
    put_number(&mut header, new_len, c.offset_size);
    header.extend_from_slice(part(section, length_end..c.base.saturating_sub(4), name)?);
    put_number(&mut header, old_slots + added, 4);
    out.push(c.start..c.base, &header);

    // Relative to the base, new lists begin after all slots and old lists.
    let lists = (c.end - c.base) + size * added;
    if added > 0 || !growth.slots.is_empty() {
        let mut table = Vec::new();
        for slot in part(section, c.base..c.lists, name)?.chunks_exact(size as usize) {
            put_number(&mut table, number(slot) + size * added, c.offset_size);
        }
        for (index, at) in &growth.slots {
            let value = lists + at;
            let place = index
                .checked_mul(size)
                .filter(|_| *index < old_slots && fits(value, c.offset_size));
            let field = place.and_then(|place| {
                let rest = table.get_mut(place as usize..)?;
                rest.get_mut(..size as usize)
            });
            let Some(field) = field else {
                return Err(error(format!(
                    "list {index} of {old_slots} cannot be at {value:#x}"
                )));
            };
            set_number(field, value);
        }
        for at in &growth.new_slots {
            put_number(&mut table, lists + at, c.offset_size);
        }
        out.push(c.base..c.lists, &table);
    }
    out.push(c.end..c.end, &growth.lists);
    out.end_part(c.start..c.end, first);
    Ok(c.end - c.start + size * added)
}

/// The header of a new contribution of so many bytes of lists, without offsets.
pub(crate) fn new_header(lists: usize) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, lists as u64 + 8, 4);
    out.extend([5, 0, 8, 0, 0, 0, 0, 0]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contribution_grows_in_the_middle_and_offsets_into_it_stay_true() {
        let mut section = new_header(3);
        section.extend([0xa; 3]);
        let at = section.len();
        // Two offsets, and two lists of three bytes.
        put_number(&mut section, 8 + 8 + 6, 4);
        section.extend([5, 0, 8, 0, 2, 0, 0, 0]);
        put_number(&mut section, 8, 4);
        put_number(&mut section, 11, 4);
        section.extend([1, 1, 0, 2, 2, 0]);
        let last = section.len() as u64;
        section.extend(new_header(1));
        section.push(9);
        let all = read_all(&section, ".debug_x").unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(holding(&all, at as u64 + 20), Some(1));
        let growth = Growth {
            lists: vec![3, 0, 4, 0],
            slots: vec![(0, 2)],
            new_slots: vec![0],
        };
        let mut out = Splices::default();
        let lists = grow(&section, ".debug_x", &all[1], growth, &mut out).unwrap();
        let new = out.apply(&section);
        let again = read_all(&new, ".debug_x").unwrap();
        assert_eq!(again.len(), 3);
        let base = out.shift(all[1].base).unwrap() as usize;
        assert_eq!(base as u64, again[1].base);
        let list =
            |slot: usize| new[base + number(&new[base + 4 * slot..base + 4 * slot + 4]) as usize];
        assert_eq!([list(0), list(1), list(2)], [4, 2, 3]);
        let start = out.shift(all[1].start).unwrap();
        assert_eq!(new[(start + lists) as usize], 3);
        assert_eq!(out.shift(last), Some(again[2].start));
        assert_eq!(
            read_all(&section[..20], ".debug_x").unwrap_err().section,
            ".debug_x"
        );
    }
}

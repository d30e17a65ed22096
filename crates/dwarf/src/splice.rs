//! A section's changes: stretches of old bytes and the new bytes that take their place.
//!
//! Everything that is not named stays, so a section costs memory only for what is new in it, and offsets into it are
//! translated by adding up differences of lengths. Splices are ascending and do not overlap. Several may be at the same
//! place if all but the last are insertions (no old bytes); they follow each other in the order in which they came.
//!
//! # Old bytes that must stay where they are
//!
//! If a unit could not be read, its offsets into other sections cannot be changed, so what they lead to must stay
//! in its place. Then no section grows in its middle: each *part* that changes (an abbreviation table, a line
//! program, a contribution) is written a second time at the section's end ([`Splices::behind`]), and offsets of
//! units that were read lead there.

use std::ops::Range;

/// Changes of one section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splices {
    list: Places,
    bytes: Vec<u8>,
    /// Old bytes that are replaced.
    removed: u64,
    /// Parts of the section that change, by their splices.
    parts: Vec<Part>,
    /// Parts that were written again at the section's end.
    again: Vec<Again>,
}

/// A part of a section, and which splices are its.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    old: Range<u64>,
    splices: Range<usize>,
}

/// A part that is in the section a second time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Again {
    old: Range<u64>,
    /// Where the second one begins.
    start: u64,
    /// What differs in it; offsets are relative to its start.
    inner: Splices,
}

/// One splice: where it begins, how many old bytes were replaced in front of it, and how many new ones took their
/// place. How many it has itself the next one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place<N> {
    start: N,
    removed: N,
    bytes: N,
}

/// All of them. There are millions, and hardly a section has 4 GiB, so they are in 32 bits until one has no room.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Places {
    Narrow(Vec<Place<u32>>),
    Wide(Vec<Place<u64>>),
}

impl Default for Places {
    fn default() -> Self {
        Places::Narrow(Vec::new())
    }
}

impl Place<u64> {
    /// The same in 32 bits, if it has room.
    fn narrow(self) -> Option<Place<u32>> {
        Some(Place {
            start: u32::try_from(self.start).ok()?,
            removed: u32::try_from(self.removed).ok()?,
            bytes: u32::try_from(self.bytes).ok()?,
        })
    }
}

impl Place<u32> {
    fn wide(self) -> Place<u64> {
        Place {
            start: self.start.into(),
            removed: self.removed.into(),
            bytes: self.bytes.into(),
        }
    }
}

impl Places {
    fn len(&self) -> usize {
        match self {
            Places::Narrow(list) => list.len(),
            Places::Wide(list) => list.len(),
        }
    }

    #[inline]
    fn get(&self, i: usize) -> Option<Place<u64>> {
        match self {
            Places::Narrow(list) => list.get(i).map(|place| place.wide()),
            Places::Wide(list) => list.get(i).copied(),
        }
    }

    fn reserve(&mut self, more: usize) {
        match self {
            Places::Narrow(list) => list.reserve_exact(more),
            Places::Wide(list) => list.reserve_exact(more),
        }
    }

    fn push(&mut self, place: Place<u64>) {
        match (&mut *self, place.narrow()) {
            (Places::Narrow(list), Some(narrow)) => list.push(narrow),
            (Places::Wide(list), _) => list.push(place),
            (Places::Narrow(list), None) => {
                let mut wide: Vec<Place<u64>> = Vec::with_capacity(2 * list.len() + 1);
                wide.extend(list.iter().map(|place| place.wide()));
                wide.push(place);
                *self = Places::Wide(wide);
            }
        }
    }
}

impl Splices {
    /// Replaces the old bytes of `old` by `new`. Panics if it begins in front of the end of the one before it.
    pub fn push(&mut self, old: Range<u64>, new: &[u8]) {
        assert!(
            old.start <= old.end,
            "a splice that ends in front of its start"
        );
        let last = self.list.len().checked_sub(1);
        let behind = last.and_then(|last| self.end(last));
        assert!(
            behind.is_none_or(|end| end <= old.start),
            "splices must ascend"
        );
        self.list.push(Place {
            start: old.start,
            removed: self.removed,
            bytes: self.bytes.len() as u64,
        });
        self.removed += old.end - old.start;
        self.bytes.extend_from_slice(new);
    }

    /// Appends the pieces of one unit or line program.
    pub(crate) fn take(&mut self, pieces: &Pieces) {
        pieces.iter().for_each(|(old, new)| self.push(old, new));
    }

    /// Makes room for so many more splices and new bytes.
    pub(crate) fn reserve(&mut self, splices: usize, bytes: usize) {
        self.list.reserve(splices);
        self.bytes.reserve_exact(bytes);
    }

    /// Says that the splices from the `first` on are those of one part of the section.
    pub(crate) fn end_part(&mut self, old: Range<u64>, first: usize) {
        if first < self.list.len() {
            let splices = first..self.list.len();
            self.parts.push(Part { old, splices });
        }
    }

    /// The same changes with all old bytes in their places: parts that change are in the section a second time, at
    /// its end.
    pub(crate) fn behind(&self, old: &[u8]) -> Splices {
        let mut out = Splices::default();
        let of_part = |i: usize| {
            let part = self.parts.partition_point(|p| p.splices.end <= i);
            self.parts.get(part).is_some_and(|p| p.splices.start <= i)
        };
        for (i, (range, new)) in self.iter().enumerate() {
            if !of_part(i) {
                out.push(range, new);
            }
        }
        let len = old.len() as u64;
        let start = out.new_len(len);
        let mut added = Vec::new();
        for part in &self.parts {
            let mut inner = Splices::default();
            let splices = &part.splices;
            for (range, new) in self.iter().skip(splices.start).take(splices.len()) {
                inner.push(
                    range.start - part.old.start..range.end - part.old.start,
                    new,
                );
            }
            let begins = start + added.len() as u64;
            // Parts are of this section.
            let old = old.get(part.old.start as usize..part.old.end as usize);
            added.extend(inner.apply(old.unwrap_or_default()));
            out.again.push(Again {
                old: part.old.clone(),
                start: begins,
                inner,
            });
        }
        if !added.is_empty() {
            out.push(len..len, &added);
        }
        out
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.list.len() == 0
    }

    /// Number of splices.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The i-th: the old bytes that are replaced, and what replaces them.
    pub fn get(&self, i: usize) -> Option<(Range<u64>, &[u8])> {
        let splice = self.list.get(i)?;
        let (removed, bytes) = self.before(i + 1);
        // They are in memory.
        let new = self.bytes.get(splice.bytes as usize..bytes as usize);
        let end = splice.start + (removed - splice.removed);
        Some((splice.start..end, new.unwrap_or_default()))
    }

    /// Old bytes that are replaced by the first splices, and new ones that take their place.
    fn before(&self, splices: usize) -> (u64, u64) {
        let all = (self.removed, self.bytes.len() as u64);
        let next = self.list.get(splices);
        next.map_or(all, |next| (next.removed, next.bytes))
    }

    /// One past the last old byte of the i-th.
    fn end(&self, i: usize) -> Option<u64> {
        let splice = self.list.get(i)?;
        Some(splice.start + (self.before(i + 1).0 - splice.removed))
    }

    /// How many end at an offset or in front of it.
    fn ended(&self, offset: u64) -> usize {
        let (mut low, mut high) = (0, self.list.len());
        while low < high {
            let middle = low + (high - low) / 2;
            (low, high) = match self.end(middle) {
                Some(end) if end <= offset => (middle + 1, high),
                _ => (low, middle),
            };
        }
        low
    }

    /// The old bytes that are replaced and what replaces them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &[u8])> {
        (0..self.list.len()).filter_map(|i| self.get(i))
    }

    /// Length of the section that was `old_len` bytes long.
    pub fn new_len(&self, old_len: u64) -> u64 {
        old_len - self.removed + self.bytes.len() as u64
    }

    /// New offset of what began at the old offset; `None` if it is inside of replaced bytes.
    pub fn shift(&self, offset: u64) -> Option<u64> {
        let part = self.again.partition_point(|a| a.old.end <= offset);
        if let Some(part) = self.again.get(part).filter(|a| a.old.start <= offset) {
            let inside = part.inner.shift(offset - part.old.start)?;
            return Some(part.start + inside);
        }
        // Those that end at the offset or in front of it: their bytes are all in front of what begins there.
        let before = self.ended(offset);
        if self.list.get(before).is_some_and(|s| s.start < offset) {
            return None;
        }
        // `end <= offset` holds for an insertion at the offset as well: what begins there comes after it.
        Some(self.place(before, offset))
    }

    /// New offset of the first byte of the i-th splice; 0 if there is no such splice.
    pub fn start_of(&self, i: usize) -> u64 {
        let splice = self.list.get(i);
        splice.map_or(0, |splice| self.place(i, splice.start))
    }

    /// New offset of what begins at `offset` after the first `before` splices.
    fn place(&self, before: usize, offset: u64) -> u64 {
        let (removed, added) = self.before(before);
        offset - removed + added
    }

    /// The new section. `old` is the section that the splices were made for.
    pub fn apply(&self, old: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_to(&mut out, old);
        out
    }

    /// Appends the new section to a buffer.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>, old: &[u8]) {
        out.reserve_exact(self.new_len(old.len() as u64) as usize);
        let mut at = 0;
        for (range, new) in self.iter() {
            out.extend_from_slice(old.get(at..range.start as usize).unwrap_or_default());
            out.extend_from_slice(new);
            at = range.end as usize;
        }
        out.extend_from_slice(old.get(at..).unwrap_or_default());
    }
}

/// Replaced bytes of one unit or line program: millions of a few bytes each in all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    /// Where each begins, how many bytes were there, and how many take their place.
    list: Vec<(u64, u32, u32)>,
    pub bytes: Vec<u8>,
}

impl Pieces {
    /// Says what the bytes replace that were appended from a place on.
    pub fn end(&mut self, old: Range<u64>, from: usize) {
        // A unit has less than 4 GiB, and so has a line program.
        let (old_len, new_len) = (old.end - old.start, self.bytes.len() - from);
        self.list.push((old.start, old_len as u32, new_len as u32));
    }

    /// Appends a piece.
    pub fn push(&mut self, old: Range<u64>, new: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(new);
        self.end(old, from);
    }

    /// Puts new bytes in front of the piece of a number, without replacing any.
    pub fn insert(&mut self, number: usize, at: u64, new: &[u8]) {
        let before = self.list.iter().take(number);
        let from = before
            .map(|(_, _, new_len)| *new_len as usize)
            .sum::<usize>();
        self.list.insert(number, (at, 0, new.len() as u32));
        self.bytes.splice(from..from, new.iter().copied());
    }

    /// Number of pieces, and of new bytes.
    pub fn size(&self) -> (usize, usize) {
        (self.list.len(), self.bytes.len())
    }

    /// What is replaced, and by what, in the order in which it came.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &[u8])> {
        let mut rest = &self.bytes[..];
        self.list.iter().map(move |(start, old_len, new_len)| {
            let (new, after) = rest
                .split_at_checked(*new_len as usize)
                .unwrap_or((rest, &[]));
            rest = after;
            (*start..*start + u64::from(*old_len), new)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splices_past_the_end_of_a_shorter_section_leave_what_is_there() {
        let mut s = Splices::default();
        s.push(2..3, b"x");
        s.push(6..9, b"yz");
        assert_eq!(s.apply(b"0123"), b"01xyz");
        assert_eq!((s.start_of(1), s.start_of(2)), (6, 0));
    }

    #[test]
    fn offsets_follow_what_they_named() {
        let mut s = Splices::default();
        s.push(2..4, b"abc");
        s.push(6..6, b"xy");
        s.push(6..7, b"");
        let new = s.apply(b"0123456789");
        assert_eq!(new, b"01abc45xy789");
        assert_eq!(s.new_len(10), new.len() as u64);
        let at = |o| s.shift(o);
        assert_eq!(
            [at(0), at(2), at(3), at(4), at(7)],
            [Some(0), Some(2), None, Some(5), Some(9)]
        );
        assert_eq!(at(10), Some(12));
        assert_eq!([s.start_of(0), s.start_of(1), s.start_of(2)], [2, 7, 9]);
        assert_eq!(Splices::default().shift(7), Some(7));
    }

    #[test]
    fn splices_of_a_section_of_more_than_4_gib_are_like_others() {
        let mut s = Splices::default();
        s.push(2..4, b"abc");
        s.push(6..6, b"xy");
        let far = 5 << 32;
        s.push(far..far + (1 << 33), b"z");
        s.push(far + (1 << 33)..far + (1 << 33) + 1, b"");
        let all: Vec<_> = s.iter().collect();
        assert_eq!(
            all,
            [
                (2..4, &b"abc"[..]),
                (6..6, b"xy"),
                (far..far + (1 << 33), b"z"),
                (far + (1 << 33)..far + (1 << 33) + 1, b"")
            ]
        );
        assert_eq!([s.shift(5), s.shift(7)], [Some(6), Some(10)]);
        assert_eq!([s.shift(far), s.shift(far + 1)], [Some(far + 3), None]);
        assert_eq!(s.new_len(6 << 32), (6 << 32) - (1 << 33) + 3);
        assert_eq!(s.start_of(3), far + 4);
    }

    #[test]
    fn parts_that_change_are_written_behind_what_stays() {
        let mut s = Splices::default();
        s.push(2..4, b"abc");
        s.push(5..5, b"xy");
        s.end_part(1..5, 0);
        s.push(10..10, b"end");
        let behind = s.behind(b"0123456789");
        let new = behind.apply(b"0123456789");
        assert_eq!(new, b"0123456789end1abc4xy");
        let at = |o| behind.shift(o);
        assert_eq!(
            [at(0), at(1), at(3), at(4), at(5), at(9)],
            [Some(0), Some(13), None, Some(17), Some(5), Some(9)]
        );
    }
}

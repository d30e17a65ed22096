//! Which bytes of a function's new code belong to instructions that were paired, and what those correspond to.
//!
//! Places are counted in the new ranges, one after the other. A bit for each place says whether an instruction has
//! it, another whether one begins there; what it corresponds to is a number, which means something only there. So
//! the numbers need not be cleared from function to function, and whether places are free is asked by words of 64.

/// By place: whether it is taken, whether an instruction begins there, and which old one it corresponds to.
#[derive(Default)]
pub(super) struct Marks {
    len: usize,
    taken: Vec<u64>,
    begins: Vec<u64>,
    numbers: Vec<u32>,
}

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Free,
    /// An instruction begins, which corresponds to this.
    Begins(u32),
    /// The inside of one.
    Inside,
}

/// The words that have bits `from` to `to`, and those bits.
fn words(from: usize, to: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = if from < to { to.div_ceil(64) } else { 0 };
    (from / 64..end).map(move |at| {
        let low = from.saturating_sub(at * 64);
        let high = (to - at * 64).min(64);
        (at, (u64::MAX >> (64 - (high - low))) << low)
    })
}

/// Bits that are set, ascending.
fn ones(words: &[u64]) -> impl Iterator<Item = usize> {
    let all = words.iter().enumerate();
    all.flat_map(|(at, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (bit < 64).then_some(at * 64 + bit)
        })
    })
}

impl Marks {
    /// So many places, all free.
    pub(super) fn reset(&mut self, len: usize) {
        self.len = len;
        for bits in [&mut self.taken, &mut self.begins] {
            bits.clear();
            bits.resize(len.div_ceil(64), 0);
        }
        if self.numbers.len() < len {
            self.numbers.resize(len, 0);
        }
    }

    fn is_set(bits: &[u64], at: usize) -> bool {
        bits.get(at / 64)
            .is_some_and(|word| word >> (at % 64) & 1 != 0)
    }

    /// What is at a place; `None` beyond the last.
    #[inline]
    pub(super) fn at(&self, place: usize) -> Option<Mark> {
        if place >= self.len {
            return None;
        }
        Some(if !Self::is_set(&self.taken, place) {
            Mark::Free
        } else if !Self::is_set(&self.begins, place) {
            Mark::Inside
        } else {
            Mark::Begins(self.numbers.get(place).copied().unwrap_or(0))
        })
    }

    /// What the instruction that begins at a place corresponds to, if one begins there.
    #[inline]
    pub(super) fn number(&self, place: usize) -> Option<u32> {
        match self.at(place) {
            Some(Mark::Begins(number)) => Some(number),
            _ => None,
        }
    }

    /// Whether all of these places are there.
    #[inline]
    pub(super) fn has(&self, from: usize, to: usize) -> bool {
        from <= to && to <= self.len
    }

    /// Takes places, if all of them are there and free.
    pub(super) fn take(&mut self, from: usize, to: usize) -> bool {
        if !self.has(from, to) {
            return false;
        }
        let taken = |(at, bits): (usize, u64)| self.taken.get(at).is_none_or(|w| w & bits != 0);
        if words(from, to).any(taken) {
            return false;
        }
        for (at, bits) in words(from, to) {
            if let Some(word) = self.taken.get_mut(at) {
                *word |= bits;
            }
        }
        true
    }

    /// The same, for an instruction that corresponds to `number`.
    #[inline]
    pub(super) fn begin(&mut self, from: usize, to: usize, number: u32) -> bool {
        if from >= to || to > self.len {
            return false;
        }
        // Most are in one word.
        if from / 64 == (to - 1) / 64 {
            let bits = (u64::MAX >> (64 - (to - from))) << (from % 64);
            match self.taken.get_mut(from / 64) {
                Some(word) if *word & bits == 0 => *word |= bits,
                _ => return false,
            }
        } else if !self.take(from, to) {
            return false;
        }
        if let Some(word) = self.begins.get_mut(from / 64)
            && let Some(own) = self.numbers.get_mut(from)
        {
            *word |= 1 << (from % 64);
            *own = number;
        }
        true
    }

    /// Where instructions begin, ascending, and what they correspond to.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, u32)> {
        ones(&self.begins).map(|place| (place, self.numbers.get(place).copied().unwrap_or(0)))
    }

    /// The first of them, and each at which the distance between both changes.
    pub(super) fn runs(&self, runs: &mut Vec<(u32, u32)>) {
        runs.clear();
        let mut distance = None;
        for (word, bits) in self.begins.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let place = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let number = self.numbers.get(place).copied().unwrap_or(0);
                let Ok(place) = u32::try_from(place) else {
                    return;
                };
                let here = Some(number.wrapping_sub(place));
                if here != distance {
                    distance = here;
                    runs.push((place, number));
                }
            }
        }
    }

    /// A bit for each place where an instruction begins.
    pub(super) fn beginnings(&self) -> &[u64] {
        &self.begins
    }

    /// The first free place of these, or `to`. Where there are no places, none is free.
    pub(super) fn free_from(&self, from: usize, to: usize) -> usize {
        if from < self.len {
            self.next(from, to, |word| !word)
        } else {
            to
        }
    }

    /// The first place of these that is taken, or `to`.
    pub(super) fn taken_from(&self, from: usize, to: usize) -> usize {
        self.next(from, to, |word| word)
    }

    fn next(&self, from: usize, to: usize, of: impl Fn(u64) -> u64) -> usize {
        let found = words(from, to.max(from)).find_map(|(at, bits)| {
            let left = of(self.taken.get(at).copied().unwrap_or(0)) & bits;
            (left != 0).then(|| at * 64 + left.trailing_zeros() as usize)
        });
        found.unwrap_or(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_once_and_free_ones_found() {
        let mut marks = Marks::default();
        marks.reset(200);
        assert!(marks.begin(60, 70, 7));
        assert_eq!(marks.at(59), Some(Mark::Free));
        assert_eq!(marks.at(60), Some(Mark::Begins(7)));
        assert_eq!(marks.at(64), Some(Mark::Inside));
        assert_eq!(marks.at(70), Some(Mark::Free));
        assert_eq!(marks.at(200), None);
        assert!(!marks.begin(69, 71, 8), "overlaps");
        assert!(!marks.begin(50, 61, 8), "overlaps");
        assert!(!marks.begin(199, 201, 8), "beyond the end");
        assert!(!marks.begin(80, 80, 8), "nothing");
        assert_eq!(marks.at(70), Some(Mark::Free));
        assert!(marks.begin(0, 60, 1) && marks.begin(70, 199, 2));
        assert_eq!(marks.free_from(0, 200), 199);
        assert_eq!(marks.taken_from(199, 200), 200);
        assert_eq!(marks.free_from(0, 64), 64);
        assert!(marks.take(199, 200));
        assert_eq!(marks.number(199), None);
        assert_eq!(marks.free_from(0, 200), 200);
        let mut runs = vec![(1, 1)];
        marks.runs(&mut runs);
        assert_eq!(runs, [(0, 1), (60, 7), (70, 2)]);
        assert_eq!(marks.all().collect::<Vec<_>>(), [(0, 1), (60, 7), (70, 2)]);
        marks.reset(10);
        assert_eq!((marks.at(0), marks.at(10)), (Some(Mark::Free), None));
        assert_eq!(marks.free_from(0, 10), 0);
        assert_eq!(marks.taken_from(0, 10), 10);
    }

    #[test]
    fn words_cover_every_bit_once() {
        for from in 0..130 {
            for to in from..200 {
                let mut bits = [0u64; 4];
                for (at, set) in words(from, to) {
                    assert_eq!(bits[at] & set, 0);
                    bits[at] |= set;
                }
                assert!(ones(&bits).eq(from..to), "{from}..{to}");
            }
        }
    }
}

//! Caches with sets, of which the least recently used line goes.

/// A cache of `SETS` sets, a power of two, with `WAYS` lines each.
pub(super) struct Cache<const SETS: usize, const WAYS: usize> {
    /// By set: lines, the most recently used first. [`EMPTY`] where there is none.
    sets: Vec<[u32; WAYS]>,
    /// How many times a line was not there.
    pub(super) misses: u64,
}

/// Instruction cache: 32 KiB in lines of 64 bytes.
pub(super) type InstructionCache = Cache<64, 8>;
/// Translation buffer: 64 pages.
pub(super) type TranslationBuffer = Cache<16, 4>;

/// No line.
const EMPTY: u32 = u32::MAX;

impl<const SETS: usize, const WAYS: usize> Cache<SETS, WAYS> {
    pub(super) fn new() -> Self {
        Cache {
            sets: vec![[EMPTY; WAYS]; SETS],
            misses: 0,
        }
    }

    /// Touches a line.
    #[inline]
    pub(super) fn touch(&mut self, line: u32) {
        let set = &mut self.sets[line as usize % SETS];
        if set[0] == line {
            return;
        }
        let found = set.iter().position(|l| *l == line);
        self.misses += u64::from(found.is_none());
        let last = found.unwrap_or(WAYS - 1);
        set.copy_within(0..last, 1);
        set[0] = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses<const SETS: usize, const WAYS: usize>(lines: &[u32]) -> u64 {
        let mut cache = Cache::<SETS, WAYS>::new();
        lines.iter().for_each(|line| cache.touch(*line));
        cache.misses
    }

    #[test]
    fn a_line_misses_once_while_its_set_has_room() {
        assert_eq!(misses::<4, 2>(&[0, 4, 0, 4, 0, 4]), 2);
        // Three lines of a set of two that take turns miss each time; in another set they would not.
        assert_eq!(misses::<4, 2>(&[0, 4, 8, 0, 4, 8]), 6);
        assert_eq!(misses::<4, 2>(&[0, 4, 9, 0, 4, 9]), 3);
    }

    #[test]
    fn the_least_recently_used_line_goes() {
        // 0 was used after 4, so 8 takes the place of 4.
        assert_eq!(misses::<4, 2>(&[0, 4, 0, 8, 0]), 3);
        assert_eq!(misses::<4, 2>(&[0, 4, 0, 8, 4]), 4);
    }
}

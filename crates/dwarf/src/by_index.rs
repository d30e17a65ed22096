//! Maps and sets whose keys are indexes: most are near to each other and begin at 0, so what they have is in a list, or
//! in words of bits. A file may have any others; those are in a table of hashes, as a list would be as long as the
//! highest.

use rustc_hash::FxHashMap;

/// A map by index.
#[derive(Clone, Debug)]
pub(crate) struct ByIndex<V> {
    dense: Vec<Option<V>>,
    others: FxHashMap<u64, V>,
    /// Values that are there.
    len: usize,
}

impl<V> Default for ByIndex<V> {
    fn default() -> Self {
        ByIndex {
            dense: Vec::new(),
            others: FxHashMap::default(),
            len: 0,
        }
    }
}

impl<V: Copy> ByIndex<V> {
    /// A map for so many values.
    pub fn for_values(count: usize) -> Self {
        ByIndex {
            len: count,
            ..ByIndex::default()
        }
    }

    /// The value at an index.
    #[inline]
    pub fn get(&self, index: u64) -> Option<V> {
        let dense = usize::try_from(index).ok().and_then(|i| self.dense.get(i));
        match dense {
            Some(Some(value)) => Some(*value),
            _ if self.others.is_empty() => None,
            _ => self.others.get(&index).copied(),
        }
    }

    /// Sets the value at an index.
    pub fn insert(&mut self, index: u64, value: V) {
        let near = usize::try_from(index)
            .ok()
            .filter(|i| *i < 64 + 4 * self.len);
        let Some(i) = near.filter(|_| !self.others.contains_key(&index)) else {
            self.others.insert(index, value);
            return;
        };
        if i >= self.dense.len() {
            self.dense.resize(i + 1, None);
        }
        if let Some(place) = self.dense.get_mut(i) {
            self.len += usize::from(place.is_none());
            *place = Some(value);
        }
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        self.dense.clear();
        self.others.clear();
        self.len = 0;
    }

    /// Gives back memory that values may need later.
    pub fn shrink_to_fit(&mut self) {
        self.dense.shrink_to_fit();
        self.others.shrink_to_fit();
    }

    /// Whether none is there.
    pub fn is_empty(&self) -> bool {
        self.dense.is_empty() && self.others.is_empty()
    }

    /// All indexes with their values, in an order that depends on how they came alone.
    pub fn iter(&self) -> impl Iterator<Item = (u64, V)> {
        let dense = (0..).zip(&self.dense);
        let dense = dense.filter_map(|(i, value)| Some((i, (*value)?)));
        dense.chain(self.others.iter().map(|(i, value)| (*i, *value)))
    }
}

/// A set of indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexes {
    /// Words of 64 of them, by number.
    words: FxHashMap<u64, u64>,
}

impl Indexes {
    /// Adds an index; whether it is new.
    pub fn insert(&mut self, index: u64) -> bool {
        let word = self.words.entry(index >> 6).or_default();
        let before = *word;
        *word |= 1 << (index & 63);
        *word != before
    }

    /// Forgets all indexes.
    pub fn clear(&mut self) {
        self.words.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn indexes_have_their_last_values_in_whatever_order_they_come() {
        arbtest::arbtest(|u| {
            let mut map = ByIndex::for_values(u.int_in_range(0..=9)?);
            let (mut right, mut set, mut all) =
                (BTreeMap::new(), Indexes::default(), BTreeSet::new());
            assert!(map.is_empty());
            for i in 0..u.int_in_range(1..=60)? {
                let index = match u.int_in_range(0..=3)? {
                    0 => u.int_in_range(0..=400)?,
                    1 => u.arbitrary()?,
                    _ => u.int_in_range(0..=9)?,
                };
                if u.arbitrary()? {
                    map.insert(index, i);
                    right.insert(index, i);
                    assert_eq!(set.insert(index), all.insert(index));
                }
                assert_eq!(map.get(index), right.get(&index).copied());
            }
            let mut all: Vec<_> = map.iter().collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(right.clone()));
            assert_eq!(map.is_empty(), right.is_empty());
            Ok(())
        });
    }
}

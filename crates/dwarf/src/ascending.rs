//! A map whose keys come in ascending order, but for few.
//!
//! Compilers write lists in the order in which entries name them, and number them so. A sorted list takes half the
//! memory of a table of hashes, and nothing is looked up in it for a key that is greater than all before.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Ascending<K, V> {
    sorted: Vec<(K, V)>,
    /// Those that came behind a greater one.
    others: FxHashMap<K, V>,
}

impl<K, V> Default for Ascending<K, V> {
    fn default() -> Self {
        Ascending {
            sorted: Vec::new(),
            others: FxHashMap::default(),
        }
    }
}

impl<K: Copy + Ord + Hash, V: Copy> Ascending<K, V> {
    /// Whether a key is greater than all that are there.
    fn is_last(&self, key: &K) -> bool {
        self.sorted.last().is_none_or(|(last, _)| last < key)
    }

    /// Where a key is among those that ascend.
    fn find(&self, key: &K) -> Option<usize> {
        self.sorted.binary_search_by(|(k, _)| k.cmp(key)).ok()
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        if self.is_last(key) {
            return None;
        }
        let found = self.find(key).and_then(|i| self.sorted.get(i));
        found
            .map(|(_, value)| *value)
            .or_else(|| self.others.get(key).copied())
    }

    /// Forgets all keys.
    pub fn clear(&mut self) {
        self.sorted.clear();
        self.others.clear();
    }

    /// Whether none is there.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty() && self.others.is_empty()
    }

    /// All keys with their values; those that ascend come first, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (K, V)> {
        let others = self.others.iter().map(|(key, value)| (*key, *value));
        self.sorted.iter().copied().chain(others)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    /// Whether all keys are less than one.
    pub fn is_below(&self, key: &K) -> bool {
        // Others came behind a greater one.
        self.is_last(key)
    }

    /// Gives a key a value, in place of the one that it had.
    pub fn insert(&mut self, key: K, value: V) {
        if self.is_last(&key) {
            self.sorted.push((key, value));
            return;
        }
        match self.find(&key).and_then(|i| self.sorted.get_mut(i)) {
            Some(known) => known.1 = value,
            None => drop(self.others.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn keys_have_their_last_values_in_whatever_order_they_come() {
        arbtest::arbtest(|u| {
            let (mut map, mut right) = (Ascending::default(), BTreeMap::new());
            let mut next = 0u8;
            for i in 0..u.int_in_range(1..=60)? {
                next = if u.ratio(3, 4)? {
                    next.wrapping_add(1)
                } else {
                    u.arbitrary()?
                };
                if u.arbitrary()? {
                    map.insert(next, i);
                    right.insert(next, i);
                }
                assert_eq!(map.get(&next), right.get(&next).copied());
            }
            for (key, value) in &right {
                assert_eq!(map.get(key), Some(*value));
            }
            let mut all: Vec<_> = map.iter().collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(right.clone()));
            assert_eq!(map.is_empty(), right.is_empty());
            let from = u.arbitrary::<u8>()?;
            assert_eq!(map.is_below(&from), right.keys().all(|key| *key < from));
            Ok(())
        });
    }
}

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
            Ok(())
        });
    }
}

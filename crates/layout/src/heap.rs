//! A priority queue whose entries can change their key or leave: a binary heap with a table of
//! positions.
//!
//! Greedy merging changes the gain of every pair around the merged chain at each step. Pushing a
//! fresh entry and skipping the old one later would let the queue of a big switch grow to (merges ×
//! pairs); here it never holds more than one entry an item.

/// Not in the heap.
const ABSENT: u32 = u32::MAX;

/// A maximum-heap of the items `0..n`, each at most once.
pub(crate) struct Heap<K> {
    /// Heap order: the children of `i` are `2 i + 1` and `2 i + 2`.
    entries: Vec<(K, u32)>,
    /// Where each item is in `entries`.
    positions: Vec<u32>,
}

impl<K: Copy + Ord> Heap<K> {
    /// An empty heap for the items `0..items`.
    pub(crate) fn new(items: usize) -> Self {
        Self {
            entries: Vec::new(),
            positions: vec![ABSENT; items],
        }
    }

    /// The item with the largest key.
    pub(crate) fn peek(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    /// Inserts the item or changes its key.
    pub(crate) fn set(&mut self, item: u32, key: K) {
        let position = self.positions[item as usize];
        if position == ABSENT {
            self.entries.push((key, item));
            self.up(self.entries.len() - 1);
        } else {
            self.entries[position as usize].0 = key;
            self.restore(position as usize);
        }
    }

    /// Takes the item out, if it is there.
    pub(crate) fn remove(&mut self, item: u32) {
        let position = std::mem::replace(&mut self.positions[item as usize], ABSENT);
        if position != ABSENT {
            self.entries.swap_remove(position as usize);
            if (position as usize) < self.entries.len() {
                self.restore(position as usize);
            }
        }
    }

    /// Moves the entry at `position` to where its key belongs.
    fn restore(&mut self, position: usize) {
        let position = self.up(position);
        self.down(position);
    }

    fn up(&mut self, mut position: usize) -> usize {
        let entry = self.entries[position];
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.entries[parent].0 >= entry.0 {
                break;
            }
            self.place(position, self.entries[parent]);
            position = parent;
        }
        self.place(position, entry);
        position
    }

    fn down(&mut self, mut position: usize) {
        let entry = self.entries[position];
        loop {
            let mut child = 2 * position + 1;
            if child + 1 < self.entries.len() && self.entries[child + 1].0 > self.entries[child].0 {
                child += 1;
            }
            if child >= self.entries.len() || self.entries[child].0 <= entry.0 {
                break;
            }
            self.place(position, self.entries[child]);
            position = child;
        }
        self.place(position, entry);
    }

    fn place(&mut self, position: usize, entry: (K, u32)) {
        self.entries[position] = entry;
        self.positions[entry.1 as usize] = position as u32;
    }
}

/// A finite floating-point number with a total order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gain(pub(crate) f64);

impl Ord for Gain {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Gain {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Gain {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Gain {}

#[cfg(test)]
mod tests {
    use super::Heap;
    use arbtest::arbtest;

    #[test]
    fn the_top_is_the_largest_key_after_any_changes() {
        arbtest(|u| {
            let mut heap = Heap::new(8);
            let mut model: [Option<u8>; 8] = [None; 8];
            for _ in 0..u.int_in_range(0..=40)? {
                let item = u.int_in_range(0..=7u32)?;
                if u.ratio(1, 3)? {
                    heap.remove(item);
                    model[item as usize] = None;
                } else {
                    let key = u.arbitrary()?;
                    heap.set(item, key);
                    model[item as usize] = Some(key);
                }
                let top = heap.peek();
                assert_eq!(
                    top.map(|(key, _)| key),
                    model.iter().flatten().max().copied()
                );
                if let Some((key, item)) = top {
                    assert_eq!(model[item as usize], Some(key));
                }
            }
            Ok(())
        });
    }
}

//! A priority queue that says in which order equals come out.
//!
//! Of calls with the same count, size and callee, which one is inlined decides what is left over when a
//! function reaches its limit, so outputs depend on it. LLVM's order is that of the C++ library's heap, whose
//! steps are spelled out here: a new element rises only past lesser ones; when the greatest leaves, its place
//! sinks to the bottom along the greater children (the right one of equals), and the last element rises from
//! there.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes are numbers that this module gave to elements of its own lists; a file says none of them"
)]

use std::cmp::Ordering;

/// A binary heap of what `compare` orders; equals come out in the order of the C++ library's `priority_queue`.
pub struct Queue<T> {
    items: Vec<T>,
    compare: fn(&T, &T) -> Ordering,
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new(compare: fn(&T, &T) -> Ordering) -> Self {
        Queue {
            items: Vec::new(),
            compare,
        }
    }

    fn less(&self, a: usize, b: usize) -> bool {
        (self.compare)(&self.items[a], &self.items[b]) == Ordering::Less
    }

    /// Adds an element.
    pub fn push(&mut self, item: T) {
        self.items.push(item);
        self.rise(self.items.len() - 1);
    }

    /// Takes the greatest element out.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.items.pop()?;
        if self.items.is_empty() {
            return Some(last);
        }
        // The first place sinks: swapping keeps what is in it on top of the way.
        let (mut hole, len) = (0, self.items.len());
        let mut right = 2;
        while right < len {
            let child = if self.less(right, right - 1) {
                right - 1
            } else {
                right
            };
            self.items.swap(hole, child);
            hole = child;
            right = 2 * hole + 2;
        }
        if right == len {
            self.items.swap(hole, right - 1);
            hole = right - 1;
        }
        let greatest = std::mem::replace(&mut self.items[hole], last);
        self.rise(hole);
        Some(greatest)
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.less((at - 1) / 2, at) {
            self.items.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_comes_first_and_equals_as_in_the_c_plus_plus_library() {
        let mut queue = Queue::new(|a: &(u32, char), b: &(u32, char)| a.0.cmp(&b.0));
        // What libstdc++'s priority_queue gives, element by element.
        for (i, name) in "abcdefghij".chars().enumerate() {
            queue.push(([3, 1, 3, 2, 3, 1, 2, 3, 2, 3][i], name));
        }
        let mut out = String::new();
        while let Some((_, name)) = queue.pop() {
            out.push(name);
        }
        assert_eq!(out, "acejhgidbf");
    }
}

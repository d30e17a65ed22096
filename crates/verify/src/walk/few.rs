//! Lists that are mostly empty.
//!
//! What walks find is kept of all functions until the end, and of a list by kind of finding nearly all are empty: a
//! list here is one word where it is, and has memory of its own once something is in it.

use std::ops::{Deref, DerefMut};

/// A list that is mostly empty.
#[derive(Clone, Debug)]
#[allow(
    clippy::box_collection,
    reason = "three words are as many as there are functions; a box is there for few"
)]
pub(crate) struct Few<T>(Option<Box<Vec<T>>>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Few(None)
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_ref().map_or(&[], |list| list.as_slice())
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_mut().map_or(&mut [], |list| list.as_mut_slice())
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, item: T) {
        self.0.get_or_insert_default().push(item);
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        if let Some(list) = &mut self.0 {
            list.retain(keep);
        }
    }

    /// Gives up what it could grow by.
    pub(crate) fn shrink(&mut self) {
        if let Some(list) = &mut self.0 {
            list.shrink_to_fit();
        }
    }
}

impl<T: PartialEq> Few<T> {
    /// Leaves out what equals the item in front of it.
    pub(crate) fn dedup(&mut self) {
        if let Some(list) = &mut self.0 {
            list.dedup();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_what_was_put_into_it() {
        let mut list = Few::default();
        list.retain(|_| true);
        list.dedup();
        assert!(list.is_empty());
        for n in [3, 1, 3, 2, 2] {
            list.push(n);
        }
        list.sort_unstable();
        list.dedup();
        assert_eq!(*list, [1, 2, 3]);
        list.retain(|n| *n != 2);
        list.shrink();
        assert_eq!(list.into_iter().sum::<i32>(), 4);
        assert_eq!(size_of::<Few<u64>>(), size_of::<usize>());
    }
}

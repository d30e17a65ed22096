//! What a part of the proof consulted: which moved functions, and which bytes of the output.
//!
//! A verdict may be used for another output of the same input only if all that it rests on is the same there
//! ([`crate::again`]). What it rests on is not listed in the rules, where something might be forgotten:
//! it is noted where it is looked up. Every way from an address to a function is through
//! [`Index`](crate::context::Index), every way to the output's bytes through [`Elf`](crate::files::elf::Elf), and
//! both call [`function`] and [`read`]. A slice that is handed out counts as read from end to end.
//!
//! The notes are kept by thread, as one function is walked, and one part of the code swept, by one thread.

use std::cell::{Cell, RefCell};

/// What was consulted, ascending and each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Consulted {
    pub functions: Vec<u32>,
    /// Bytes of the output: from, to.
    pub reads: Vec<(u64, u64)>,
}

impl Consulted {
    /// Whether notes are sorted once there are so many, so that a long walk does not keep the same ones many times.
    fn is_time(notes: usize) -> bool {
        notes >= 1 << 12 && notes.is_power_of_two()
    }

    fn tidy(&mut self) {
        self.functions.sort_unstable();
        self.functions.dedup();
        self.reads.sort_unstable();
        self.reads.dedup_by(|next, range| {
            let joins = next.0 <= range.1;
            if joins {
                range.1 = range.1.max(next.1);
            }
            joins
        });
    }
}

thread_local! {
    static NOTED: Cell<bool> = const { Cell::new(false) };
    static LAST: Cell<u32> = const { Cell::new(u32::MAX) };
    static NOTES: RefCell<Consulted> = const {
        RefCell::new(Consulted { functions: Vec::new(), reads: Vec::new() })
    };
}

/// Notes what `part` consults, if that is wanted. Parts are not in one another.
pub(crate) fn noting<T>(wanted: bool, part: impl FnOnce() -> T) -> (T, Consulted) {
    NOTED.set(wanted);
    LAST.set(u32::MAX);
    let result = part();
    NOTED.set(false);
    // The notes of all parts are in memory at once: they are copied, and what they grew in is used again.
    let consulted = NOTES.with_borrow_mut(|notes| {
        notes.tidy();
        let consulted = notes.clone();
        notes.functions.clear();
        notes.reads.clear();
        consulted
    });
    (result, consulted)
}

/// An address was found to be this function's.
#[inline]
pub(crate) fn function(id: u32) {
    if NOTED.get() && LAST.replace(id) != id {
        NOTES.with_borrow_mut(|notes| {
            notes.functions.push(id);
            if Consulted::is_time(notes.functions.len()) {
                notes.tidy();
            }
        });
    }
}

/// These bytes of the output were handed out.
#[inline]
pub(crate) fn read(start: u64, len: u64) {
    if NOTED.get() {
        let end = start.saturating_add(len);
        NOTES.with_borrow_mut(|notes| {
            notes.reads.push((start, end));
            if Consulted::is_time(notes.reads.len()) {
                notes.tidy();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_consulted_is_noted_once_and_only_inside() {
        function(1);
        read(0x10, 4);
        let ((), notes) = noting(true, || {
            for id in [7, 7, 3, 7] {
                function(id);
            }
            read(0x20, 8);
            read(0x1000, 1);
            read(0x24, 8);
        });
        assert_eq!(notes.functions, [3, 7]);
        assert_eq!(notes.reads, [(0x20, 0x2c), (0x1000, 0x1001)]);
        assert_eq!(noting(true, || ()).1, Consulted::default());
        assert_eq!(noting(false, || function(1)).1, Consulted::default());
    }

    #[test]
    fn a_long_part_keeps_every_note() {
        let ((), notes) = noting(true, || {
            for id in 0..20_000 {
                function(id);
                read(u64::from(id) * 16, 8);
                function(5);
            }
        });
        assert_eq!(notes.functions.len(), 20_000);
        assert_eq!(notes.reads.len(), 20_000);
    }
}

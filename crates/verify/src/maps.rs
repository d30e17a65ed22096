//! Memory of files that are mapped.
//!
//! Both files are read from end to end: their code is walked, all their bytes are digested. Pages of a map stay in
//! memory once they were read, and of a large program they would be more than all that the checker itself needs. So
//! whoever mapped the files is asked to give such pages back, again and again. The same goes for memory that one step
//! needed and the next does not: allocators keep it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are read before pages are given back: with so many it costs no time that could be measured.
const BYTES: usize = 16 << 20;

/// Gives pages back.
pub(crate) struct Maps<'a> {
    release: &'a (dyn Fn() + Sync),
    freed: &'a (dyn Fn() + Sync),
    /// Bytes that were read.
    read: AtomicUsize,
}

impl<'a> Maps<'a> {
    /// By what the files' owner does about it: about pages of maps, and about memory that was freed.
    pub(crate) const fn of(release: &'a (dyn Fn() + Sync), freed: &'a (dyn Fn() + Sync)) -> Self {
        Maps {
            release,
            freed,
            read: AtomicUsize::new(0),
        }
    }

    /// Gives back what was read so far.
    pub(crate) fn give_back(&self) {
        (self.release)();
    }

    /// Gives back what was read and what was freed so far: a step is over.
    pub(crate) fn is_done(&self) {
        self.give_back();
        (self.freed)();
    }

    /// So many bytes were read since the last call.
    pub(crate) fn read(&self, bytes: usize) {
        let before = self.read.fetch_add(bytes, Ordering::Relaxed);
        if before / BYTES != before.wrapping_add(bytes) / BYTES {
            self.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_back_whenever_so_many_bytes_were_read() {
        let released = AtomicUsize::new(0);
        let release = || _ = released.fetch_add(1, Ordering::Relaxed);
        let maps = Maps::of(&release, &|| ());
        for _ in 0..64 {
            maps.read(BYTES / 16);
        }
        assert_eq!(released.load(Ordering::Relaxed), 4);
        maps.read(3 * BYTES);
        maps.is_done();
        assert_eq!(released.load(Ordering::Relaxed), 6);
    }
}

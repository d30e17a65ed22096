//! How far reading has come, for who shows it.
//!
//! Counted for the whole process: what shows it is one line of one terminal. Nothing else depends on it. Readers
//! count pieces of a file, each pass anew; where several files are read one after the other the files are
//! counted, and their pieces are not.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static DONE: AtomicUsize = AtomicUsize::new(0);
static ALL: AtomicUsize = AtomicUsize::new(0);
/// Whole files are counted.
static FILES: AtomicBool = AtomicBool::new(false);

/// How much is done, and how much there is; 0 of 0 where it is not counted.
pub fn worked() -> (usize, usize) {
    let all = ALL.load(Ordering::Relaxed);
    (DONE.load(Ordering::Relaxed).min(all), all)
}

/// Nothing is counted until someone says what is ahead.
pub fn reset() {
    FILES.store(false, Ordering::Relaxed);
    expect(0);
}

/// So many pieces, or bytes, of work are ahead.
pub fn expect(pieces: usize) {
    if !FILES.load(Ordering::Relaxed) {
        DONE.store(0, Ordering::Relaxed);
        ALL.store(pieces, Ordering::Relaxed);
    }
}

/// So many of them are done.
pub fn did(pieces: usize) {
    if !FILES.load(Ordering::Relaxed) {
        DONE.fetch_add(pieces, Ordering::Relaxed);
    }
}

/// So many files are ahead; a single one is counted by its pieces. [`file_done`] counts them, and [`reset`] ends it.
pub fn files(number: usize) {
    reset();
    if number > 1 {
        ALL.store(number, Ordering::Relaxed);
        FILES.store(true, Ordering::Relaxed);
    }
}

/// One of the files is done.
pub fn file_done() {
    if FILES.load(Ordering::Relaxed) {
        DONE.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, as there is one line.
    #[test]
    fn pieces_are_counted_of_one_file_and_files_of_several() {
        files(1);
        expect(10);
        did(4);
        file_done();
        assert_eq!(worked(), (4, 10));
        files(3);
        expect(10);
        did(4);
        file_done();
        assert_eq!(worked(), (1, 3));
        reset();
        assert_eq!(worked(), (0, 0));
        expect(2);
        did(5);
        assert_eq!(worked(), (2, 2));
        reset();
    }
}

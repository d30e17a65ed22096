//! How far a check has come, for progress displays.
//!
//! Counted for the whole process: what shows it is one line of one terminal. No proof depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};

static DONE: AtomicUsize = AtomicUsize::new(0);
static ALL: AtomicUsize = AtomicUsize::new(0);

/// How many functions have been walked, and of how many; 0 of 0 before the first. Some are walked again. After them
/// come units of debug information, and after those line programs.
pub fn walked() -> (usize, usize) {
    let all = ALL.load(Ordering::Relaxed);
    (DONE.load(Ordering::Relaxed).min(all), all)
}

pub(crate) fn expect(pieces: usize) {
    DONE.store(0, Ordering::Relaxed);
    ALL.store(pieces, Ordering::Relaxed);
}

pub(crate) fn did() {
    DONE.fetch_add(1, Ordering::Relaxed);
}

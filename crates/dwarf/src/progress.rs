//! How far an update of debug information has come, for who shows it: units read, line programs, units written.
//!
//! Counted for the whole process: what shows it is one line of one terminal. No output depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};

static DONE: AtomicUsize = AtomicUsize::new(0);
static ALL: AtomicUsize = AtomicUsize::new(0);

/// How many units or line programs the pass at hand has done, and how many it has; 0 of 0 before the first pass.
pub fn worked() -> (usize, usize) {
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

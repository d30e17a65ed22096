//! Times of phases, for `--time`, and what is going on, for progress.
//!
//! Within a phase that goes through all functions, how many are done of how many is counted for the whole process: what
//! shows it is one line of one terminal. Nothing else depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static DONE: AtomicUsize = AtomicUsize::new(0);
static ALL: AtomicUsize = AtomicUsize::new(0);

/// How much of the current phase's work is done, and how much there is; 0 of 0 where it is not counted. Where nothing
/// else is, it is the update of debug information.
pub fn worked() -> (usize, usize) {
    match ALL.load(Ordering::Relaxed) {
        0 => postlink_dwarf::worked(),
        all => (DONE.load(Ordering::Relaxed), all),
    }
}

/// So many pieces of work are ahead in the phase at hand.
pub fn expect(pieces: usize) {
    DONE.store(0, Ordering::Relaxed);
    ALL.store(pieces, Ordering::Relaxed);
}

/// One of them is done.
pub fn did() {
    DONE.fetch_add(1, Ordering::Relaxed);
}

/// Collects the time of each phase, and tells an observer when one begins.
#[derive(Default)]
pub struct Phases {
    /// Name and time, in order.
    pub times: Vec<(&'static str, Duration)>,
    current: Option<(&'static str, Instant)>,
    /// Called with the name of each phase as it begins.
    pub observer: Option<Box<dyn Fn(&'static str) + Send + Sync>>,
}

impl Phases {
    /// Ends the phase before, if any, and begins another.
    pub fn begin(&mut self, name: &'static str) {
        self.end();
        expect(0);
        if let Some(o) = &self.observer {
            o(name);
        }
        self.current = Some((name, Instant::now()));
    }
    /// Ends the current phase.
    pub fn end(&mut self) {
        if let Some((name, since)) = self.current.take() {
            self.times.push((name, since.elapsed()));
        }
    }
}

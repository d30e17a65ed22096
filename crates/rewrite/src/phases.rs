//! Times of phases, for `--time`, and what is going on, for progress.

use std::time::{Duration, Instant};

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

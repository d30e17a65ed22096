//! What is known of address spaces while a text is read once, in pieces, by several threads.
//!
//! Samples need the mappings that come before them in the text. To look for those first would be to fetch all
//! of the text twice, and most recordings have all of theirs at the start. So a thread that has fetched a
//! piece looks for mapping events in it (nearly free, the piece is in its caches), waits until all pieces
//! before have been looked through as well, and then adds the samples with what is known up to and with its
//! own piece. Each piece with events makes an *edition* of the address spaces; a piece uses the last edition
//! that is not of a later piece, so what it sees does not depend on who was faster. Making an edition costs
//! all events so far: after [`EDITIONS`] of them the rest of the text is looked through at once, and there is
//! one more.
//!
//! Invariants: pieces are handed out in order, and the thread that has taken one marks it as looked through, whatever
//! happens ([`Turn`] does so when it is dropped): no thread waits for ever. The events of an edition are a
//! prefix of those of the next one, so modules keep their numbers.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::FxHashMap;

use crate::source::Bad;
use crate::spaces::{SpaceEvent, Spaces};

/// Position in the text, process, what happened.
pub(super) type Event = (u64, i32, SpaceEvent);

/// Editions that are made piece by piece.
const EDITIONS: usize = 24;

/// The editions of the address spaces of a text.
pub(super) struct Known {
    editions: Vec<OnceLock<Spaces>>,
    state: Mutex<State>,
    moved: Condvar,
}

struct State {
    /// Pieces that have been looked through, from the first on.
    seen: usize,
    /// Of each edition the first piece that uses it; the last one is in use now.
    from: Vec<usize>,
    events: Vec<Event>,
    /// All of the text has been looked through.
    complete: bool,
    /// The first piece that is wrong: no thread after it has to continue.
    wrong: Option<usize>,
}

impl Known {
    /// Before anything was looked at. There is an edition without any mapping, for a text without any.
    pub(super) fn new() -> Known {
        let editions: Vec<OnceLock<Spaces>> = (0..EDITIONS + 2).map(|_| OnceLock::new()).collect();
        let known = Known {
            editions,
            state: Mutex::new(State {
                seen: 0,
                from: Vec::new(),
                events: Vec::new(),
                complete: false,
                wrong: None,
            }),
            moved: Condvar::new(),
        };
        known.publish(&mut known.lock(), 0);
        known
    }

    /// With all mappings.
    pub(super) fn all(spaces: Spaces) -> Known {
        let known = Known::new();
        {
            let mut state = known.lock();
            state.complete = true;
            state.from = vec![0, 0];
        }
        let _ = known.editions[1].set(spaces); // it was empty
        known
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere ends the whole run; what is in here is whole at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: &mut State, piece: usize) {
        let spaces = Spaces::new(state.events.clone(), &FxHashMap::default());
        // There is space for it: see `looked_through`.
        if let Some(edition) = self.editions.get(state.from.len()) {
            let _ = edition.set(spaces);
            state.from.push(piece);
        }
    }

    /// The turn of a piece, which has been fetched.
    pub(super) fn turn(&self, piece: usize) -> Turn<'_> {
        Turn {
            known: self,
            piece,
            done: false,
        }
    }

    /// The last edition.
    pub(super) fn last(&self) -> &Spaces {
        let number = self.lock().from.len() - 1; // the first one was made at once
        self.edition(number)
    }

    fn edition(&self, number: usize) -> &Spaces {
        self.editions[number].get_or_init(Spaces::default)
    }

    /// Whether every edition says the same of samples that name no process, `nameless` of which there are,
    /// and of texts without mappings: else the text has to be read again with what is known now.
    pub(super) fn agree(&self, nameless: bool) -> bool {
        let state = self.lock();
        let last = state.from.len() - 1;
        // The first is the one without mappings; it was used if the next one is not for the first piece.
        let used = usize::from(state.from.get(1) == Some(&0))..last;
        let last = self.edition(last);
        used.map(|number| self.edition(number)).all(|edition| {
            edition.is_empty() == last.is_empty()
                && (!nameless || edition.only_process() == last.only_process())
        })
    }
}

/// The turn of a piece.
pub(super) struct Turn<'k> {
    known: &'k Known,
    piece: usize,
    done: bool,
}

impl<'k> Turn<'k> {
    /// Whether the piece has to be looked through at all.
    pub(super) fn is_needed(&self) -> bool {
        !self.known.lock().complete
    }

    /// Hands in the events of the piece and returns the edition to use for it, with its number; `None` if
    /// something before is wrong. `rest` looks through what is after the piece.
    pub(super) fn take(
        mut self,
        events: Vec<Event>,
        rest: impl FnOnce() -> Result<Vec<Event>, Bad>,
    ) -> Result<Option<(usize, &'k Spaces)>, Bad> {
        let known = self.known;
        let mut state = known.lock();
        if !state.complete {
            // Once all of the text has been looked through, no piece before is waited for: it may not say that it was.
            while !state.complete
                && state.seen < self.piece
                && state.wrong.is_none_or(|wrong| wrong > self.piece)
            {
                state = known
                    .moved
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if !state.complete && state.seen < self.piece {
                return Ok(None);
            }
            // The thread before may have searched everything.
            if !events.is_empty() && !state.complete {
                state.events.extend(events);
                if state.from.len() > EDITIONS {
                    // If that fails, so does this turn.
                    state.events.extend(rest()?);
                    state.complete = true;
                }
                known.publish(&mut state, self.piece);
            }
            state.seen = state.seen.max(self.piece + 1);
            known.moved.notify_all();
        }
        self.done = true;
        let number = state.from.partition_point(|&from| from <= self.piece) - 1;
        drop(state);
        Ok(Some((number, known.edition(number))))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.done {
            let mut state = self.known.lock();
            state.wrong = Some(state.wrong.map_or(self.piece, |w| w.min(self.piece)));
            self.known.moved.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;
    use std::time::Duration;

    use super::{EDITIONS, Known};
    use crate::spaces::SpaceEvent;

    use super::super::{for_each_sample, read_bytes, spaces};
    use crate::address::AddressProfile;
    use crate::samples::{self, Adder, Options};

    /// A thread waited for the piece before its own, whose thread came when the text was complete and said nothing.
    #[test]
    fn nobody_waits_once_all_of_the_text_has_been_looked_through() {
        let known: &'static Known = Box::leak(Box::new(Known::new()));
        let end = |piece: usize| vec![(piece as u64, 1, SpaceEvent::Exec)];
        let take = move |piece: usize| {
            let taken = known.turn(piece).take(end(piece), || Ok(Vec::new()));
            taken.is_ok_and(|edition| edition.is_some())
        };
        for piece in 0..EDITIONS {
            assert!(take(piece));
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(take(EDITIONS + 2)));
        // It waits by now, or has no cause to.
        std::thread::sleep(Duration::from_millis(100));
        assert!(take(EDITIONS), "all of the text is looked through");
        assert!(take(EDITIONS + 1));
        let taken = receiver.recv_timeout(Duration::from_secs(60));
        assert_eq!(taken, Ok(true));
    }

    /// What is right: all mappings first, then the samples, one after the other.
    fn in_two_passes(text: &str) -> AddressProfile {
        let (path, options) = (Path::new("x"), Options::default());
        let spaces = spaces(path, text.as_bytes()).unwrap();
        let mut adder = Adder::new(&spaces, &options);
        for_each_sample(path, text.as_bytes(), |sample| adder.add(sample)).unwrap();
        samples::finish(vec![adder.collector], &spaces)
    }

    fn with_threads<T: Send>(threads: usize, work: impl Fn() -> T + Send) -> T {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap().install(work)
    }

    fn check(text: &str, what: &str) {
        let expected = in_two_passes(text);
        assert!(expected.statistics.samples > 1000, "{what}");
        for threads in [1, 2, 5] {
            let read = || read_bytes(Path::new("x"), text.as_bytes(), &Options::default()).unwrap();
            let profile = with_threads(threads, read);
            assert_eq!(profile.modules(), expected.modules(), "{what}, {threads}");
            assert_eq!(
                profile.branches(),
                expected.branches(),
                "{what}, {threads} threads"
            );
            assert_eq!(profile.statistics, expected.statistics, "{what}, {threads}");
            assert_eq!(profile.mapped, expected.mapped, "{what}, {threads}");
        }
    }

    fn mapping(text: &mut String, pid: usize, path: usize) {
        let _ = writeln!(
            text,
            "p {pid}/{pid} 0.0: PERF_RECORD_MMAP2 {pid}/{pid}: [0x1000(0x9000) @ 0x1000 08:01 1 1]: r-xp /{path}"
        );
    }

    /// Some 80 kB of samples, more than a piece.
    fn samples(text: &mut String, pid: &str) {
        for i in 0..2000 {
            let at = 0x1100 + i % 90;
            let _ = writeln!(text, "{pid} {at:>20x} {at:#x}/0x1200/P/-/-/1 ");
        }
    }

    #[test]
    fn mappings_all_over_the_text_place_the_samples_that_come_after_them() {
        // Fewer pieces with mappings than editions, and more.
        for blocks in [3, 60] {
            let mut text = String::new();
            for block in 0..blocks {
                mapping(&mut text, 7 + block % 3, block);
                samples(&mut text, "    7");
                samples(&mut text, "    9");
            }
            check(&text, &format!("{blocks} blocks"));
        }
    }

    #[test]
    fn samples_that_name_no_process_are_placed_by_all_of_the_text() {
        let mut text = String::new();
        mapping(&mut text, 7, 1);
        samples(&mut text, "");
        samples(&mut text, "");
        // Until here there was only one process.
        mapping(&mut text, 8, 2);
        samples(&mut text, "");
        check(&text, "no process");
        let mut text = String::new();
        samples(&mut text, "    7");
        samples(&mut text, "    7");
        mapping(&mut text, 7, 1);
        samples(&mut text, "    7");
        check(&text, "mapped late");
    }

    #[test]
    fn the_first_error_is_told_and_nobody_waits_for_a_piece_that_is_wrong() {
        let mut text = String::new();
        for block in 0..30 {
            samples(&mut text, "    7");
            match block {
                11 => text += "    7                 1100 0x1100/0x1200/Q\n",
                20 => text += "p 1/1 0.0: PERF_RECORD_MMAP2 q/1: [0x1(0x2) @ 0 1]: r-xp /x\n",
                _ => {}
            }
        }
        for threads in [1, 4] {
            let read = || read_bytes(Path::new("x"), text.as_bytes(), &Options::default());
            let error = with_threads(threads, read).unwrap_err().to_string();
            assert!(error.starts_with("x:24001: "), "{error}");
        }
        let text = text.replace("/Q\n", "/P\n");
        for threads in [1, 4] {
            let read = || read_bytes(Path::new("x"), text.as_bytes(), &Options::default());
            let error = with_threads(threads, read).unwrap_err().to_string();
            assert!(error.contains("\"q\" is no process id"), "{error}");
        }
    }
}

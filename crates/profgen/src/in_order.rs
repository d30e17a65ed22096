//! Text that is made by many threads and written in its order.
//!
//! Threads take pieces in order, each makes the text of its piece in its own buffer, and waits for its turn
//! to write it. While one writes, the others continue making text; no more than one piece a thread is ever in
//! memory. What is written does not depend on the number of threads.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whose turn it is.
struct Gate<'w, W> {
    next: usize,
    out: &'w mut W,
    error: Option<io::Error>,
    /// A thread has gone without writing its piece: no thread waits any longer.
    abandoned: bool,
}

/// Says so when a thread unwinds.
struct Watch<'g, 'w, W>(&'g Mutex<Gate<'w, W>>, &'g Condvar);

impl<W> Drop for Watch<'_, '_, W> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(self.0).abandoned = true;
            self.1.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes `pieces` pieces. Each thread starts with a state of its own; `make` appends a piece to a buffer.
///
/// # Errors
/// The first error of writing; nothing is written after it.
pub fn write<W: Write + Send, S>(
    out: &mut W,
    pieces: usize,
    start: impl Fn() -> S + Sync,
    make: impl Fn(&mut S, usize, &mut Vec<u8>) + Sync,
) -> io::Result<()> {
    let taken = AtomicUsize::new(0);
    let gate = Mutex::new(Gate {
        next: 0,
        out,
        error: None,
        abandoned: false,
    });
    let turn = Condvar::new();
    rayon::broadcast(|_| {
        let _watch = Watch(&gate, &turn);
        let (mut state, mut text) = (None, Vec::new());
        loop {
            let piece = taken.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return;
            }
            text.clear();
            make(state.get_or_insert_with(&start), piece, &mut text);
            let mut gate = lock(&gate);
            while gate.next != piece && !gate.abandoned {
                gate = turn.wait(gate).unwrap_or_else(PoisonError::into_inner);
            }
            if gate.abandoned || gate.error.is_some() {
                taken.store(pieces, Ordering::Relaxed);
            } else if let Err(error) = gate.out.write_all(&text) {
                gate.error = Some(error);
            }
            gate.next = piece + 1;
            drop(gate);
            turn.notify_all();
        }
    });
    let gate = gate.into_inner().unwrap_or_else(PoisonError::into_inner);
    gate.error.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stand_in_their_order_whoever_made_them() {
        let mut out = Vec::new();
        write(
            &mut out,
            1000,
            || 0u64,
            |_, piece, text| {
                // Pieces of very different cost.
                text.resize(piece * 7919 % 3000, b'x');
                text.extend_from_slice(format!(" {piece}\n").as_bytes());
            },
        )
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        let numbers = text
            .lines()
            .map(|line| line.rsplit(' ').next().unwrap().parse::<usize>());
        assert!(numbers.map(Result::unwrap).eq(0..1000));
    }

    #[test]
    fn nothing_is_written_after_an_error() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 > 3 {
                    Err(io::Error::other("full"))
                } else {
                    Ok(bytes.len())
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Full(0);
        let error = write(&mut out, 100, || (), |_, _, text| text.push(b'x')).unwrap_err();
        assert_eq!((error.to_string().as_str(), out.0), ("full", 4));
    }
}

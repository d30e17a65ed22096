//! Loops that all processors share.
//!
//! The threads are rayon's. Its parallel iterators are compiled anew for every closure, five thousand lines of LLVM's
//! code each; with a hundred of them, most for two instruction sets, they were 40 % of what the compiler had to
//! translate of the rewriter. Here what is compiled for every loop is the loop: what hands out the work is called
//! through a pointer, and is compiled once.
//!
//! All loops work alike: the items are cut into parts, several for each thread; each thread takes the next part until
//! there are none. A thread that finds none left helps with other loops, so loops may be inside of loops. Results are
//! in the order of the items, whichever thread made them, so they do not depend on the number of threads. A panic in
//! a loop's body is passed on when the other threads have finished their parts.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Parts for each thread: with more, threads wait for the lock; with fewer, the others wait for the slowest.
const PARTS_PER_THREAD: usize = 16;

/// Calls `work` on this thread and on all others of the pool that are free.
fn on_threads(work: &(dyn Fn() + Sync)) {
    let others = rayon::current_num_threads().saturating_sub(1);
    if others == 0 {
        return work();
    }
    rayon::scope(|scope| {
        for _ in 0..others {
            scope.spawn(|_| work());
        }
        work();
    });
}

/// Does all parts, each on whichever thread is free.
fn share<P>(parts: impl Iterator<Item = P> + Send, work: impl Fn(P) + Sync) {
    let parts = Mutex::new(parts);
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    on_threads(&|| {
        while let Some(part) = next() {
            work(part);
        }
    });
}

/// How many of `count` items are a part.
fn part_of(count: usize) -> usize {
    let parts = rayon::current_num_threads() * PARTS_PER_THREAD;
    count.div_ceil(parts.max(1)).max(1)
}

/// Cuts items into parts, each with the number of its first item. The second half of the parts has a fifth of the
/// items: in the end a thread waits for the others no longer than one of those takes.
fn in_parts<T>(items: &mut [T]) -> impl Iterator<Item = (usize, &mut [T])> {
    let half = (rayon::current_num_threads() * PARTS_PER_THREAD / 2).max(1);
    let (large, small) = items.split_at_mut(items.len() / 5 * 4);
    let size = |items: usize| items.div_ceil(half).max(1);
    let sizes = (size(large.len()), size(small.len()));
    let behind = large.len();
    let large = (0..).step_by(sizes.0).zip(large.chunks_mut(sizes.0));
    let small = (behind..).step_by(sizes.1).zip(small.chunks_mut(sizes.1));
    large.chain(small)
}

/// What `f` makes of each item.
///
/// ```
/// assert_eq!(postlink_parallel::map(&[1, 2, 3], |n| n * n), [1, 4, 9]);
/// ```
pub fn map<'a, T: Sync, R: Send>(items: &'a [T], f: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    map_range(items.len(), |i| f(&items[i]))
}

/// What `f` makes of each number below `count`.
pub fn map_range<R: Send>(count: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    map_range_with(count, || (), |(), i| f(i))
}

/// What `f` makes of each item, with a value that it may change: made once for each part of the items.
pub fn map_with<'a, T: Sync, S, R: Send>(
    items: &'a [T],
    init: impl Fn() -> S + Sync,
    f: impl Fn(&mut S, &'a T) -> R + Sync,
) -> Vec<R> {
    map_range_with(items.len(), init, |state, i| f(state, &items[i]))
}

/// What `f` makes of each number below `count`, with a value that it may change: made once for each part.
pub fn map_range_with<S, R: Send>(
    count: usize,
    init: impl Fn() -> S + Sync,
    f: impl Fn(&mut S, usize) -> R + Sync,
) -> Vec<R> {
    let mut made: Vec<Option<R>> = Vec::with_capacity(count);
    made.resize_with(count, || None);
    share(in_parts(&mut made), |(first, made)| {
        let mut state = init();
        for (i, made) in (first..).zip(made) {
            *made = Some(f(&mut state, i));
        }
    });
    complete(made)
}

/// What `f` makes of each number below `count`, each of which is a part: when it is begun, those below it have been
/// begun too.
pub fn map_in_turn<R: Send>(count: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut made: Vec<Option<R>> = Vec::with_capacity(count);
    made.resize_with(count, || None);
    share(made.iter_mut().enumerate(), |(i, made)| *made = Some(f(i)));
    complete(made)
}

/// What `f` makes of each item, which it may change and whose number it is told.
pub fn map_mut<T: Send, R: Send>(items: &mut [T], f: impl Fn(usize, &mut T) -> R + Sync) -> Vec<R> {
    let mut made: Vec<Option<R>> = Vec::with_capacity(items.len());
    made.resize_with(items.len(), || None);
    let parts = in_parts(items).zip(in_parts(&mut made));
    share(parts, |((first, items), (_, made))| {
        for ((i, item), made) in (first..).zip(items).zip(made) {
            *made = Some(f(i, item));
        }
    });
    complete(made)
}

/// What `f` makes of each item, which it is given.
pub fn map_owned<T: Send, R: Send>(items: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
    let made = map_mut(&mut items, |_, item| item.take().map(&f));
    complete(made)
}

/// What `f` makes of ranges of `size` numbers, which together are all below `count`.
pub fn map_parts<R: Send>(
    count: usize,
    size: usize,
    f: impl Fn(Range<usize>) -> R + Sync,
) -> Vec<R> {
    let size = size.max(1);
    map_range(count.div_ceil(size), |part| {
        let start = part * size;
        f(start..count.min(start + size))
    })
}

/// What `f` makes of some of the items, in their order.
///
/// ```
/// let half = |n: &u32| (n % 2 == 0).then_some(n / 2);
/// assert_eq!(postlink_parallel::filter_map(&[1, 2, 3, 4], half), [1, 2]);
/// ```
pub fn filter_map<'a, T: Sync, R: Send>(
    items: &'a [T],
    f: impl Fn(&'a T) -> Option<R> + Sync,
) -> Vec<R> {
    flat_map_range(items.len(), |i| f(&items[i]))
}

/// Everything that `f` makes of each item, in their order.
pub fn flat_map<'a, T: Sync, R: Send, L: IntoIterator<Item = R>>(
    items: &'a [T],
    f: impl Fn(&'a T) -> L + Sync,
) -> Vec<R> {
    flat_map_range(items.len(), |i| f(&items[i]))
}

/// Everything that `f` makes of each number below `count`, in their order.
pub fn flat_map_range<R: Send, L: IntoIterator<Item = R>>(
    count: usize,
    f: impl Fn(usize) -> L + Sync,
) -> Vec<R> {
    in_one_list(map_parts(count, part_of(count), |range| {
        let mut made = Vec::new();
        range.for_each(|i| made.extend(f(i)));
        made
    }))
}

/// Everything that `f` makes of chunks of `size` items, in their order; the last may be shorter.
pub fn flat_map_chunks<'a, T: Sync, R: Send, L: IntoIterator<Item = R>>(
    items: &'a [T],
    size: usize,
    f: impl Fn(&'a [T]) -> L + Sync,
) -> Vec<R> {
    let make = |range| f(&items[range]).into_iter().collect();
    in_one_list(map_parts(items.len(), size, make))
}

fn in_one_list<R>(lists: Vec<Vec<R>>) -> Vec<R> {
    let mut all = Vec::with_capacity(lists.iter().map(Vec::len).sum());
    lists.into_iter().for_each(|list| all.extend(list));
    all
}

/// What `f` makes of the first number below `count` of which it makes something.
pub fn find_first<R: Send>(count: usize, f: impl Fn(usize) -> Option<R> + Sync) -> Option<R> {
    // The lowest number that is known; what comes behind it is of no interest.
    let lowest = AtomicUsize::new(usize::MAX);
    let size = part_of(count);
    let found = map_parts(count, size, |range| {
        for i in range {
            if i > lowest.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(made) = f(i) {
                lowest.fetch_min(i, Ordering::Relaxed);
                return Some(made);
            }
        }
        None
    });
    found.into_iter().flatten().next()
}

/// Whether `f` is true of a number below `count`.
pub fn any(count: usize, f: impl Fn(usize) -> bool + Sync) -> bool {
    find_first(count, |i| f(i).then_some(())).is_some()
}

/// Both at the same time, if there is a thread for it.
pub fn join<A: Send, B: Send>(
    a: impl FnOnce() -> A + Send,
    b: impl FnOnce() -> B + Send,
) -> (A, B) {
    fn both(a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
        rayon::join(a, b);
    }
    let (mut a, mut b) = (Some(a), Some(b));
    let (mut of_a, mut of_b) = (None, None);
    both(&mut || of_a = a.take().map(|a| a()), &mut || {
        of_b = b.take().map(|b| b())
    });
    match (of_a, of_b) {
        (Some(a), Some(b)) => (a, b),
        _ => unreachable!("rayon calls both, or passes a panic on"),
    }
}

/// What was made of all items.
fn complete<R>(made: Vec<Option<R>>) -> Vec<R> {
    let wanted = made.len();
    let made: Vec<R> = made.into_iter().map_while(|made| made).collect();
    assert_eq!(made.len(), wanted, "a loop left items out");
    made
}

#[cfg(test)]
mod tests;

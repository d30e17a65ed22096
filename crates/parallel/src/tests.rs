//! On pools of one and of several threads, with fewer items than threads, and with many.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Runs a test on one thread, and on several.
fn on_pools(test: impl Fn() + Sync) {
    for threads in [1, 2, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().expect("threads").install(&test);
    }
}

const COUNTS: [usize; 6] = [0, 1, 2, 31, 1000, 12345];

#[test]
fn results_are_in_the_order_of_the_items() {
    on_pools(|| {
        for count in COUNTS {
            let items: Vec<usize> = (0..count).collect();
            let wanted: Vec<String> = items.iter().map(|i| (i * 3).to_string()).collect();
            let make = |i: usize| (i * 3).to_string();
            assert_eq!(map(&items, |i| make(*i)), wanted);
            assert_eq!(map_range(count, make), wanted);
            assert_eq!(map_owned(items.clone(), make), wanted);
            let mut changed = items.clone();
            let made = map_mut(&mut changed, |i, item| {
                assert_eq!(i, *item);
                *item += 1;
                make(i)
            });
            assert_eq!(made, wanted);
            assert!(changed.iter().zip(&items).all(|(new, old)| *new == old + 1));
            let twice: Vec<usize> = items.iter().flat_map(|i| [*i, *i]).collect();
            assert_eq!(flat_map(&items, |i| [*i, *i]), twice);
            let chunks = flat_map_chunks(&items, 7, |chunk| chunk.iter().flat_map(|i| [*i, *i]));
            assert_eq!(chunks, twice);
            let odd = |i: &usize| (i % 2 == 1).then_some(*i);
            let wanted: Vec<usize> = items.iter().filter_map(odd).collect();
            assert_eq!(filter_map(&items, odd), wanted);
        }
    });
}

#[test]
fn parts_are_all_of_it_and_no_longer_than_asked_for() {
    on_pools(|| {
        for (count, size) in [(0, 4), (3, 4), (4, 4), (9, 4), (1000, 1), (5, 0)] {
            let parts = map_parts(count, size, |range| range);
            assert!(
                parts
                    .iter()
                    .all(|part| !part.is_empty() && part.len() <= size.max(1))
            );
            let all: Vec<usize> = parts.into_iter().flatten().collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    });
}

#[test]
fn the_first_is_found_whichever_thread_finds_one() {
    on_pools(|| {
        for count in COUNTS {
            for first in [0, count / 3, count.saturating_sub(1), count] {
                let found = find_first(count, |i| (i >= first).then_some(i));
                assert_eq!(found, (first < count).then_some(first));
                assert_eq!(any(count, |i| i == first), first < count);
            }
        }
    });
}

#[test]
fn parts_are_all_items_in_their_order_and_the_last_ones_are_small() {
    on_pools(|| {
        let threads = rayon::current_num_threads();
        for count in COUNTS {
            let mut items: Vec<usize> = (0..count).collect();
            let parts: Vec<(usize, &mut [usize])> = in_parts(&mut items).collect();
            assert!(parts.len() <= threads * PARTS_PER_THREAD);
            assert!(parts.iter().all(|(first, part)| part[0] == *first));
            assert!(parts.iter().map(|part| part.1.len()).sum::<usize>() == count);
            assert!(parts.is_sorted_by_key(|part| part.0));
            if count > 1000 * threads {
                let len =
                    |part: Option<&(usize, &mut [usize])>| part.map_or(0, |part| part.1.len());
                assert!(len(parts.last()) * 3 < len(parts.first()));
            }
        }
    });
}

#[test]
fn a_value_of_a_part_is_made_once_for_it() {
    on_pools(|| {
        let made = AtomicUsize::new(0);
        let init = || made.fetch_add(1, Ordering::Relaxed);
        let seen = map_range_with(10_000, init, |number, _| *number);
        let made = made.into_inner();
        assert!(
            made <= rayon::current_num_threads() * PARTS_PER_THREAD,
            "{made}"
        );
        assert!(seen.iter().all(|number| *number < made));
    });
}

#[test]
fn loops_may_be_inside_of_loops_and_of_both_sides_of_a_join() {
    on_pools(|| {
        let sums = map_range(40, |i| map_range(i, |j| j).into_iter().sum::<usize>());
        assert!(
            (0..40usize)
                .zip(&sums)
                .all(|(i, sum)| *sum == i * i.saturating_sub(1) / 2)
        );
        let (a, b) = join(
            || map_range(100, |i| i).len(),
            || map_range(50, |i| i).len(),
        );
        assert_eq!((a, b), (100, 50));
    });
}

#[test]
fn all_threads_work() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2);
    let threads = pool.build().expect("threads").install(|| {
        // Each of two items waits until the other was begun.
        let begun = AtomicUsize::new(0);
        map_range(2, |_| {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            std::thread::current().id()
        })
    });
    assert_ne!(threads[0], threads[1]);
}

#[test]
fn a_panic_in_a_loop_is_passed_on() {
    on_pools(|| {
        let caught = std::panic::catch_unwind(|| map_range(100, |i| assert_ne!(i, 63)));
        assert!(caught.is_err());
        let caught = std::panic::catch_unwind(|| join(|| 1, || panic!("the second")));
        assert!(caught.is_err());
    });
}

//! Padding in front of functions.
//!
//! A function that begins in the middle of a cache line may be in one line more than its length needs, and each line of
//! hot code takes the place of another in the cache. Beginning every function at a line costs 32 bytes each on average,
//! which makes more lines than it saves; beginning none at anything costs a line for about each second small function.
//!
//! [`at_lines`]: only functions that would be in one line more begin at a line, the densest (samples per byte) first,
//! as far as a limit on the length of all code allows. The others follow each other without padding.
//!
//! [`by_misses`]: where all code that ran does not fit into the cache, padding goes where it saves most expected misses
//! for a byte. That needs to know how often each line of a function is fetched, not only how often it is entered: a
//! function's line that seldom runs may be shared with the next function, and one that is always in the cache anyway is
//! worth no padding.

use postlink_flow::logarithm::{exp, ln};

use crate::call_graph::Function;
use crate::heap::Gain;

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Lines that code of a program has in a cache of 512: libraries have the rest.
const ROOM: usize = 448;
/// Prices of a byte of padding that are tried.
const STEPS: usize = 24;

/// By function: its alignment, so that functions in `order` need no more than `limit` bytes, unless they do without
/// padding at lines. `least`, by function: what its alignment has to be at least, a power of two; 1 if it is not there.
///
/// ```
/// use postlink_layout::call_graph::Function;
/// use postlink_layout::padding::at_lines;
/// let functions = [(40, 9), (40, 8), (24, 7)].map(|(size, samples)| Function { size, samples });
/// // The second would be in two lines; the third fits into the rest of its line.
/// assert_eq!(at_lines(&[0, 1, 2], &functions, &[], 200), [1, 64, 1]);
/// // No space for that.
/// assert_eq!(at_lines(&[0, 1, 2], &functions, &[], 110), [1, 1, 1]);
/// ```
pub fn at_lines(order: &[u32], functions: &[Function], least: &[u64], limit: u64) -> Vec<u64> {
    let density = |i: u32| {
        let function = functions[i as usize];
        Gain(function.samples as f64 / function.size.max(1) as f64)
    };
    let mut densest: Vec<u32> = (0..functions.len() as u32).collect();
    densest.sort_by_key(|i| std::cmp::Reverse(density(*i)));
    let mut rank = vec![0; functions.len()];
    for (place, i) in densest.iter().enumerate() {
        rank[*i as usize] = place;
    }
    let of_densest = |number: usize| {
        let mut alignment: Vec<u64> = (0..functions.len())
            .map(|i| least.get(i).copied().unwrap_or(1).max(1))
            .collect();
        let mut at = 0u64;
        for i in order.iter().map(|i| *i as usize) {
            let size = functions[i].size;
            let start = at.next_multiple_of(alignment[i]);
            let lines = (start.saturating_add(size)).div_ceil(LINE) - start / LINE;
            if rank[i] < number && lines > size.div_ceil(LINE) {
                alignment[i] = alignment[i].max(LINE);
            }
            at = at.next_multiple_of(alignment[i]).saturating_add(size);
        }
        (alignment, at)
    };
    // Padding grows with the number of functions that have it, by and large: the largest number that fits is near.
    let (mut fits, mut too_many) = (0, functions.len() + 1);
    while fits + 1 < too_many {
        let number = fits.midpoint(too_many);
        if of_densest(number).1 <= limit {
            fits = number
        } else {
            too_many = number
        }
    }
    of_densest(fits).0
}

/// Code of a function that runs equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Bytes from the start of the function.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// How often it ran.
    pub runs: u64,
}

/// What a line costs that is fetched a number of times, by Che's approximation of a cache that replaces the least
/// recently used line: a line stays for a time that is the same for all of them, and misses if it is not fetched in it.
/// That time is such that as many lines as there is room for are in the cache ("Hierarchical Web caching systems", Che,
/// Tung and Wang, 2002).
///
/// A line that is fetched `n` times misses `n e^-nt` times, and takes `1 - e^-nt` of the room of a line, which costs
/// others the misses that one line less makes.
#[derive(Clone, Copy, Debug)]
struct LineCost {
    time: f64,
    room: f64,
}

impl LineCost {
    /// `None` if all lines have room.
    fn new(fetches: &[u64]) -> Option<Self> {
        let fetches: Vec<f64> = fetches
            .iter()
            .filter(|n| **n > 0)
            .map(|n| *n as f64)
            .collect();
        if fetches.len() <= ROOM {
            return None;
        }
        let lines = |time: f64| fetches.iter().map(|n| 1.0 - exp(-n * time)).sum::<f64>();
        // With a time of 1 divided by the fetches of the most frequent line at most 1 - 1/e of all lines are there; and
        // all but a few when each has been fetched 64 times.
        let most = fetches.iter().copied().fold(1.0, f64::max);
        let (mut low, mut high) = (ln(1.0 / (most * 1e6)), ln(64.0));
        for _ in 0..64 {
            let time = (low + high) / 2.0;
            if lines(exp(time)) < ROOM as f64 {
                low = time;
            } else {
                high = time;
            }
        }
        let time = exp(low);
        let rate = |power: i32| {
            fetches
                .iter()
                .map(|n| n.powi(power) * exp(-n * time))
                .sum::<f64>()
        };
        Some(Self {
            time,
            room: rate(2) / rate(1).max(f64::MIN_POSITIVE),
        })
    }

    fn of(self, fetches: u64) -> f64 {
        let n = fetches as f64;
        let away = exp(-n * self.time);
        n * away + self.room * (1.0 - away)
    }
}

/// Calls `line` for each line of a function at `start`: its number, and how often it is fetched.
fn lines(start: u64, stretches: &[Stretch], mut line: impl FnMut(u64, u64)) {
    let mut last: Option<(u64, u64)> = None;
    for stretch in stretches.iter().filter(|stretch| stretch.len > 0) {
        let from = start + stretch.offset;
        for number in from / LINE..=(from + stretch.len - 1) / LINE {
            match &mut last {
                Some((same, fetches)) if *same == number => *fetches = stretch.runs.max(*fetches),
                _ => {
                    if let Some((number, fetches)) = last.replace((number, stretch.runs)) {
                        line(number, fetches);
                    }
                }
            }
        }
    }
    if let Some((number, fetches)) = last {
        line(number, fetches);
    }
}

/// The last line of functions that follow each other. One that two functions share is fetched by both, as if they ran
/// at different times.
#[derive(Default)]
struct Last {
    number: u64,
    fetches: u64,
}

impl Last {
    /// What a function adds to the cost of the lines in front of it.
    fn added(&self, start: u64, stretches: &[Stretch], cost: LineCost) -> f64 {
        let mut sum = 0.0;
        lines(start, stretches, |number, fetches| {
            sum += if number == self.number {
                cost.of(fetches.saturating_add(self.fetches)) - cost.of(self.fetches)
            } else {
                cost.of(fetches)
            };
        });
        sum
    }

    fn put(&mut self, start: u64, stretches: &[Stretch]) {
        lines(start, stretches, |number, fetches| {
            let shared = number == self.number;
            let before = if shared { self.fetches } else { 0 };
            *self = Last {
                number,
                fetches: fetches.saturating_add(before),
            };
        });
    }
}

/// Alignments that are tried besides what a function needs.
const ALIGNMENTS: [u64; 3] = [16, 32, LINE];

/// As [`at_lines`], but by what lines cost: padding goes where it saves most misses that a cache of 32 KiB is expected
/// to have, by how often each line of the functions is fetched ([`LineCost`]). `stretches`, by function: its code in
/// the order of offsets.
///
/// If all code that ran has room in the cache, what is taken is that of [`at_lines`].
pub fn by_misses(
    order: &[u32],
    functions: &[Function],
    stretches: &[Vec<Stretch>],
    least: &[u64],
    limit: u64,
) -> Vec<u64> {
    let usual = at_lines(order, functions, least, limit);
    let (mut at, mut fetched, mut last) = (0u64, Vec::new(), Last::default());
    for i in order.iter().map(|i| *i as usize) {
        at = at.next_multiple_of(usual[i]);
        lines(at, &stretches[i], |number, fetches| {
            match fetched.last_mut() {
                Some(before) if number == last.number => *before = fetches.saturating_add(*before),
                _ => fetched.push(fetches),
            }
            last.number = number;
        });
        at = at.saturating_add(functions[i].size);
    }
    let Some(cost) = LineCost::new(&fetched) else {
        return usual;
    };
    // What padding a function costs is weighed against `price`, the least number of misses that a byte must save.
    let padded = |price: f64| {
        let mut alignment: Vec<u64> = (0..functions.len())
            .map(|i| least.get(i).copied().unwrap_or(1).max(1))
            .collect();
        let (mut at, mut last) = (0u64, Last::default());
        for i in order.iter().map(|i| *i as usize) {
            let own = alignment[i];
            let value = |align: u64| {
                let start = at.next_multiple_of(align);
                last.added(start, &stretches[i], cost) + price * (start - at) as f64
            };
            let mut best = (value(own), own);
            for align in ALIGNMENTS.into_iter().filter(|align| *align > own) {
                let value = value(align);
                if value < best.0 {
                    best = (value, align);
                }
            }
            alignment[i] = best.1;
            let start = at.next_multiple_of(best.1);
            last.put(start, &stretches[i]);
            at = start.saturating_add(functions[i].size);
        }
        (alignment, at)
    };
    // The dearer a byte, the fewer there are, by and large: the lowest price at which they fit is near.
    let (mut fits, mut too_many) = (
        ln((cost.room * 1e3).max(1.0)),
        ln((cost.room * 1e-9).max(1e-12)),
    );
    for _ in 0..STEPS {
        let price = f64::midpoint(fits, too_many);
        if padded(exp(price)).1 <= limit {
            fits = price;
        } else {
            too_many = price;
        }
    }
    let (alignment, end) = padded(exp(fits));
    if end <= limit { alignment } else { usual }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(list: &[(u64, u64)]) -> Vec<Function> {
        let function = |&(size, samples)| Function { size, samples };
        list.iter().map(function).collect()
    }

    #[test]
    fn the_densest_functions_get_what_room_there_is() {
        // Each but the first would cross into a line, and takes 24 bytes of padding not to.
        let list = functions(&[(40, 1), (40, 5), (40, 9)]);
        assert_eq!(at_lines(&[0, 1, 2], &list, &[], 168), [1, 64, 64]);
        assert_eq!(at_lines(&[0, 1, 2], &list, &[], 167), [1, 1, 1]);
        // The second ends at 124, and the third would at 168.
        let list = functions(&[(50, 1), (60, 9), (40, 2)]);
        assert_eq!(at_lines(&[0, 1, 2], &list, &[], 168), [1, 64, 64]);
        assert_eq!(at_lines(&[0, 1, 2], &list, &[], 165), [1, 64, 1]);
    }

    #[test]
    fn alignment_for_pointers_is_kept() {
        let list = functions(&[(10, 1), (10, 1), (10, 1)]);
        assert_eq!(at_lines(&[2, 1, 0], &list, &[16, 128, 2], 0), [16, 128, 2]);
        assert_eq!(at_lines(&[], &[], &[], 0), []);
    }

    #[test]
    fn a_function_of_many_lines_begins_where_it_needs_no_more() {
        // 130 bytes are in three lines from 0, 64 … and up to offset 62.
        let list = functions(&[(62, 1), (130, 1), (1, 1), (130, 1)]);
        assert_eq!(at_lines(&[0, 1, 2, 3], &list, &[], 1000), [1, 1, 1, 1]);
        let list = functions(&[(63, 1), (130, 1)]);
        assert_eq!(at_lines(&[0, 1], &list, &[], 1000), [1, 64]);
    }

    /// Functions that are a line each and run at many rates, as many as do not fit.
    fn filler() -> Vec<(Function, Vec<Stretch>)> {
        (0..600)
            .map(|i| function(64, &[(0, 64, 1 << (i % 16))]))
            .collect()
    }

    fn function(size: u64, stretches: &[(u64, u64, u64)]) -> (Function, Vec<Stretch>) {
        let samples = stretches.first().map_or(0, |s| s.2);
        let stretch = |&(offset, len, runs): &(u64, u64, u64)| Stretch { offset, len, runs };
        (
            Function { size, samples },
            stretches.iter().map(stretch).collect(),
        )
    }

    fn padded(list: &[(Function, Vec<Stretch>)], limit: u64) -> Vec<u64> {
        let (functions, stretches): (Vec<_>, Vec<_>) = list.iter().cloned().unzip();
        let order: Vec<u32> = (0..functions.len() as u32).collect();
        by_misses(&order, &functions, &stretches, &[], limit)
    }

    #[test]
    fn a_function_whose_second_line_never_runs_needs_no_padding() {
        // Both would be in two lines from 40 on. Of the one the second line is never fetched, of the other it is.
        let size = 600 * 64;
        let mut list = filler();
        list.push(function(40, &[(0, 40, 2)]));
        list.push(function(40, &[(0, 24, 2), (24, 16, 0)]));
        let alignment = padded(&list, size + 1000);
        assert_eq!(
            alignment[601], 1,
            "its first part shares the line in front of it"
        );
        list[601] = function(40, &[(0, 40, 2)]);
        let alignment = padded(&list, size + 1000);
        // From 600 lines and 40 bytes on, multiples of 32 and of 64 are the same place.
        assert_eq!(
            alignment[601], 32,
            "what seldom runs misses in either of two lines, shared or not"
        );
    }

    #[test]
    fn padding_by_misses_keeps_the_limit_and_needed_alignment() {
        let mut list = filler();
        for i in 0..300u64 {
            list.push(function(40 + i % 7, &[(0, 40, 1 + i % 50)]));
        }
        let (functions, stretches): (Vec<_>, Vec<_>) = list.iter().cloned().unzip();
        let order: Vec<u32> = (0..functions.len() as u32).collect();
        let least: Vec<u64> = (0..functions.len()).map(|i| 1 << (i % 4)).collect();
        let end = |alignment: &[u64]| {
            let place = |at: u64, i: &u32| {
                at.next_multiple_of(alignment[*i as usize]) + functions[*i as usize].size
            };
            order.iter().fold(0, place)
        };
        for percent in [0, 1, 3, 10] {
            let limit = end(&least) * (100 + percent) / 100;
            let alignment = by_misses(&order, &functions, &stretches, &least, limit);
            assert!(end(&alignment) <= limit, "{percent} %");
            assert!(alignment.iter().zip(&least).all(|(a, b)| a >= b));
        }
    }

    #[test]
    fn code_that_fits_is_padded_as_by_density() {
        let list: Vec<_> = [(40, 9), (40, 8), (24, 7)]
            .map(|(size, runs)| function(size, &[(0, size, runs)]))
            .into();
        assert_eq!(padded(&list, 200), [1, 64, 1]);
        assert_eq!(by_misses(&[], &[], &[], &[], 0), []);
    }

    #[test]
    fn the_cost_of_a_line_is_highest_at_middle_rates() {
        // 1,000 lines of one rate, and 448 places: each is there with that probability.
        let cost = LineCost::new(&vec![100; 1000]).unwrap_or(LineCost {
            time: 0.0,
            room: 0.0,
        });
        let there = 1.0 - exp(-100.0 * cost.time);
        assert!((there - 0.448).abs() < 1e-6, "{there}");
        // One place less: of 100 fetches of each of them, one in 1,000 more fails: 100 in all.
        assert!((cost.room - 100.0).abs() < 1e-6, "{}", cost.room);
        assert_eq!(cost.of(0), 0.0);
        assert!(cost.of(1_000_000) < cost.of(200) && cost.of(10) < cost.of(200));
    }

    #[test]
    fn counts_of_any_size_give_some_padding() {
        let mut list = filler();
        list.push(function(u64::from(u32::MAX), &[(0, 10, u64::MAX)]));
        list.push(function(10, &[(0, 10, u64::MAX)]));
        list.push(function(10, &[]));
        assert_eq!(padded(&list, 0).len(), 603);
    }
}

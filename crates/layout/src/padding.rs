//! Padding in front of functions.
//!
//! A function that begins in the middle of a cache line may be in one line more than its length needs, and each line of
//! hot code takes the place of another in the cache. Beginning every function at a line costs 32 bytes each on average,
//! which makes more lines than it saves; beginning none at anything costs a line for about each second small function.
//!
//! So only functions that would be in one line more begin at a line, the densest (samples per byte) first, as far as a
//! limit on the length of all code allows. The others follow each other without padding.

use crate::call_graph::Function;
use crate::heap::Gain;

/// Bytes of a cache line.
const LINE: u64 = 64;

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
}

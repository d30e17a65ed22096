//! The order of functions at start-up: balanced partitioning.
//!
//! # The problem
//!
//! At start-up nearly every function runs for the first time, and what costs is reading its page.
//! Frequencies do not matter, time does: functions that start together should be on the same pages.
//! From traces of starts one knows, for each function, at what times it came. A *utility* is a
//! reason for functions to be near one another; here "called among the first 64 of trace 3". It can
//! as well be a common run of bytes, if the text should compress well.
//!
//! # The way
//!
//! Functions are divided into two halves such that each utility has its functions in one half as
//! far as possible, then each half again, down to single functions. For a utility with `l`
//! functions in the left half and `r` in the right half, the cost `-l log2(l + 1) - r log2(r + 1)`
//! is lowest when they are in one half; it approximates the sum of the logarithms of the distances
//! between neighbours. A division starts from the order of the input, and is improved by rounds:
//! for each function, by how much does the cost fall when it changes sides? The functions with the
//! largest gains on either side change places pair by pair as long as the sum of their gains,
//! without what both have in common, is positive. Since functions move at the same time as those
//! that they would follow, every tenth function, chosen again in each round, stays, so that no two
//! groups change sides for ever.
//!
//! From "Optimizing function layout for mobile applications" (Hoag, Lee, Mestre and Pupyrev, 2023),
//! which is what lld's `--bp-startup-sort` does.

use rustc_hash::FxHashMap;

/// Rounds of improvement of a division, at most.
const ROUNDS: u64 = 40;
/// Halves are divided as often as this at most; below that functions keep the order of the input.
const DEPTH: u32 = 18;
/// One of so many functions stays where it is in a round.
const STAYS: u64 = 10;

/// A good order of functions, those with utilities first; `utilities[f]` names the utilities of
/// function `f` by numbers of any kind.
///
/// The cost of the result, see [`cost`], is at most that of the order that came in.
///
/// ```
/// use postlink_layout::partition::order;
/// // Two groups, interleaved.
/// let utilities = [[1], [2], [1], [2], [1], [2], [1], [2]];
/// assert_eq!(order(&utilities), [0, 2, 4, 6, 1, 3, 5, 7]);
/// ```
pub fn order(utilities: &[impl AsRef<[u32]>]) -> Vec<u32> {
    order_told(utilities, &mut |_| {})
}

/// [`order`], which tells of how many more functions the place is known, until it is that of all.
pub fn order_told(utilities: &[impl AsRef<[u32]>], placed: &mut dyn FnMut(usize)) -> Vec<u32> {
    let identity: Vec<u32> = (0..utilities.len() as u32).collect();
    let mut bisector = Bisector::new(utilities);
    let (mut order, rest): (Vec<u32>, Vec<u32>) = identity
        .iter()
        .partition(|&&function| !bisector.utilities(function).is_empty());
    bisector.divide(&mut order, DEPTH, placed);
    placed(rest.len());
    order.extend(rest);
    if cost(utilities, &order) < cost(utilities, &identity) {
        order
    } else {
        identity
    }
}

/// The cost of an order: the sum over utilities of the base-2 logarithms of the distances between
/// functions next to each other among those with the utility. Distances are in functions.
pub fn cost(utilities: &[impl AsRef<[u32]>], order: &[u32]) -> f64 {
    let mut last: FxHashMap<u32, usize> = FxHashMap::default();
    let mut sum = 0.0;
    for (index, &function) in order.iter().enumerate() {
        let Some(utilities) = utilities.get(function as usize) else {
            continue;
        };
        for &utility in utilities.as_ref() {
            if let Some(before) = last.insert(utility, index) {
                // 0 for a utility that a function names twice.
                sum += ((index - before).max(1) as f64).log2();
            }
        }
    }
    sum
}

/// Utilities from traces of starts, each the functions in the order of their first calls.
///
/// The k-th utility of a trace is "among the first 2^k functions", so that functions which come at
/// about the same time share more of them, and early functions are drawn together most. Functions
/// from `functions` on are ignored, as are later calls of a function in a trace.
///
/// ```
/// use postlink_layout::partition::utilities_of_traces;
/// let utilities = utilities_of_traces(4, &[vec![2, 0, 3]]);
/// assert_eq!(utilities, [vec![1, 2], vec![], vec![0, 1, 2], vec![2]]);
/// ```
pub fn utilities_of_traces(functions: usize, traces: &[impl AsRef<[u32]>]) -> Vec<Vec<u32>> {
    let mut utilities: Vec<Vec<u32>> = vec![Vec::new(); functions];
    let mut next = 0u32;
    for trace in traces {
        let mut seen = vec![false; functions];
        let mut firsts: Vec<u32> = trace.as_ref().to_vec();
        firsts.retain(|&function| {
            seen.get_mut(function as usize)
                .is_some_and(|seen| !std::mem::replace(seen, true))
        });
        // The first utility that holds all functions is the last one.
        let levels = firsts.len().next_power_of_two().trailing_zeros() + 1;
        for (time, &function) in firsts.iter().enumerate() {
            let lowest = (time + 1).next_power_of_two().trailing_zeros();
            utilities[function as usize]
                .extend((lowest..levels).map(|level| next.saturating_add(level)));
        }
        next = next.saturating_add(levels);
    }
    utilities
}

/// How many functions with a utility are in each half.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    left: u32,
    right: u32,
}

impl Count {
    fn cost(self) -> f64 {
        let term = |count: u32| f64::from(count) * (f64::from(count) + 1.0).log2();
        -term(self.left) - term(self.right)
    }
}

struct Bisector {
    /// The utilities of each function: entries `firsts[f]..firsts[f + 1]` of `utilities`, distinct,
    /// ascending, densely numbered.
    firsts: Vec<usize>,
    utilities: Vec<u32>,
    counts: Vec<Count>,
    /// What moving a function from the left to the right half saves, and back, for each utility.
    savings: Vec<[f64; 2]>,
    is_right: Vec<bool>,
}

impl Bisector {
    fn new(utilities: &[impl AsRef<[u32]>]) -> Self {
        let mut numbers: FxHashMap<u32, u32> = FxHashMap::default();
        let mut bisector = Self {
            firsts: vec![0],
            utilities: Vec::new(),
            counts: Vec::new(),
            savings: Vec::new(),
            is_right: vec![false; utilities.len()],
        };
        for list in utilities {
            let mut list: Vec<u32> = list.as_ref().to_vec();
            list.sort_unstable();
            list.dedup();
            let first = bisector.utilities.len();
            for utility in list {
                let fresh = numbers.len() as u32;
                bisector
                    .utilities
                    .push(*numbers.entry(utility).or_insert(fresh));
            }
            bisector.utilities[first..].sort_unstable();
            bisector.firsts.push(bisector.utilities.len());
        }
        bisector.counts.resize(numbers.len(), Count::default());
        bisector.savings.resize(numbers.len(), [0.0; 2]);
        bisector
    }

    fn utilities(&self, function: u32) -> &[u32] {
        &self.utilities[self.firsts[function as usize]..self.firsts[function as usize + 1]]
    }

    /// Orders some functions, which come in the order of the input.
    fn divide(&mut self, functions: &mut [u32], depth: u32, placed: &mut dyn FnMut(usize)) {
        if functions.len() < 2 || depth == 0 {
            placed(functions.len());
            return;
        }
        self.improve(functions);
        // Which half is left does not matter to the cost: it is that of the first function. Within
        // the halves functions are in the order of the input again.
        let first = self.is_right[functions[0] as usize];
        functions.sort_by_key(|&function| (self.is_right[function as usize] != first, function));
        let half = functions.partition_point(|&function| self.is_right[function as usize] == first);
        let (left, right) = functions.split_at_mut(half);
        self.divide(left, depth - 1, placed);
        self.divide(right, depth - 1, placed);
    }

    /// Sets [`Self::is_right`] for `functions`, for half of them each way.
    fn improve(&mut self, functions: &[u32]) {
        let half = functions.len().div_ceil(2);
        for (index, &function) in functions.iter().enumerate() {
            self.is_right[function as usize] = index >= half;
        }
        let mut present: Vec<u32> = functions
            .iter()
            .flat_map(|&function| self.utilities(function))
            .copied()
            .collect();
        present.sort_unstable();
        present.dedup();
        for &utility in &present {
            self.counts[utility as usize] = Count::default();
        }
        for &function in functions {
            for entry in self.firsts[function as usize]..self.firsts[function as usize + 1] {
                let count = &mut self.counts[self.utilities[entry] as usize];
                *(if self.is_right[function as usize] {
                    &mut count.right
                } else {
                    &mut count.left
                }) += 1;
            }
        }
        // A utility of all functions has no influence on how they are divided, nor has one of a
        // single function.
        present.retain(|&utility| {
            let Count { left, right } = self.counts[utility as usize];
            self.savings[utility as usize] = [0.0; 2];
            left + right > 1 && (left + right) as usize != functions.len()
        });
        let mut gains: [Vec<(f64, u32)>; 2] = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            self.find_savings(&present);
            gains.iter_mut().for_each(Vec::clear);
            for &function in functions {
                let side = usize::from(self.is_right[function as usize]);
                let gain = self
                    .utilities(function)
                    .iter()
                    .map(|&utility| self.savings[utility as usize][side])
                    .sum();
                gains[side].push((gain, function));
            }
            for side in &mut gains {
                side.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            }
            let [left, right] = &gains;
            let mut left = left.iter();
            let mut gained = false;
            'pairs: for &(from_right, b) in right {
                for &(from_left, a) in left.by_ref() {
                    if from_left + from_right <= 0.0 {
                        break 'pairs;
                    }
                    // What both have in common stays as it is when they change places.
                    if from_left + from_right - self.common_savings(a, b) > 0.0 {
                        gained = true;
                        if !stays(a, round) && !stays(b, round) {
                            self.change_side(a);
                            self.change_side(b);
                        }
                        continue 'pairs;
                    }
                }
                break;
            }
            if !gained {
                break;
            }
        }
    }

    /// Brings [`Self::savings`] of some utilities up to date with their counts.
    fn find_savings(&mut self, utilities: &[u32]) {
        for &utility in utilities {
            let count = self.counts[utility as usize];
            let Count { left, right } = count;
            let now = count.cost();
            let mut savings = [0.0; 2];
            if left > 0 {
                savings[0] = now
                    - Count {
                        left: left - 1,
                        right: right + 1,
                    }
                    .cost();
            }
            if right > 0 {
                savings[1] = now
                    - Count {
                        left: left + 1,
                        right: right - 1,
                    }
                    .cost();
            }
            self.savings[utility as usize] = savings;
        }
    }

    /// What moving the left function `a` and the right function `b` seems to save by the utilities
    /// that both have.
    fn common_savings(&self, a: u32, b: u32) -> f64 {
        let mut others = self.utilities(b).iter().peekable();
        let mut sum = 0.0;
        for &utility in self.utilities(a) {
            while others.next_if(|&&other| other < utility).is_some() {}
            if others.next_if_eq(&&utility).is_some() {
                sum += self.savings[utility as usize].iter().sum::<f64>();
            }
        }
        sum
    }

    fn change_side(&mut self, function: u32) {
        let is_right = &mut self.is_right[function as usize];
        *is_right = !*is_right;
        for entry in self.firsts[function as usize]..self.firsts[function as usize + 1] {
            let count = &mut self.counts[self.utilities[entry] as usize];
            if *is_right {
                count.left -= 1;
                count.right += 1;
            } else {
                count.left += 1;
                count.right -= 1;
            }
        }
    }
}

/// Whether a function does not move in a round: as good as random, but always the same.
fn stays(function: u32, round: u64) -> bool {
    let mut hash = (u64::from(function) << 32 | round).wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ hash >> 31).is_multiple_of(STAYS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arbtest::arbtest;

    #[test]
    fn the_order_is_a_permutation_that_costs_at_most_that_of_the_input() {
        arbtest(|u| {
            let mut utilities: Vec<Vec<u32>> = Vec::new();
            for _ in 0..u.int_in_range(0..=40)? {
                let number = u.int_in_range(0..=5)?;
                let list =
                    (0..number).map(|_| Ok(*u.choose(&[0, 1, 2, 3, 4, 5, 6, 7, u32::MAX])?));
                utilities.push(list.collect::<arbitrary::Result<_>>()?);
            }
            let mut placed = 0;
            assert_eq!(
                order_told(&utilities, &mut |more| placed += more),
                order(&utilities)
            );
            assert_eq!(placed, utilities.len(), "told of all");
            let identity: Vec<u32> = (0..utilities.len() as u32).collect();
            let order = order(&utilities);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, identity);
            assert!(cost(&utilities, &order) <= cost(&utilities, &identity));
            Ok(())
        });
    }

    #[test]
    fn functions_without_utilities_keep_their_order_behind_the_others() {
        assert_eq!(
            order(&[vec![], vec![1], vec![], vec![2], vec![], vec![1]]),
            [1, 5, 3, 0, 2, 4]
        );
        assert_eq!(order(&vec![Vec::new(); 9]), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            order(&vec![vec![5]; 9]),
            [0, 1, 2, 3, 4, 5, 6, 7, 8],
            "nor with the same ones"
        );
    }

    #[test]
    fn the_cost_is_the_logarithm_of_the_distance_between_neighbours() {
        let utilities = [
            vec![1],
            vec![],
            vec![],
            vec![],
            vec![1, 2],
            vec![1],
            vec![2],
        ];
        assert_eq!(cost(&utilities, &[0, 1, 2, 3, 4, 5, 6]), 2.0 + 0.0 + 1.0);
        assert_eq!(cost(&utilities, &[0, 5, 4, 6, 1, 2, 3]), 0.0);
    }

    /// Functions that are called at the start, scattered over a program of 4096 functions.
    fn trace() -> Vec<u32> {
        (0..200u32).map(|time| time * 1237 % 4096).collect()
    }

    /// How many pages of 32 functions a start touches.
    fn pages_of(trace: &[u32], order: &[u32]) -> usize {
        let place = |called| order.iter().position(|function| function == called);
        let mut pages: Vec<usize> = trace.iter().map(|f| place(f).unwrap() / 32).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    }

    #[test]
    fn functions_of_a_start_are_on_the_same_pages() {
        let trace = trace();
        let utilities = utilities_of_traces(4096, &[&trace]);
        let order = order(&utilities);
        // Pages of 32 functions; 200 functions need 7 of them.
        let pages = pages_of(&trace, &order);
        assert!(pages <= 7, "{pages} pages");
    }

    #[test]
    fn functions_of_two_kinds_of_start_are_apart() {
        // Both starts call the first 50 functions, then each its own.
        let all = trace();
        let one: Vec<u32> = all[..50].iter().chain(&all[50..125]).copied().collect();
        let two: Vec<u32> = all[..50].iter().chain(&all[125..]).copied().collect();
        let utilities = utilities_of_traces(4096, &[&one, &two]);
        let order = order(&utilities);
        for trace in [one, two] {
            let pages = pages_of(&trace, &order);
            // 125 functions need 4 pages, and not all fit well; in one heap they would be on 7.
            assert!(pages <= 6, "{pages} pages");
        }
    }

    #[test]
    fn later_calls_in_a_trace_do_not_matter() {
        assert_eq!(
            utilities_of_traces(3, &[[1, 0, 1, 2, 0, 7]]),
            utilities_of_traces(3, &[[1, 0, 2]])
        );
        let none: [[u32; 0]; 1] = [[]];
        assert_eq!(utilities_of_traces(2, &none), [vec![], vec![]]);
    }
}

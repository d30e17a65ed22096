//! The order of functions: cache-directed sort.
//!
//! # The problem
//!
//! Functions that run at the same time should share pages and cache lines, and a call should not go
//! far: instruction caches and their translation buffers are small. Functions can be moved freely,
//! so this is a problem of linear arrangement, and hard.
//!
//! # The way
//!
//! Chains of functions are merged greedily, starting with single functions. The gain of putting the
//! chains X and Y side by side has two parts.
//!
//! **Distance.** A call over `D` bytes is worth `D^-0.25`: twice as near is a bit better, at any
//! scale. Between chains the distance is not known, and is taken as `T`, the size of all functions
//! with samples. With `c` calls, the gain is the sum of `c (D^-0.25 - T^-0.25)`.
//!
//! **Frequency.** Imagine a cache of 16 entries of 2048 bytes, and a program that touches entries
//! independently with the probability of their samples. A chain with `n` samples in `s` bytes finds
//! its entry missing with the probability `p = (1 - 2048 n / (s N))^16`, where `N` is the number of
//! all samples: no access of the last 16 went there. Merging chains gains `n(X) p(X) + n(Y) p(Y) -
//! (n(X) + n(Y)) p(XY)`, which keeps chains of different density apart.
//!
//! The gain is distance + 0.25 × frequency, divided by the size of the smaller chain (if positive),
//! so that bytes compete, not chains. The pair with the largest gain is merged first; nothing is
//! merged at a loss, nor to chains of more than 128 functions, which keeps the density of chains
//! sharp. In the end chains are by falling density.
//!
//! This is the sort that BOLT's `-reorder-functions=cdsort` and lld's
//! `--call-graph-profile-sort=cdsort` name, with their constants.

use crate::call_graph::{Arc, CallGraph, Function};
use crate::heap::{Gain, Heap};
use crate::links::Links;

/// Entries of the imagined cache.
const CACHE_ENTRIES: i32 = 16;
/// Bytes of one of its entries.
const CACHE_ENTRY_SIZE: f64 = 2048.0;
/// Chains have at most this many functions.
const MAX_FUNCTIONS: usize = 128;
/// How much the frequency part weighs.
const FREQUENCY_SCALE: f64 = 0.25;
/// The distance of a call to where it comes from, in bytes.
const MIN_DISTANCE: f64 = 0.1;
/// Smaller gains are rounding errors.
const MIN_GAIN: f64 = 1e-8;

/// A good order of functions: those with samples as computed (see the [module](self)), then the
/// others in the order that came in.
///
/// Arcs from or to functions that do not exist are ignored.
///
/// ```
/// use postlink_layout::call_graph::{Arc, Function};
/// use postlink_layout::cdsort::order;
/// let functions = [(100, 0), (100, 500), (100, 20), (100, 500)].map(|(size, samples)| Function { size, samples });
/// let arcs = [Arc { caller: 3, callee: 1, count: 400, offset: 50 }];
/// // The two hot functions, the caller before the callee, then the warm one, then the one that never ran.
/// assert_eq!(order(&functions, &arcs), [3, 1, 2, 0]);
/// ```
pub fn order(functions: &[Function], arcs: &[Arc]) -> Vec<u32> {
    let graph = CallGraph::new(functions, arcs);
    let mut sort = Sort::new(&graph);
    sort.merge();
    graph.complete(sort.concatenate())
}

#[derive(Debug, Default)]
struct Chain {
    functions: Vec<u32>,
    size: f64,
    samples: f64,
    /// Expected number of samples that miss the imagined cache.
    misses: f64,
}

struct Sort<'a> {
    graph: &'a CallGraph,
    chains: Vec<Chain>,
    chain_of: Vec<u32>,
    /// Offset in bytes of each function in its chain.
    start: Vec<f64>,
    links: Links,
    total_samples: f64,
    /// The value of a call between chains.
    far: f64,
}

/// The largest gain first, then low chain numbers (kept as their complements), which is the order
/// that came in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    gain: Gain,
    low: u32,
    high: u32,
}

impl<'a> Sort<'a> {
    fn new(graph: &'a CallGraph) -> Self {
        let number = graph.sizes.len();
        let total = |values: &[f64]| {
            graph
                .hot()
                .map(|function| values[function as usize])
                .sum::<f64>()
        };
        let mut sort = Self {
            graph,
            chains: Vec::with_capacity(number),
            chain_of: (0..number as u32).collect(),
            start: vec![0.0; number],
            links: Links::new(
                number,
                graph.calls.iter().map(|call| (call.caller, call.callee)),
            ),
            total_samples: total(&graph.samples),
            far: nearness(total(&graph.sizes)),
        };
        for function in 0..number {
            let (size, samples) = (graph.sizes[function], graph.samples[function]);
            let functions = if samples > 0.0 {
                vec![function as u32]
            } else {
                Vec::new()
            };
            let misses = sort.misses(size, samples);
            sort.chains.push(Chain {
                functions,
                size,
                samples,
                misses,
            });
        }
        sort
    }

    /// How many samples of a chain are expected to miss the imagined cache.
    fn misses(&self, size: f64, samples: f64) -> f64 {
        let elsewhere = 1.0 - samples / size * CACHE_ENTRY_SIZE / self.total_samples;
        samples * elsewhere.max(0.0).powi(CACHE_ENTRIES)
    }

    fn merge(&mut self) {
        let mut queue: Heap<Key> = Heap::new(self.links.pairs());
        for pair in 0..self.links.pairs() as u32 {
            self.enqueue(&mut queue, pair);
        }
        while let Some((_, pair)) = queue.peek() {
            let (_, first, second) = self.best(pair);
            self.append(first, second);
            self.links.merge(first, second, |pair| queue.remove(pair));
            let neighbours = self.links.take_neighbours(first);
            for &pair in &neighbours {
                self.enqueue(&mut queue, pair);
            }
            self.links.put_neighbours(first, neighbours);
        }
    }

    fn enqueue(&self, queue: &mut Heap<Key>, pair: u32) {
        let [a, b] = self.links.chains(pair);
        let functions =
            self.chains[a as usize].functions.len() + self.chains[b as usize].functions.len();
        let gain = if functions > MAX_FUNCTIONS {
            0.0
        } else {
            self.best(pair).0
        };
        if gain > MIN_GAIN {
            queue.set(
                pair,
                Key {
                    gain: Gain(gain),
                    low: !a.min(b),
                    high: !a.max(b),
                },
            );
        } else {
            queue.remove(pair);
        }
    }

    /// The gain of merging the chains of a pair, and which comes first and second. Of equals the
    /// one with the lower number.
    fn best(&self, pair: u32) -> (f64, u32, u32) {
        let [a, b] = self.links.chains(pair);
        let (a, b) = (a.min(b), a.max(b));
        let (x, y) = (&self.chains[a as usize], &self.chains[b as usize]);
        let mut ahead = 0.0;
        let mut behind = 0.0;
        for call in self.links.arcs(pair) {
            let call = &self.graph.calls[call as usize];
            // As if both chains started at 0; then the second is moved after the first.
            let site = self.start[call.caller as usize] + call.offset;
            let distance = self.start[call.callee as usize] - site;
            let (forth, back) = if self.chain_of[call.caller as usize] == a {
                (distance + x.size, distance - y.size)
            } else {
                (distance - x.size, distance + y.size)
            };
            ahead += call.count * (nearness(forth) - self.far);
            behind += call.count * (nearness(back) - self.far);
        }
        let frequency = x.misses + y.misses - self.misses(x.size + y.size, x.samples + y.samples);
        let gain = ahead.max(behind) + FREQUENCY_SCALE * frequency;
        let gain = if gain >= 0.0 {
            gain / x.size.min(y.size)
        } else {
            gain
        };
        if ahead >= behind {
            (gain, a, b)
        } else {
            (gain, b, a)
        }
    }

    /// Moves the functions of a chain after those of another. The links are left to the caller.
    fn append(&mut self, first: u32, second: u32) {
        let chain = std::mem::take(&mut self.chains[second as usize]);
        let size = self.chains[first as usize].size;
        for &function in &chain.functions {
            self.chain_of[function as usize] = first;
            self.start[function as usize] += size;
        }
        let (size, samples) = (
            size + chain.size,
            self.chains[first as usize].samples + chain.samples,
        );
        let misses = self.misses(size, samples);
        let whole = &mut self.chains[first as usize];
        (whole.size, whole.samples, whole.misses) = (size, samples, misses);
        whole.functions.extend(chain.functions);
    }

    /// All functions with samples, chains by falling density.
    fn concatenate(self) -> Vec<u32> {
        let mut chains: Vec<&Chain> = self
            .chains
            .iter()
            .filter(|chain| !chain.functions.is_empty())
            .collect();
        // Stable, so that ties stay in the order of chain numbers.
        chains.sort_by_key(|chain| std::cmp::Reverse(Gain(chain.samples / chain.size)));
        chains
            .into_iter()
            .flat_map(|chain| &chain.functions)
            .copied()
            .collect()
    }
}

/// The value of a call over a distance in bytes, which may be negative: its absolute value to the
/// power of -0.25.
fn nearness(distance: f64) -> f64 {
    let distance = distance.abs();
    1.0 / (if distance == 0.0 {
        MIN_DISTANCE
    } else {
        distance
    })
    .sqrt()
    .sqrt()
}

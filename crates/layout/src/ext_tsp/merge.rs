//! Greedy chain merging.
//!
//! # The idea
//!
//! Every block starts as a chain of its own. Chains X and Y that are joined by a counted jump can
//! be merged in four ways, the first of them also with the roles changed:
//!
//! | way | result | for |
//! |---|---|---|
//! | [`Way::Append`] | X Y | a fall-through from the end of X to the start of Y |
//! | [`Way::Insert`] | X1 Y X2 | a detour |
//! | [`Way::TurnBehind`] | Y X2 X1 | entering X in the middle: loop rotation |
//! | [`Way::TurnBefore`] | X2 X1 Y | leaving X in the middle |
//!
//! The merge with the largest gain in score is made, until none gains.
//!
//! # Being fast
//!
//! Evaluating every cut of X for every neighbour after every merge is cubic, and a block with a
//! thousand successors (the dispatch of an interpreter) makes that hurt. Three observations help:
//!
//! * Only arcs between X and Y and jumps of X *across the cut* change their score, so a gain is a
//!   sum over few jumps.
//! * For each cut of a chain a bound on that change does not depend on Y: inserting anything at the
//!   cut breaks the fall-through there ([`Cut::breaks`]); a turn at the cut breaks it as well and
//!   at best makes all jumps across the cut as short as can be ([`Cut::turn`]). Most cuts are
//!   ruled out by it.
//! * A pair of chains needs no gain as long as an upper bound of it is less than the largest gain
//!   known. The queue holds bounds and gains; only a bound that comes to the top is made exact.
//!
//! None of this changes the result: it is the largest gain that is taken, ties going to the lower
//! chain numbers.
//!
//! # Limits
//!
//! Chains of [`MAX_BLOCKS`] blocks or more are not made, nor chains whose densities (executions per
//! byte) are too far apart: a cold chain would be dragged into hot code. Chains beyond
//! [`MAX_CUT_ANYWHERE`] blocks are cut only where a jump to or from the ends of Y is.

use super::graph::Graph;
use crate::heap::{Gain, Heap};
use crate::links::Links;
use smallvec::SmallVec;

/// Merged chains have fewer blocks than this.
const MAX_BLOCKS: usize = 512;
/// Chains of at most this many blocks are cut anywhere.
const MAX_CUT_ANYWHERE: usize = 128;
/// Chains whose densities have a larger ratio are not merged.
const MAX_DENSITY_RATIO: f64 = 100.0;
/// Smaller gains are rounding errors.
const MIN_GAIN: f64 = 1e-8;

/// How two chains are put together; X is the chain that may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// X Y
    Append,
    /// X1 Y X2
    Insert,
    /// Y X2 X1
    TurnBehind,
    /// X2 X1 Y
    TurnBefore,
}

/// A merge and what it gains.
#[derive(Clone, Copy, Debug)]
struct Merge {
    gain: f64,
    x: u32,
    y: u32,
    way: Way,
    /// The index in X of the first block of X2; 0 in [`Way::Append`].
    cut: usize,
}

impl Merge {
    /// No merge: only one that gains is larger.
    const NONE: Self = Self {
        gain: MIN_GAIN,
        x: NONE,
        y: NONE,
        way: Way::Append,
        cut: 0,
    };
}

/// The blocks of a chain. Most chains that ever are have a few, and there is one for each block at
/// first: those are kept without memory of their own.
type Blocks = SmallVec<[u32; 4]>;

/// Blocks that are together.
#[derive(Debug, Default)]
struct Chain {
    blocks: Blocks,
    size: i64,
    count: f64,
    /// The largest turn of all cuts, exact if it is positive.
    best_turn: f64,
}

/// What is known of cutting a chain in front of a block. It is kept by block, in one list for all
/// chains.
#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    /// The score lost for sure when the blocks before and after it are parted; infinite where that
    /// is not allowed.
    breaks: f64,
    /// How much the score of the jumps inside changes by turning the parts, or an upper bound of
    /// it. There is nothing to turn in front of the first block: negative infinity.
    turn: f64,
    /// Whether that is exact.
    exact: bool,
}

impl Chain {
    fn density(&self) -> f64 {
        self.count / self.size as f64
    }

    fn is_entry(&self) -> bool {
        self.blocks.first() == Some(&0)
    }
}

/// The order of all blocks by chain merging, the entry first.
pub(super) fn order(graph: &Graph) -> Vec<u32> {
    let mut merger = Merger::new(graph);
    merger.merge_by_gain();
    merger.merge_by_control_flow();
    merger.concatenate()
}

struct Merger<'a> {
    graph: &'a Graph,
    chains: Vec<Chain>,
    chain_of: Vec<u32>,
    /// Index of each block in its chain.
    index: Vec<u32>,
    /// Offset in bytes of each block in its chain.
    start: Vec<i64>,
    /// The block that must follow, or `NONE`.
    forced: Vec<u32>,
    /// By block, of chains with more than one.
    cuts: Vec<Cut>,
    /// Scratch for `bound_cuts`.
    differences: Vec<f64>,
    links: Links,
}

const NONE: u32 = u32::MAX;

impl<'a> Merger<'a> {
    fn new(graph: &'a Graph) -> Self {
        let number = graph.blocks();
        let forced = forced_successors(graph);
        let mut merger = Self {
            graph,
            chains: (0..number).map(|_| Chain::default()).collect(),
            chain_of: vec![NONE; number],
            index: vec![0; number],
            start: vec![0; number],
            links: Links::new(0, std::iter::empty()),
            forced,
            cuts: vec![Cut::default(); number],
            differences: Vec::new(),
        };
        let mut is_target = vec![false; number];
        for &next in merger.forced.iter().filter(|&&next| next != NONE) {
            is_target[next as usize] = true;
        }
        for first in 0..number as u32 {
            if !is_target[first as usize] {
                let next =
                    |&block: &u32| Some(merger.forced[block as usize]).filter(|&next| next != NONE);
                let blocks = std::iter::successors(Some(first), next).collect();
                merger.set_blocks(first, blocks, 0);
            }
        }
        let chain_of = &merger.chain_of;
        let ends = graph
            .jumps
            .iter()
            .map(|jump| (chain_of[jump.from as usize], chain_of[jump.to as usize]));
        merger.links = Links::new(number, ends);
        for chain in 0..number as u32 {
            merger.bound_cuts(chain);
        }
        merger
    }

    /// Makes `blocks` the content of a chain, the first `unmoved` of which were its start before.
    fn set_blocks(&mut self, number: u32, blocks: Blocks, unmoved: usize) {
        let chain = &mut self.chains[number as usize];
        let mut size = match unmoved.checked_sub(1).map(|last| blocks[last] as usize) {
            Some(last) => self.start[last] + self.graph.sizes[last],
            None => 0,
        };
        for (index, &block) in blocks.iter().enumerate().skip(unmoved) {
            let block = block as usize;
            if self.chain_of[block] != number {
                self.chain_of[block] = number;
                chain.count += self.graph.counts[block];
            }
            self.index[block] = index as u32;
            self.start[block] = size;
            size += self.graph.sizes[block];
        }
        chain.size = size;
        chain.blocks = blocks;
    }

    /// Brings what is known of a chain's [cuts](Cut) up to date.
    fn bound_cuts(&mut self, number: u32) {
        let Self {
            graph,
            index,
            start,
            links,
            chains,
            forced,
            cuts,
            differences,
            ..
        } = self;
        let chain = &mut chains[number as usize];
        chain.best_turn = f64::NEG_INFINITY;
        let length = chain.blocks.len();
        if length < 2 {
            return;
        }
        for &block in &chain.blocks {
            cuts[block as usize] = Cut {
                turn: f64::NEG_INFINITY,
                ..Cut::default()
            };
        }
        // A jump across the cuts `low..=high` adds to all of them.
        differences.clear();
        differences.resize(length + 1, 0.0);
        let mut closing = 0.0;
        for jump in links.inner(number) {
            let jump = &graph.jumps[jump as usize];
            let (from, to) = (
                index[jump.from as usize] as usize,
                index[jump.to as usize] as usize,
            );
            if to == from + 1 {
                cuts[jump.to as usize].breaks += jump.extra();
            } else {
                let end = start[jump.from as usize] + graph.sizes[jump.from as usize];
                let slack = jump.near - jump.score(end, start[jump.to as usize]);
                differences[from.min(to) + 1] += slack;
                differences[from.max(to) + 1] -= slack;
                if from + 1 == length && to == 0 {
                    closing += jump.extra();
                }
            }
        }
        let mut slack = closing;
        for (before, difference) in chain.blocks.windows(2).zip(&differences[1..]) {
            let cut = &mut cuts[before[1] as usize];
            if forced[before[0] as usize] == before[1] {
                cut.breaks = f64::INFINITY;
            }
            slack += difference;
            cut.turn = slack - cut.breaks;
        }
        loop {
            let blocks = &self.chains[number as usize].blocks;
            let turn_at = |at: usize| self.cuts[blocks[at] as usize].turn;
            let higher = |best, at| {
                if turn_at(at) > turn_at(best) {
                    at
                } else {
                    best
                }
            };
            let best = (1..length).fold(0, higher);
            let cut = self.cuts[blocks[best] as usize];
            if cut.turn <= 0.0 || cut.exact {
                self.chains[number as usize].best_turn = cut.turn;
                return;
            }
            self.turn(number, best);
        }
    }

    /// The exact change of the score inside a chain when its parts before and after a cut are
    /// turned.
    fn turn(&mut self, number: u32, cut: usize) -> f64 {
        let chain = &self.chains[number as usize];
        let block = chain.blocks[cut] as usize;
        if !self.cuts[block].exact && self.cuts[block].turn > f64::NEG_INFINITY {
            let cut_at = self.start[block];
            let turn = self.across(number, cut_at, chain.size - cut_at, -cut_at);
            self.cuts[block].turn = turn;
            self.cuts[block].exact = true;
        }
        self.cuts[block].turn
    }

    /// How the score of the jumps inside a chain changes when its part before `cut_at` moves by
    /// `first` bytes and the other part by `second`.
    fn across(&self, chain: u32, cut_at: i64, first: i64, second: i64) -> f64 {
        let mut change = 0.0;
        for jump in self.links.inner(chain) {
            let jump = &self.graph.jumps[jump as usize];
            let (from, to) = (self.start[jump.from as usize], self.start[jump.to as usize]);
            let apart = match (from < cut_at, to < cut_at) {
                (true, false) => second - first,
                (false, true) => first - second,
                _ => continue,
            };
            let end = from + self.graph.sizes[jump.from as usize];
            change += jump.score(end, to + apart) - jump.score(end, to);
        }
        change
    }

    /// Merges the pair with the largest gain until none gains.
    fn merge_by_gain(&mut self) {
        let mut queue: Heap<Key> = Heap::new(self.links.pairs());
        let mut merges = vec![Merge::NONE; self.links.pairs()];
        for pair in 0..self.links.pairs() as u32 {
            self.enqueue(&mut queue, pair);
        }
        while let Some((key, pair)) = queue.peek() {
            if key.is_bound {
                let merge = self.best_merge(pair);
                merges[pair as usize] = merge;
                if merge.x == NONE {
                    queue.remove(pair);
                } else {
                    queue.set(pair, self.key(pair, merge.gain, false));
                }
                continue;
            }
            let merge = merges[pair as usize];
            let Merge { x, y, .. } = merge;
            self.apply(&merge);
            self.links.merge(x, y, |pair| queue.remove(pair));
            self.bound_cuts(x);
            let neighbours = self.links.take_neighbours(x);
            for &pair in &neighbours {
                self.enqueue(&mut queue, pair);
            }
            self.links.put_neighbours(x, neighbours);
        }
    }

    /// Puts a pair into the queue under an upper bound of its gain, or takes it out if it can gain
    /// nothing.
    fn enqueue(&self, queue: &mut Heap<Key>, pair: u32) {
        let bound = self.bound(pair);
        if bound > MIN_GAIN {
            queue.set(pair, self.key(pair, bound, true));
        } else {
            queue.remove(pair);
        }
    }

    fn key(&self, pair: u32, gain: f64, is_bound: bool) -> Key {
        let [a, b] = self.links.chains(pair);
        Key {
            gain: Gain(gain),
            is_bound,
            low: !a.min(b),
            high: !a.max(b),
        }
    }

    /// An upper bound of what merging the chains of a pair gains, in a time that does not depend on
    /// their length.
    fn bound(&self, pair: u32) -> f64 {
        let [a, b] = self
            .links
            .chains(pair)
            .map(|chain| &self.chains[chain as usize]);
        let (low, high) = (a.density().min(b.density()), a.density().max(b.density()));
        if a.blocks.len() + b.blocks.len() >= MAX_BLOCKS || high > low * MAX_DENSITY_RATIO {
            return 0.0;
        }
        // Every jump between the chains scores at most as a short one, but for fall-throughs where
        // the chains touch. They touch in one place, or at both ends of Y in an insertion. There
        // the fall-through at the cut is lost once; charging each of two jumps with half of the
        // loss keeps this a bound.
        let mut near = 0.0;
        let mut insert = 0.0;
        let mut turn = a.best_turn.max(b.best_turn);
        for jump in self.links.arcs(pair) {
            let jump = &self.graph.jumps[jump as usize];
            let source = &self.chains[self.chain_of[jump.from as usize] as usize];
            let target = &self.chains[self.chain_of[jump.to as usize] as usize];
            let leave = self.index[jump.from as usize] as usize + 1;
            let enter = self.index[jump.to as usize] as usize;
            near += jump.near;
            let (loss, turned) = match (leave == source.blocks.len(), enter == 0) {
                (true, true) => (0.0, 0.0),
                (false, true) => self.cut(source, leave),
                (true, false) => self.cut(target, enter),
                (false, false) => continue,
            };
            insert += (jump.extra() - loss / 2.0).max(0.0);
            turn = turn.max(jump.extra() + turned);
        }
        near + insert.max(turn).max(0.0)
    }

    /// [`Cut::breaks`] and [`Cut::turn`] of the cut in front of the block with this index.
    fn cut(&self, chain: &Chain, index: usize) -> (f64, f64) {
        let Cut { breaks, turn, .. } = self.cuts[chain.blocks[index] as usize];
        (breaks, turn)
    }

    /// The best merge of the chains of a pair, or [`Merge::NONE`].
    fn best_merge(&mut self, pair: u32) -> Merge {
        let [a, b] = self.links.chains(pair);
        let mut best = Merge::NONE;
        self.try_merges(pair, a.min(b), a.max(b), &mut best);
        self.try_merges(pair, a.max(b), a.min(b), &mut best);
        best
    }

    /// Tries all ways to put `y` to or into `x`.
    fn try_merges(&mut self, pair: u32, x: u32, y: u32, best: &mut Merge) {
        let (chain, other) = (&self.chains[x as usize], &self.chains[y as usize]);
        self.try_merge(
            pair,
            Merge {
                gain: 0.0,
                x,
                y,
                way: Way::Append,
                cut: 0,
            },
            best,
        );

        // At most all jumps between the chains become short, and those at the ends of Y fall
        // through.
        let mut reach = 0.0;
        let mut cuts: SmallVec<[usize; 16]> = SmallVec::new();
        for jump in self.links.arcs(pair) {
            let jump = &self.graph.jumps[jump as usize];
            reach += jump.near;
            if jump.to == other.blocks[0] {
                reach += jump.extra();
                cuts.push(self.index[jump.from as usize] as usize + 1);
            } else if Some(&jump.from) == other.blocks.last() {
                reach += jump.extra();
                cuts.push(self.index[jump.to as usize] as usize);
            }
        }
        if chain.blocks.len() <= MAX_CUT_ANYWHERE {
            cuts.clear();
            cuts.extend(1..chain.blocks.len());
        } else {
            cuts.sort_unstable();
            cuts.dedup();
            cuts.retain(|cut| (1..chain.blocks.len()).contains(cut));
        }
        for cut in cuts {
            let (breaks, turn) = self.cut(&self.chains[x as usize], cut);
            let gain = reach - breaks;
            let turned = reach + turn;
            if gain > best.gain {
                self.try_merge(
                    pair,
                    Merge {
                        gain,
                        x,
                        y,
                        way: Way::Insert,
                        cut,
                    },
                    best,
                );
            }
            if turned > best.gain && reach + self.turn(x, cut) > best.gain {
                self.try_merge(
                    pair,
                    Merge {
                        x,
                        y,
                        way: Way::TurnBehind,
                        cut,
                        gain,
                    },
                    best,
                );
                self.try_merge(
                    pair,
                    Merge {
                        x,
                        y,
                        way: Way::TurnBefore,
                        cut,
                        gain,
                    },
                    best,
                );
            }
        }
    }

    /// Makes a merge the best one, if it is allowed and gains more.
    fn try_merge(&self, pair: u32, mut merge: Merge, best: &mut Merge) {
        let is_entry = |chain: u32| self.chains[chain as usize].is_entry();
        let entry_moves = match merge.way {
            Way::Append | Way::Insert => is_entry(merge.y),
            Way::TurnBehind => is_entry(merge.x),
            Way::TurnBefore => is_entry(merge.x) || is_entry(merge.y),
        };
        if !entry_moves {
            merge.gain = self.gain(pair, &merge, best.gain);
            if merge.gain > best.gain {
                *best = merge;
            }
        }
    }

    /// What a merge gains; anything not larger than `least` if it does not gain more than that.
    /// Turns must be exact.
    fn gain(&self, pair: u32, merge: &Merge, least: f64) -> f64 {
        let &Merge { x, y, way, cut, .. } = merge;
        let (chain, other) = (&self.chains[x as usize], &self.chains[y as usize]);
        // Where the parts of X and Y move to. All of X counts as X1 when it is not cut.
        let cut_at = if cut == 0 {
            chain.size
        } else {
            self.start[chain.blocks[cut] as usize]
        };
        let (first, second, whole) = match way {
            Way::Append => (0, 0, chain.size),
            Way::Insert => (0, other.size, cut_at),
            Way::TurnBehind => (other.size + chain.size - cut_at, other.size - cut_at, 0),
            Way::TurnBefore => (chain.size - cut_at, -cut_at, chain.size),
        };
        let moved = |block: u32| {
            let start = self.start[block as usize];
            if self.chain_of[block as usize] == y {
                start + whole
            } else if start < cut_at {
                start + first
            } else {
                start + second
            }
        };
        let mut between = 0.0;
        for jump in self.links.arcs(pair) {
            let jump = &self.graph.jumps[jump as usize];
            let end = moved(jump.from) + self.graph.sizes[jump.from as usize];
            between += jump.score(end, moved(jump.to));
        }
        match way {
            Way::Append => between,
            Way::Insert if between - self.cut(chain, cut).0 <= least => least,
            Way::Insert => between + self.across(x, cut_at, first, second),
            Way::TurnBehind | Way::TurnBefore => between + self.cut(chain, cut).1,
        }
    }

    /// Puts the blocks of Y to those of X. The links are left to the caller.
    fn apply(&mut self, merge: &Merge) {
        let mut blocks = std::mem::take(&mut self.chains[merge.x as usize].blocks);
        let other = std::mem::take(&mut self.chains[merge.y as usize]).blocks;
        let mut unmoved = 0;
        match merge.way {
            Way::Append => {
                unmoved = blocks.len();
                blocks.extend_from_slice(&other);
            }
            Way::Insert => {
                unmoved = merge.cut;
                blocks.insert_from_slice(merge.cut, &other);
            }
            Way::TurnBehind => {
                blocks.rotate_left(merge.cut);
                blocks.insert_from_slice(0, &other);
            }
            Way::TurnBefore => {
                blocks.rotate_left(merge.cut);
                blocks.extend_from_slice(&other);
            }
        }
        self.set_blocks(merge.x, blocks, unmoved);
    }

    /// Joins chains where control may go from the end of one to the start of another, though it was
    /// not seen to. The chains that are left are cold or strangers: what falls through in the order
    /// that came in continues doing so, then any other edge may.
    fn merge_by_control_flow(&mut self) {
        let graph = self.graph;
        for &(from, to) in graph
            .edges()
            .iter()
            .filter(|&&(from, to)| from.checked_add(1) == Some(to))
        {
            self.join(from, to);
        }
        for &(from, to) in graph.edges() {
            self.join(from, to);
        }
    }

    /// Joins the chains that end with one and start with the other block, if there are such and
    /// both are hot or both cold.
    fn join(&mut self, block: u32, target: u32) {
        let (x, y) = (
            self.chain_of[block as usize],
            self.chain_of[target as usize],
        );
        let (chain, other) = (&self.chains[x as usize], &self.chains[y as usize]);
        let meet = chain.blocks.last() == Some(&block) && other.blocks.first() == Some(&target);
        if x != y && meet && target != 0 && (chain.count > 0.0) == (other.count > 0.0) {
            self.apply(&Merge {
                x,
                y,
                ..Merge::NONE
            });
        }
    }

    /// All blocks: the chain of the entry, then the others by falling density.
    fn concatenate(self) -> Vec<u32> {
        let mut chains: Vec<&Chain> = self
            .chains
            .iter()
            .filter(|chain| !chain.blocks.is_empty())
            .collect();
        // Stable, so that ties stay in the order of chain numbers.
        chains.sort_by_key(|chain| (!chain.is_entry(), std::cmp::Reverse(Gain(chain.density()))));
        chains
            .into_iter()
            .flat_map(|chain| &chain.blocks)
            .copied()
            .collect()
    }
}

/// The order of the queue: the largest gain; a bound before a gain of the same size, so that ties
/// are between gains; then low chain numbers (kept as their complements).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    gain: Gain,
    is_bound: bool,
    low: u32,
    high: u32,
}

/// For each block the one that has to follow: its only successor, if it is the only predecessor of
/// that.
///
/// Not if control was never seen to go there from an executed block: that is a call which did not
/// return, and the block after it is cold.
fn forced_successors(graph: &Graph) -> Vec<u32> {
    let number = graph.blocks();
    let mut successor = vec![NONE; number];
    let mut ways = vec![0u32; number];
    let mut predecessors = vec![0u32; number];
    for &(from, to) in graph.edges() {
        successor[from as usize] = to;
        ways[from as usize] += 1;
        predecessors[to as usize] += 1;
    }
    let is_counted = |from: u32, to: u32| {
        graph
            .jumps
            .binary_search_by_key(&(from, to), |jump| (jump.from, jump.to))
            .is_ok()
    };
    for block in 0..number {
        let to = successor[block];
        if to == NONE {
            continue;
        }
        let cold = graph.counts[block] == 0.0 && graph.counts[to as usize] == 0.0;
        let only = ways[block] == 1 && predecessors[to as usize] == 1 && to != 0;
        if !only || !(cold || is_counted(block as u32, to)) {
            successor[block] = NONE;
        }
    }

    // A cycle has no block to start with: it is opened at its lowest number.
    let mut seen = vec![NONE; number];
    for start in 0..number as u32 {
        let mut block = start;
        while block != NONE && seen[block as usize] == NONE {
            seen[block as usize] = start;
            let next = successor[block as usize];
            if next == start {
                successor[block as usize] = NONE;
            }
            block = next;
        }
    }
    successor
}

#[cfg(test)]
mod tests;

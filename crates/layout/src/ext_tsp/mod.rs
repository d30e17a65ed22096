//! The order of the blocks of a function: the extended travelling-salesman problem (ext-TSP).
//!
//! # The problem
//!
//! Blocks may be in any order as long as the entry is first; branches are adjusted. A good order
//! lets control *fall through* from block to block, since a taken branch costs a slot of the fetch
//! unit and of the branch target buffer, and keeps the remaining jumps short, so that their targets
//! are in cache lines and pages which are there already. Newell and Pupyrev ("Improved basic block
//! reordering", 2020) fitted a score to measured speed. With `c` the number of times a jump is
//! taken:
//!
//! | jump | condition, in bytes | score |
//! |---|---|---|
//! | fall-through | the target starts where the source ends | `c`, or `1.05 c` if the source has no other way to go |
//! | forward | gap `d` from the end of the source to the target, `0 < d <= 1024` | `0.1 c (1 - d / 1024)` |
//! | backward | `d` back from the end of the source to the target, `d <= 640` | `0.1 c (1 - d / 640)` |
//! | others | | 0 |
//!
//! The best order is the one with the largest sum. Finding it is NP-hard (a travelling salesman
//! hides in the fall-throughs).
//!
//! # The way
//!
//! 1. `merge` builds chains of blocks greedily, as in the paper: always the merge of two chains
//!    that gains most, where one chain may be cut and the other put between the parts.
//! 2. `exact` searches the best order of all blocks that take part in a counted jump if they are
//!    few, by branch and bound.
//! 3. The order that came in is kept unless the new one scores more.
//!
//! # Invariants
//!
//! * The result is a permutation of all blocks, and the entry, block 0, is first.
//! * Its score is at least that of the order `0, 1, 2, ...`; without counts that order is the
//!   result.
//! * The same input gives the same result: all ties are decided by numbers.
//! * Counts may be as large as 64 bits, need not be consistent, and jumps may be listed in any
//!   order, more than once, and from and to any block. Those that name no block are ignored. A
//!   block of size 0 is taken as 1 byte long.

mod exact;
mod graph;
mod merge;

use graph::Graph;
pub use graph::{FALL_CONDITIONAL, FALL_UNCONDITIONAL};

/// A basic block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Its size in bytes.
    pub size: u32,
    /// How often it was executed.
    pub count: u64,
}

/// An edge of the control-flow graph between two blocks, fall-throughs included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jump {
    /// Index of the source block.
    pub from: u32,
    /// Index of the target block.
    pub to: u32,
    /// How often it was taken; 0 is not the same as leaving the jump out, because the jumps also
    /// tell which blocks have one way to go only.
    pub count: u64,
}

/// A good order of the blocks; see the [module](self). Block 0 is the entry and comes first.
///
/// `jumps` should hold every edge of the control-flow graph, those with count 0 included.
///
/// ```
/// use postlink_layout::ext_tsp::{Block, Jump, order, score};
/// // if (unlikely) { error } rest
/// let blocks = [(10, 100), (50, 1), (20, 100)].map(|(size, count)| Block { size, count });
/// let jumps = [(0, 1, 1), (0, 2, 99), (1, 2, 1)].map(|(from, to, count)| Jump { from, to, count });
/// assert_eq!(order(&blocks, &jumps), [0, 2, 1]);
/// assert!(score(&blocks, &jumps, &[0, 2, 1]) > score(&blocks, &jumps, &[0, 1, 2]));
/// ```
pub fn order(blocks: &[Block], jumps: &[Jump]) -> Vec<u32> {
    Problem::new(blocks, jumps).order()
}

/// The ext-TSP score of an order; see the [module](self). Blocks that are missing in `order` are
/// not laid out, and jumps from or to them score 0.
pub fn score(blocks: &[Block], jumps: &[Jump], order: &[u32]) -> f64 {
    Problem::new(blocks, jumps).score(order)
}

/// A function to lay out, prepared once for several questions.
///
/// ```
/// use postlink_layout::ext_tsp::{Block, Jump, Problem, order, score};
/// let blocks = [(10, 100), (50, 1), (20, 100)].map(|(size, count)| Block { size, count });
/// let jumps = [(0, 1, 1), (0, 2, 99), (1, 2, 1)].map(|(from, to, count)| Jump { from, to, count });
/// let problem = Problem::new(&blocks, &jumps);
/// assert_eq!(problem.order(), order(&blocks, &jumps));
/// assert_eq!(problem.score(&[0, 2, 1]), score(&blocks, &jumps, &[0, 2, 1]));
/// ```
#[derive(Debug)]
pub struct Problem(Graph);

impl Problem {
    /// Prepares the blocks and jumps that [`order`] takes.
    pub fn new(blocks: &[Block], jumps: &[Jump]) -> Self {
        Self(Graph::new(blocks, jumps))
    }

    /// As [`order`].
    pub fn order(&self) -> Vec<u32> {
        self.scored_order().0
    }

    /// As [`order`], with the scores of the order that came in and of the one that is given.
    ///
    /// ```
    /// use postlink_layout::ext_tsp::{Block, Jump, Problem};
    /// let blocks = [(10, 100), (50, 1), (20, 100)].map(|(size, count)| Block { size, count });
    /// let jumps = [(0, 1, 1), (0, 2, 99), (1, 2, 1)].map(|(from, to, count)| Jump { from, to, count });
    /// let problem = Problem::new(&blocks, &jumps);
    /// let (before, after) = ([0, 1, 2], [0, 2, 1]);
    /// let scores = (problem.score(&before), problem.score(&after));
    /// assert_eq!(problem.scored_order(), (after.to_vec(), scores));
    /// ```
    pub fn scored_order(&self) -> (Vec<u32>, (f64, f64)) {
        let graph = &self.0;
        let identity: Vec<u32> = (0..graph.blocks() as u32).collect();
        let before = graph.score(&identity);
        // No order scores more than one in which all jumps fall through.
        if graph.jumps.iter().all(|jump| jump.from + 1 == jump.to) {
            return (identity, (before, before));
        }
        let mut best = merge::order(graph);
        exact::improve(graph, &mut best);
        let after = graph.score(&best);
        if after > before {
            (best, (before, after))
        } else {
            (identity, (before, before))
        }
    }

    /// As [`score`].
    pub fn score(&self, order: &[u32]) -> f64 {
        self.0.score(order)
    }
}

//! Likely counts of a control-flow graph from counts that contradict each other or are missing.
//!
//! # The problem
//!
//! Samples hit some blocks and miss others; branch records end anywhere; a profile of an older build fits the
//! newer one only here and there. Layout needs counts that conserve flow.
//!
//! # The idea
//!
//! The counts that conserve flow and differ least from those that are known, where differing has prices: He,
//! Mestre, Pupyrev, Wang, Yu, "Profile Inference Revisited" (POPL 2022); for counts carried over from another
//! build Ayupov, Panchenko, Pupyrev, "Stale Profile Matching" (CC 2024). It is a minimum-cost circulation
//! ([`crate::balance`]) on a graph with two nodes for each block, its beginning and its end, and one for the
//! outside:
//!
//! | arc | represents | price |
//! |---|---|---|
//! | beginning to end | the block | of the block's count, if it is known |
//! | end to beginning | a jump | of the jump's count, or what the jump is likely to do |
//! | outside to beginning, end to outside | entries, returns and other ways out: jumps from and to [`OUTSIDE`] | likewise |
//!
//! A circulation may hold loops that nothing leads to: a count of a loop's blocks, none on the way to them.
//! Such islands are joined to the rest by one unit over the shortest ways in and out.
//!
//! # Invariants
//!
//! * Counts that are all known and conserve flow come back as they are.
//! * The result conserves flow: a block's count is the sum of the jumps into it and of those out of it, as
//!   far as numbers of 64 bits go.
//! * Same input, same output.

use std::collections::VecDeque;

use crate::balance::{Arc, Balancer};

/// The end of a jump that enters or leaves the function.
pub const OUTSIDE: u32 = u32::MAX;

/// A block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Its count, if anything is known of it.
    pub count: Option<u64>,
}

/// What a jump without a known count does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likely {
    /// Anything: a return, a tail call, the entry of a function of which nothing is known.
    Free,
    /// Running into the next block: what most code does.
    Falls,
    /// A branch that is taken.
    Taken,
    /// Something that hardly happens: an exception, a call that does not come back.
    Rare,
}

/// A way from block to block, or in or out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The block that it leaves, or [`OUTSIDE`].
    pub from: u32,
    /// The block that it enters, or [`OUTSIDE`].
    pub to: u32,
    /// Its count, if it is known.
    pub count: Option<u64>,
    /// What it does when its count is not known.
    pub likely: Likely,
}

/// What changes cost, by the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// A block's count raised.
    pub block_more: u32,
    /// A block's count lowered.
    pub block_less: u32,
    /// A block that is known not to run, run.
    pub block_cold: u32,
    /// A block of which nothing is known, run.
    pub block_unknown: u32,
    /// A jump's count raised.
    pub jump_more: u32,
    /// A jump's count lowered.
    pub jump_less: u32,
    /// A jump that is known not to be taken, taken.
    pub jump_cold: u32,
    /// A jump of which nothing is known, by what it likely does: [`Likely::Falls`].
    pub falls: u32,
    /// [`Likely::Taken`].
    pub taken: u32,
    /// [`Likely::Rare`].
    pub rare: u32,
}

impl Prices {
    /// For branch records of this very program. Records get lost, none are made up, so raising is cheaper
    /// than lowering; and what was never seen is likely not to happen.
    pub const SAMPLED: Prices = Prices {
        block_more: 10,
        block_less: 20,
        block_cold: 15,
        block_unknown: 0,
        jump_more: 10,
        jump_less: 20,
        jump_cold: 15,
        falls: 2,
        taken: 8,
        rare: 30,
    };

    /// For samples of single addresses: blocks have counts, of jumps nothing is known. A clock finds instructions
    /// that the processor waits for, and of some blocks none, so that all counts are doubtful; but where nothing was
    /// seen, nothing runs more often than not, and a branch without any sign is rather not taken.
    pub const BLOCKS: Prices = Prices {
        block_more: 10,
        block_less: 20,
        block_cold: 15,
        block_unknown: 0,
        jump_more: 10,
        jump_less: 20,
        jump_cold: 15,
        falls: 0,
        taken: 3,
        rare: 60,
    };

    /// For counts carried over from another build: what was matched counts a hundred times as much as what
    /// was not, as in the paper of CC 2024. An unknown branch is rather not taken, but two of them cost less
    /// than the count of a matched block between them.
    pub const STALE: Prices = Prices {
        block_more: 150,
        block_less: 150,
        block_cold: 150,
        block_unknown: 1,
        jump_more: 150,
        jump_less: 150,
        jump_cold: 150,
        falls: 3,
        taken: 60,
        rare: 600,
    };
}

/// Counts that conserve flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inferred {
    /// By block.
    pub blocks: Vec<u64>,
    /// By jump.
    pub jumps: Vec<u64>,
    /// What the changes cost in sum; 0 if nothing that was known had to be changed and nothing unknown had to run.
    pub price: u128,
}

/// Reusable space.
#[derive(Debug, Default)]
pub struct Inference {
    balancer: Balancer,
    arcs: Vec<Arc>,
}

impl Inference {
    /// Finds the counts of a function.
    ///
    /// # Panics
    ///
    /// If a jump names a block that does not exist.
    pub fn infer(&mut self, blocks: &[Block], jumps: &[Jump], prices: &Prices) -> Inferred {
        let begin = |b: u32| if b == OUTSIDE { 0 } else { 1 + 2 * b };
        let end = |b: u32| if b == OUTSIDE { 0 } else { 2 + 2 * b };
        self.arcs.clear();
        for (b, block) in blocks.iter().enumerate() {
            let b = b as u32;
            let (more, less) = match block.count {
                None => (prices.block_unknown, 0),
                Some(0) => (prices.block_cold, 0),
                Some(_) => (prices.block_more, prices.block_less),
            };
            self.arcs.push(Arc {
                from: begin(b),
                to: end(b),
                wanted: block.count.unwrap_or(0),
                more,
                less,
            });
        }
        for j in jumps {
            let (more, less) = match (j.count, j.likely) {
                (None, Likely::Free) => (0, 0),
                (None, Likely::Falls) => (prices.falls, 0),
                (None, Likely::Taken) => (prices.taken, 0),
                (None, Likely::Rare) => (prices.rare, 0),
                (Some(0), Likely::Rare) => (prices.rare, 0),
                (Some(0), _) => (prices.jump_cold, 0),
                (Some(_), _) => (prices.jump_more, prices.jump_less),
            };
            self.arcs.push(Arc {
                from: end(j.from),
                to: begin(j.to),
                wanted: j.count.unwrap_or(0),
                more,
                less,
            });
        }
        let nodes = 1 + 2 * blocks.len() as u32;
        let balanced = self.balancer.balance(nodes, &self.arcs);
        let mut out = Inferred {
            blocks: balanced.counts[..blocks.len()].to_vec(),
            jumps: balanced.counts[blocks.len()..].to_vec(),
            price: balanced.price,
        };
        join_islands(jumps, &mut out);
        out
    }
}

/// Finds the counts of one function; see [`Inference::infer`].
pub fn infer(blocks: &[Block], jumps: &[Jump], prices: &Prices) -> Inferred {
    Inference::default().infer(blocks, jumps, prices)
}

/// Sends one unit through every part that runs and that no running way from outside leads to.
fn join_islands(jumps: &[Jump], counts: &mut Inferred) {
    let outside = counts.blocks.len();
    let mut map = Map {
        jumps,
        outside,
        leaving: Vec::new(),
        entering: Vec::new(),
        by: vec![NONE; outside + 1],
        touched: Vec::new(),
    };
    map.leaving = index(outside + 1, jumps, |j| map.node(j.from));
    let mut reached = vec![false; outside + 1];
    map.spread(outside, &counts.jumps, &mut reached);
    for b in 0..outside {
        if counts.blocks[b] == 0 || reached[b] {
            continue;
        }
        if map.entering.is_empty() {
            map.entering = index(outside + 1, jumps, |j| map.node(j.to));
        }
        // Backwards to something that runs, from there over running ways to the outside, and forwards to the
        // outside over whatever ways there are.
        let joined = map
            .way(b, false, |m| reached[m], |_| true)
            .and_then(|(source, mut way)| {
                if source != outside {
                    way.extend(
                        map.way(source, false, |m| m == outside, |j| counts.jumps[j] > 0)?
                            .1,
                    );
                }
                way.extend(map.way(b, true, |m| m == outside, |_| true)?.1);
                Some(way)
            });
        // Where no way leads there, or none out, it stays as it is.
        for j in joined.unwrap_or_default() {
            let j = j as usize;
            counts.jumps[j] = counts.jumps[j].saturating_add(1);
            let to = map.node(jumps[j].to);
            if to < outside {
                counts.blocks[to] = counts.blocks[to].saturating_add(1);
                map.spread(to, &counts.jumps, &mut reached);
            }
        }
        map.spread(b, &counts.jumps, &mut reached);
    }
}

/// No jump.
const NONE: u32 = u32::MAX;
/// Where a search began.
const START: u32 = u32::MAX - 1;

/// Jumps by node, in one list with the place where each node's begin in front.
fn index(nodes: usize, jumps: &[Jump], end: impl Fn(&Jump) -> usize) -> Vec<u32> {
    let mut index = vec![0u32; nodes + 1 + jumps.len()];
    let (first, list) = index.split_at_mut(nodes + 1);
    for j in jumps {
        first[end(j) + 1] += 1;
    }
    for n in 0..nodes {
        first[n + 1] += first[n];
    }
    let mut next = first.to_vec();
    for (i, j) in jumps.iter().enumerate() {
        let slot = &mut next[end(j)];
        list[*slot as usize] = i as u32;
        *slot += 1;
    }
    index
}

/// A function's jumps, for searching. The outside is the node after the last block.
struct Map<'a> {
    jumps: &'a [Jump],
    outside: usize,
    leaving: Vec<u32>,
    entering: Vec<u32>,
    by: Vec<u32>,
    touched: Vec<usize>,
}

impl Map<'_> {
    fn node(&self, b: u32) -> usize {
        if b == OUTSIDE {
            self.outside
        } else {
            b as usize
        }
    }

    fn at<'i>(&self, index: &'i [u32], node: usize) -> &'i [u32] {
        let list = self.outside + 2;
        &index[list + index[node] as usize..list + index[node + 1] as usize]
    }

    /// Marks a node and what running jumps lead to from it.
    fn spread(&self, from: usize, counts: &[u64], reached: &mut [bool]) {
        if std::mem::replace(&mut reached[from], true) {
            return;
        }
        let mut stack = vec![from];
        while let Some(at) = stack.pop() {
            for j in self.at(&self.leaving, at) {
                let to = self.node(self.jumps[*j as usize].to);
                if counts[*j as usize] > 0 && !std::mem::replace(&mut reached[to], true) {
                    stack.push(to);
                }
            }
        }
    }

    /// The jumps of a shortest way from a node forwards or backwards to a goal, and the goal.
    fn way(
        &mut self,
        from: usize,
        forwards: bool,
        goal: impl Fn(usize) -> bool,
        usable: impl Fn(usize) -> bool,
    ) -> Option<(usize, Vec<u32>)> {
        let mut queue = VecDeque::from([from]);
        let mut found = None;
        self.by[from] = START;
        self.touched.push(from);
        'search: while let Some(at) = queue.pop_front() {
            let index = if forwards {
                &self.leaving
            } else {
                &self.entering
            };
            for j in self.at(index, at) {
                let jump = &self.jumps[*j as usize];
                let next = self.node(if forwards { jump.to } else { jump.from });
                if self.by[next] != NONE || !usable(*j as usize) {
                    continue;
                }
                self.by[next] = *j;
                self.touched.push(next);
                if goal(next) {
                    found = Some(next);
                    break 'search;
                }
                queue.push_back(next);
            }
        }
        let way = found.map(|end| {
            let (mut way, mut at) = (Vec::new(), end);
            while self.by[at] != START {
                let j = self.by[at];
                way.push(j);
                let jump = &self.jumps[j as usize];
                at = self.node(if forwards { jump.from } else { jump.to });
            }
            (end, way)
        });
        for t in self.touched.drain(..) {
            self.by[t] = NONE;
        }
        way
    }
}

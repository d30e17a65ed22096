//! The best order of a few blocks, by branch and bound.
//!
//! # The search
//!
//! Only blocks with counted jumps have an influence on the score; the others go after them, where
//! they never hurt. Blocks are placed from left to right, the entry first. When a block is
//! placed, the jumps between it and the blocks before it have their final length. What the other
//! jumps can still score is bounded:
//!
//! * each scores at most as a jump of the least length that is still possible, and
//! * it falls through only if its source is the block placed last or not placed yet, and its target
//!   is not placed yet. Each block is entered by one fall-through at most and left by one at most,
//!   so the gain of falling through counts once a target, and once a source, whichever sum is
//!   lower.
//!
//! A branch that cannot beat the best order known is given up. The best order known at the start is
//! that of chain merging, and blocks that score most at once are tried first, which often leaves
//! nothing to search. The number of steps is limited; past it the best order so far is taken.

use super::graph::{Counted, Graph, closeness};
use smallvec::SmallVec;

/// The most blocks, beside the entry, that are searched.
const MAX_BLOCKS: usize = 12;
/// The most orders of first blocks that are looked at, each about 0.1 µs.
const MAX_STEPS: u32 = 1000;
/// Scores that differ by less, relatively, are equal but for the order of summation.
const PRECISION: f64 = 1e-12;

/// A set of blocks, by their local numbers.
type Set = u32;

/// A counted jump between local blocks.
#[derive(Clone, Copy, Debug)]
struct Jump {
    from: u8,
    to: u8,
    counted: Counted,
}

struct Search {
    /// The blocks with counted jumps, by their local numbers; the entry is 0.
    blocks: SmallVec<[u32; MAX_BLOCKS + 1]>,
    sizes: [i64; MAX_BLOCKS + 1],
    starts: [i64; MAX_BLOCKS + 1],
    jumps: Vec<Jump>,
    order: SmallVec<[u8; MAX_BLOCKS + 1]>,
    best: SmallVec<[u8; MAX_BLOCKS + 1]>,
    best_score: f64,
    steps: u32,
}

/// Puts the blocks with counted jumps into the best order, the rest after them, if they are few
/// enough. The score of the order, whose first block is the entry, does not become less.
pub(super) fn improve(graph: &Graph, order: &mut [u32]) {
    const INACTIVE: u8 = u8::MAX;
    let Some(&entry) = order.first() else { return };
    // Jumps are distinct, so that so few blocks cannot have more.
    if graph.jumps.len() > MAX_BLOCKS * (MAX_BLOCKS + 1) {
        return;
    }
    let mut local = vec![INACTIVE; graph.blocks()];
    for jump in &graph.jumps {
        local[jump.from as usize] = 0;
        local[jump.to as usize] = 0;
    }
    local[entry as usize] = 0;
    let is_active = |block: &u32| local[*block as usize] != INACTIVE;
    let blocks: SmallVec<[u32; MAX_BLOCKS + 1]> = order
        .iter()
        .copied()
        .filter(is_active)
        .take(MAX_BLOCKS + 2)
        .collect();
    if blocks.len() > MAX_BLOCKS + 1 {
        return;
    }
    let rest: Vec<u32> = order
        .iter()
        .copied()
        .filter(|block| !is_active(block))
        .collect();

    let mut search = Search {
        sizes: [0; MAX_BLOCKS + 1],
        starts: [0; MAX_BLOCKS + 1],
        jumps: Vec::new(),
        order: SmallVec::new(),
        best: (0..blocks.len() as u8).collect(),
        best_score: 0.0,
        steps: MAX_STEPS,
        blocks,
    };
    for (number, &block) in search.blocks.iter().enumerate() {
        local[block as usize] = number as u8;
        search.sizes[number] = graph.sizes[block as usize];
    }
    search.jumps.extend(graph.jumps.iter().map(|&counted| Jump {
        from: local[counted.from as usize],
        to: local[counted.to as usize],
        counted,
    }));
    search.best_score = graph.score(&search.blocks);
    search.order.push(0);
    search.place(1, search.sizes[0], 0.0);

    let front = search
        .best
        .iter()
        .map(|&number| search.blocks[number as usize]);
    let new: Vec<u32> = front.chain(rest).collect();
    order.copy_from_slice(&new);
}

impl Search {
    /// Places the blocks that are not in `placed` yet from the address `at` on. The depth of
    /// recursion is the number of blocks.
    fn place(&mut self, placed: Set, at: i64, score: f64) {
        if self.order.len() == self.blocks.len() {
            if score > self.best_score * (1.0 + PRECISION) {
                self.best_score = score;
                self.best.clone_from(&self.order);
            }
            return;
        }
        if self.steps == 0 || score + self.bound(placed, at) <= self.best_score * (1.0 + PRECISION)
        {
            return;
        }
        self.steps -= 1;
        let gains = self.gains(placed, at);
        let mut next: SmallVec<[u8; MAX_BLOCKS + 1]> = (0..self.blocks.len() as u8)
            .filter(|block| placed >> block & 1 == 0)
            .collect();
        // Stable: of equals the one that chain merging put first is tried first.
        next.sort_by(|&a, &b| gains[b as usize].total_cmp(&gains[a as usize]));
        for block in next {
            let number = block as usize;
            self.starts[number] = at;
            self.order.push(block);
            self.place(
                placed | 1 << block,
                at + self.sizes[number],
                score + gains[number],
            );
            self.order.pop();
        }
    }

    /// For each block that is not placed, the score of the jumps between it and those that are when
    /// it is placed at the address `at`.
    fn gains(&self, placed: Set, at: i64) -> [f64; MAX_BLOCKS + 1] {
        let mut gains = [0.0; MAX_BLOCKS + 1];
        for &Jump { from, to, counted } in &self.jumps {
            let (source, target) = (from as usize, to as usize);
            match (placed >> from & 1, placed >> to & 1) {
                (1, 0) => {
                    gains[target] += counted.score(self.starts[source] + self.sizes[source], at)
                }
                (0, 1) => {
                    gains[source] += counted.score(at + self.sizes[source], self.starts[target])
                }
                _ => {}
            }
        }
        gains
    }

    /// The most that the jumps which have no final length yet can score when the next block starts
    /// at `at`.
    fn bound(&self, placed: Set, at: i64) -> f64 {
        let mut sum = 0.0;
        let mut entering = [0f64; MAX_BLOCKS + 1];
        let mut leaving = [0f64; MAX_BLOCKS + 1];
        for &Jump { from, to, counted } in &self.jumps {
            let (source, target) = (from as usize, to as usize);
            let distance = match (placed >> from & 1, placed >> to & 1) {
                (0, 0) => 0,
                (1, 0) => at - (self.starts[source] + self.sizes[source]),
                (0, _) => self.starts[target] - (at + self.sizes[source]),
                _ => continue,
            };
            sum += counted.near * closeness(distance);
            if distance == 0 {
                entering[target] = entering[target].max(counted.extra());
                leaving[source] = leaving[source].max(counted.extra());
            }
        }
        sum + entering.iter().sum::<f64>().min(leaving.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Block, Jump};
    use super::*;
    use arbtest::arbtest;

    /// Calls `visit` with every order of `rest` after `order`.
    fn permutations(order: &mut Vec<u32>, rest: &mut Vec<u32>, visit: &mut impl FnMut(&[u32])) {
        if rest.is_empty() {
            visit(order);
        }
        for index in 0..rest.len() {
            let block = rest.remove(index);
            order.push(block);
            permutations(order, rest, visit);
            order.pop();
            rest.insert(index, block);
        }
    }

    #[test]
    fn the_search_finds_the_order_that_brute_force_finds() {
        arbtest(|u| {
            let number = u.int_in_range(1..=6u32)?;
            let blocks: Vec<Block> = (0..number)
                .map(|_| {
                    Ok(Block {
                        size: u.int_in_range(0..=600)?,
                        count: 0,
                    })
                })
                .collect::<arbitrary::Result<_>>()?;
            let jumps: Vec<Jump> = (0..u.int_in_range(0..=12)?)
                .map(|_| {
                    let (from, to) = (
                        u.int_in_range(0..=number - 1)?,
                        u.int_in_range(0..=number - 1)?,
                    );
                    Ok(Jump {
                        from,
                        to,
                        count: u.int_in_range(0..=100)?,
                    })
                })
                .collect::<arbitrary::Result<_>>()?;
            let graph = Graph::new(&blocks, &jumps);
            let mut order: Vec<u32> = (0..number).collect();
            improve(&graph, &mut order);
            let mut best = 0f64;
            permutations(&mut vec![0], &mut (1..number).collect(), &mut |order| {
                best = best.max(graph.score(order))
            });
            let found = graph.score(&order);
            assert!(
                (found - best).abs() <= 1e-9 * best,
                "found {found}, best {best}"
            );
            Ok(())
        });
    }
}

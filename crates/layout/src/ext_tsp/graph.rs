//! The control-flow graph as the algorithms want it: counted jumps apart from static ones, and the
//! score.

use super::{Block, Jump};

/// Score of a fall-through per execution when the source can go elsewhere.
pub const FALL_CONDITIONAL: f64 = 1.0;
/// Score of a fall-through per execution when the source has no other way to go.
pub const FALL_UNCONDITIONAL: f64 = 1.05;
/// Score of a jump of length 0 per execution.
pub(super) const NEAR: f64 = 0.1;
/// Forward jumps farther than this score nothing, in bytes.
const FORWARD: f64 = 1024.0;
/// Backward jumps farther than this score nothing, in bytes.
const BACKWARD: f64 = 640.0;

/// A jump that was taken, between two different blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Score when it falls through.
    pub(super) fall: f64,
    /// Score when it does not and has length 0.
    pub(super) near: f64,
}

impl Counted {
    /// The score when the source ends at `end` and the target starts at `start`.
    pub(super) fn score(&self, end: i64, start: i64) -> f64 {
        let distance = start - end;
        if distance == 0 {
            self.fall
        } else {
            self.near * closeness(distance)
        }
    }

    /// What falling through adds to the best score otherwise.
    pub(super) fn extra(&self) -> f64 {
        self.fall - self.near
    }
}

/// 1 for a jump of no length, 0 for one too long to matter; `distance` from the end of the source
/// to the start of the target.
pub(super) fn closeness(distance: i64) -> f64 {
    let distance = distance as f64;
    let share = if distance >= 0.0 {
        distance / FORWARD
    } else {
        -distance / BACKWARD
    };
    (1.0 - share).max(0.0)
}

#[derive(Debug)]
pub(super) struct Graph {
    /// Sizes in bytes, at least 1.
    pub(super) sizes: Vec<i64>,
    /// Executions of each block, at least those of each jump from or to it.
    pub(super) counts: Vec<f64>,
    /// Counted jumps, at most one for two blocks in one direction, by `from`, then `to`.
    pub(super) jumps: Vec<Counted>,
    /// All distinct static edges but self loops, by source, then target.
    edges: Vec<(u32, u32)>,
}

impl Graph {
    pub(super) fn new(blocks: &[Block], jumps: &[Jump]) -> Self {
        let number = blocks.len();
        let exists = |jump: &&Jump| (jump.from.max(jump.to) as usize) < number;
        let mut counts: Vec<u64> = blocks.iter().map(|block| block.count).collect();
        let mut ways = vec![0u32; number];
        for jump in jumps.iter().filter(exists) {
            ways[jump.from as usize] += 1;
            for block in [jump.from, jump.to] {
                let count = &mut counts[block as usize];
                *count = jump.count.max(*count);
            }
        }
        if let Some(entry) = counts.first_mut() {
            *entry = (*entry).max(1);
        }

        let mut sorted: Vec<Jump> = jumps
            .iter()
            .filter(exists)
            .filter(|jump| jump.from != jump.to)
            .copied()
            .collect();
        sorted.sort_unstable_by_key(|jump| (jump.from, jump.to));
        let mut graph = Self {
            sizes: blocks
                .iter()
                .map(|block| i64::from(block.size.max(1)))
                .collect(),
            counts: counts.into_iter().map(|count| count as f64).collect(),
            jumps: Vec::new(),
            edges: Vec::new(),
        };
        for same in sorted.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to)) {
            let Jump { from, to, .. } = same[0];
            graph.edges.push((from, to));
            // Sorting may have changed the order of equals; whole numbers are added so that it does
            // not matter.
            let count =
                same.iter()
                    .fold(0u128, |sum, jump| sum + u128::from(jump.count)) as f64;
            if count > 0.0 {
                let weight = if ways[from as usize] > 1 {
                    FALL_CONDITIONAL
                } else {
                    FALL_UNCONDITIONAL
                };
                graph.jumps.push(Counted {
                    from,
                    to,
                    fall: weight * count,
                    near: NEAR * count,
                });
            }
        }
        graph
    }

    /// The number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.sizes.len()
    }

    /// All distinct static edges but self loops, by source, then target.
    pub(super) fn edges(&self) -> &[(u32, u32)] {
        &self.edges
    }

    /// The score of an order, which may leave blocks out.
    pub(super) fn score(&self, order: &[u32]) -> f64 {
        let mut starts = vec![i64::MIN; self.blocks()];
        let mut address = 0;
        for &block in order {
            if let Some(start) = starts.get_mut(block as usize) {
                *start = address;
                address += self.sizes[block as usize];
            }
        }
        let mut sum = 0.0;
        for jump in &self.jumps {
            let (source, target) = (starts[jump.from as usize], starts[jump.to as usize]);
            if source != i64::MIN && target != i64::MIN {
                sum += jump.score(source + self.sizes[jump.from as usize], target);
            }
        }
        sum
    }
}

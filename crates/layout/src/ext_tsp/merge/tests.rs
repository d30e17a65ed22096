//! Chain merging against a plain version of itself, which evaluates everything by scoring whole
//! chains, and against brute force.

use super::*;
use crate::ext_tsp::{Block, Jump};

#[path = "../../../tests/common/blocks.rs"]
mod blocks;
#[path = "../../../tests/common/random.rs"]
mod random;

use random::Random;

/// Which cuts the plain version tries.
#[derive(Clone, Copy, PartialEq)]
enum Cuts {
    /// Those that this crate tries.
    All,
    /// Those that the published algorithm tries: next to a jump from or to an end of the other
    /// chain, and where no edge of the control-flow graph is cut.
    Published,
}

/// The chains that greedy merging ends with.
fn plain(graph: &Graph, cuts: Cuts) -> Vec<Vec<u32>> {
    let forced = forced_successors(graph);
    let is_forced = |before: u32, after: u32| forced[before as usize] == after;
    let mut chains: Vec<Vec<u32>> = (0..graph.blocks() as u32)
        .filter(|block| !forced.contains(block))
        .map(|first| {
            std::iter::successors(Some(first), |&block| {
                Some(forced[block as usize]).filter(|&next| next != NONE)
            })
            .collect()
        })
        .collect();
    loop {
        let mut best = (MIN_GAIN, 0, 0, Vec::new());
        for (x, chain) in chains.iter().enumerate() {
            for (y, other) in chains.iter().enumerate() {
                let joined = |jump: &&super::super::graph::Counted| {
                    let (from, to) = (&jump.from, &jump.to);
                    chain.contains(from) && other.contains(to)
                        || other.contains(from) && chain.contains(to)
                };
                let density = |chain: &[u32]| {
                    let sum = |values: &dyn Fn(usize) -> f64| {
                        chain.iter().map(|&b| values(b as usize)).sum::<f64>()
                    };
                    sum(&|block| graph.counts[block]) / sum(&|block| graph.sizes[block] as f64)
                };
                let (a, b) = (density(chain), density(other));
                if x == y
                    || chain.len() + other.len() >= MAX_BLOCKS
                    || a.max(b) > MAX_DENSITY_RATIO * a.min(b)
                    || !graph.jumps.iter().any(|jump| joined(&jump))
                {
                    continue;
                }
                let before = graph.score(chain) + graph.score(other);
                let mut attempt = |parts: &[&[u32]]| {
                    let merged = parts.concat();
                    if merged.contains(&0) && merged[0] != 0 {
                        return;
                    }
                    let gain = graph.score(&merged) - before;
                    if gain > best.0 * (1.0 + 1e-12) {
                        best = (gain, x, y, merged);
                    }
                };
                attempt(&[chain, other]);
                for cut in 1..chain.len() {
                    let (first, second) = chain.split_at(cut);
                    let (before, after) = (first[cut - 1], second[0]);
                    let is_taken = |from, to| {
                        graph
                            .jumps
                            .iter()
                            .any(|jump| (jump.from, jump.to) == (from, to))
                    };
                    let beside =
                        is_taken(before, other[0]) || is_taken(other[other.len() - 1], after);
                    let open = cuts == Cuts::All || !graph.edges().contains(&(before, after));
                    if is_forced(before, after)
                        || !beside && (chain.len() > MAX_CUT_ANYWHERE || !open)
                    {
                        continue;
                    }
                    attempt(&[first, other, second]);
                    attempt(&[other, second, first]);
                    attempt(&[second, first, other]);
                }
            }
        }
        let (_, x, y, merged) = best;
        if merged.is_empty() {
            return chains;
        }
        chains[x] = merged;
        chains.remove(y);
    }
}

/// Random functions of up to about `size` blocks; their counts are scrambled a bit, so that gains
/// are rarely equal.
fn functions(number: usize, size: usize) -> impl Iterator<Item = (Vec<Block>, Vec<Jump>)> {
    let mut random = Random::new(size as u64);
    (0..number).map(move |index| {
        let size = 1 + random.below(size);
        let (mut blocks, mut jumps) = match index % 3 {
            0 => blocks::tangle(&mut random, size, 2),
            1 => blocks::interpreter(&mut random, size as u32 / 2),
            _ => blocks::function(&mut random, size),
        };
        for block in &mut blocks {
            block.count = block.count * 1000 + random.next() % 100;
        }
        for jump in &mut jumps {
            jump.count = jump.count * 1000 + random.next() % 100;
        }
        (blocks, jumps)
    })
}

#[test]
fn bounds_and_caches_do_not_change_the_result() {
    for (number, (blocks, jumps)) in functions(150, 30).enumerate() {
        let graph = Graph::new(&blocks, &jumps);
        let mut merger = Merger::new(&graph);
        merger.merge_by_gain();
        let mut chains: Vec<Vec<u32>> = merger
            .chains
            .into_iter()
            .map(|chain| chain.blocks.into_vec())
            .filter(|chain| !chain.is_empty())
            .collect();
        let mut expected = plain(&graph, Cuts::All);
        chains.sort();
        expected.sort();
        assert_eq!(chains, expected, "function {number}");
    }
}

#[test]
fn more_cuts_than_the_published_algorithm_tries_are_worth_it() {
    let mut published = 0.0;
    let mut all = 0.0;
    for (blocks, jumps) in functions(150, 30) {
        let graph = Graph::new(&blocks, &jumps);
        // As shares, so that each function weighs the same.
        let total: f64 = graph
            .jumps
            .iter()
            .map(|jump| jump.fall)
            .sum::<f64>()
            .max(1.0);
        let sum = |chains: Vec<Vec<u32>>| {
            chains.iter().map(|chain| graph.score(chain)).sum::<f64>() / total
        };
        published += sum(plain(&graph, Cuts::Published));
        all += sum(plain(&graph, Cuts::All));
    }
    assert!(all >= published, "all cuts {all}, published {published}");
}

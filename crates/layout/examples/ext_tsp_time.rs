//! How long ext-TSP takes, and what score it reaches.
//!
//! `cargo run --release -p postlink-layout --example ext_tsp_time`

#[path = "../tests/common/blocks.rs"]
mod blocks;
#[path = "../tests/common/random.rs"]
mod random;

use postlink_layout::ext_tsp::{Block, Jump, order, score};
use random::Random;
use std::time::Instant;

type Function = (Vec<Block>, Vec<Jump>);

fn main() {
    println!(
        "graph             blocks functions  time/function  score of the order that came in -> score now"
    );
    let random = &mut Random::new(1);
    for size in [5usize, 10, 20, 50, 100, 1_000, 10_000] {
        let functions: Vec<Function> = (0..(20_000 / size).clamp(3, 500))
            .map(|_| blocks::function(random, size))
            .collect();
        measure("compiled", &functions);
    }
    for handlers in [50, 500, 5_000] {
        measure("interpreter", &[blocks::interpreter(random, handlers)]);
    }
    for size in [10usize, 100, 1_000, 10_000] {
        let functions: Vec<Function> = (0..(10_000 / size).clamp(1, 100))
            .map(|_| blocks::tangle(random, size, 2))
            .collect();
        measure("tangle", &functions);
    }
}

fn measure(name: &str, functions: &[Function]) {
    let blocks: usize = functions.iter().map(|function| function.0.len()).sum();
    let mut before = 0.0;
    let mut after = 0.0;
    let start = Instant::now();
    let orders: Vec<Vec<u32>> = functions
        .iter()
        .map(|(blocks, jumps)| order(blocks, jumps))
        .collect();
    let time = start.elapsed() / functions.len() as u32;
    // Shares of the largest score imaginable, averaged over functions.
    for ((blocks, jumps), order) in functions.iter().zip(&orders) {
        let identity: Vec<u32> = (0..blocks.len() as u32).collect();
        let total: f64 = jumps
            .iter()
            .filter(|jump| jump.from != jump.to)
            .map(|jump| jump.count as f64)
            .sum();
        before += score(blocks, jumps, &identity) / total.max(1.0);
        after += score(blocks, jumps, order) / total.max(1.0);
    }
    let number = functions.len() as f64;
    println!(
        "{name:<16} {:>7} {:>9} {:>14} {:>12.4} -> {:.4}",
        blocks / functions.len(),
        functions.len(),
        format!("{time:.1?}"),
        before / number,
        after / number,
    );
}

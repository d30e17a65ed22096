//! How long the orders of functions take, and how near they bring the calls.
//!
//! `cargo run --release -p postlink-layout --example functions_time`

#[path = "../tests/common/calls.rs"]
mod calls;
#[path = "../tests/common/random.rs"]
mod random;

use postlink_layout::call_graph::{Arc, Function};
use postlink_layout::{cdsort, hfsort};
use random::Random;
use std::time::Instant;

fn main() {
    for number in [1_000, 10_000, 100_000] {
        let (functions, arcs) = calls::program(&mut Random::new(number as u64), number);
        let hot = functions
            .iter()
            .filter(|function| function.samples > 0)
            .count();
        println!(
            "{number} functions, {hot} with samples, {} arcs",
            arcs.len()
        );
        let identity: Vec<u32> = (0..number as u32).collect();
        report("as it was", &functions, &arcs, || identity);
        report("hfsort", &functions, &arcs, || {
            hfsort::order(&functions, &arcs)
        });
        report("cdsort", &functions, &arcs, || {
            cdsort::order(&functions, &arcs)
        });
    }
}

/// Prints the time, the share of calls that stay within a page of 4 KiB, and within 64 KiB.
fn report(name: &str, functions: &[Function], arcs: &[Arc], order: impl FnOnce() -> Vec<u32>) {
    let start = Instant::now();
    let order = order();
    let time = start.elapsed();
    let mut starts = vec![0u64; functions.len()];
    let mut address = 0;
    for &function in &order {
        starts[function as usize] = address;
        address += functions[function as usize].size;
    }
    let within = |limit: u64| {
        let calls = |arc: &&Arc| {
            let site = starts[arc.caller as usize] + arc.offset;
            site.abs_diff(starts[arc.callee as usize]) < limit
        };
        let all: f64 = arcs.iter().map(|arc| arc.count as f64).sum();
        arcs.iter()
            .filter(calls)
            .map(|arc| arc.count as f64)
            .sum::<f64>()
            / all
            * 100.0
    };
    println!(
        "  {name:<10} {time:>10.1?}  calls within 4 KiB {:>5.1} %, 64 KiB {:>5.1} %",
        within(4096),
        within(65536)
    );
}

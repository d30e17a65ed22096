//! How long the orders of functions take, and how near they bring the calls.
//!
//! `cargo run --release -p postlink-layout --example functions_time`

#[path = "../tests/common/calls.rs"]
mod calls;
#[path = "../tests/common/random.rs"]
mod random;

use postlink_layout::call_graph::{Arc, Function};
use postlink_layout::{cdsort, hfsort, partition};
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
        start_up(number);
    }
}

/// Orders functions by four traces of starts, each of a tenth of all functions.
fn start_up(number: usize) {
    let random = &mut Random::new(number as u64);
    let traces: Vec<Vec<u32>> = (0..4)
        .map(|_| {
            // Half of it is the same in all of them.
            let common = (0..number / 20).map(|time| (time * 7919 % number) as u32);
            let own: Vec<u32> = (0..number / 20)
                .map(|_| random.below(number) as u32)
                .collect();
            common.chain(own).collect()
        })
        .collect();
    let start = Instant::now();
    let utilities = partition::utilities_of_traces(number, &traces);
    let order = partition::order(&utilities);
    let time = start.elapsed();
    let mut place = vec![0; number];
    for (index, &function) in order.iter().enumerate() {
        place[function as usize] = index;
    }
    // Pages of 16 functions.
    let pages = |trace: &[u32], page: &dyn Fn(u32) -> usize| {
        let mut pages: Vec<usize> = trace.iter().map(|&function| page(function) / 16).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    };
    let before: usize = traces
        .iter()
        .map(|trace| pages(trace, &|function| function as usize))
        .sum();
    let after: usize = traces
        .iter()
        .map(|trace| pages(trace, &|function| place[function as usize]))
        .sum();
    println!("  partition  {time:>10.1?}  pages touched by four starts {before} -> {after}");
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

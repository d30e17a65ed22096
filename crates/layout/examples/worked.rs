//! Lays out a tiny program: orders the blocks of a function, splits off what never ran, then orders
//! the functions.
//!
//! `cargo run -p postlink-layout --example worked`

use postlink_layout::call_graph::{Arc, Function};
use postlink_layout::ext_tsp::{Block, Jump, order, score};
use postlink_layout::split::{Cold, by_count};
use postlink_layout::{cdsort, hfsort};

fn main() {
    // int find(list *l, int key) {
    //     if (!l) fail("no list");
    //     for (node *n = l->first; n; n = n->next)
    //         if (n->key == key) return n->value;
    //     return -1;
    // } called 100 times, with 20 nodes looked at on average.
    let names = [
        "entry",
        "no list",
        "n = first",
        "n?",
        "compare",
        "found",
        "next",
        "return -1",
    ];
    let counts = [100, 0, 100, 2000, 1990, 90, 1900, 10];
    let sizes = [12, 24, 8, 8, 10, 9, 5, 8];
    let blocks: Vec<Block> = sizes
        .iter()
        .zip(counts)
        .map(|(&size, count)| Block { size, count })
        .collect();
    let jumps = [
        (0, 1, 0),
        (0, 2, 100),
        (2, 3, 100),
        (3, 4, 1990),
        (3, 7, 10),
        (4, 5, 90),
        (4, 6, 1900),
        (6, 3, 1900),
    ]
    .map(|(from, to, count)| Jump { from, to, count });

    let before: Vec<u32> = (0..blocks.len() as u32).collect();
    let after = order(&blocks, &jumps);
    for (what, order) in [("before", &before), ("after", &after)] {
        let listed: Vec<&str> = order.iter().map(|&block| names[block as usize]).collect();
        println!(
            "{what:<6} ext-TSP {:>7.1}: {}",
            score(&blocks, &jumps, order),
            listed.join(" | ")
        );
    }

    let split = by_count(&counts, &after, |_| false, Cold::Anywhere);
    let size = |part: &[u32]| part.iter().map(|&block| sizes[block as usize]).sum::<u32>();
    println!(
        "hot {} bytes, cold {} bytes",
        size(split.hot()),
        size(split.cold())
    );

    // The program: main calls find in a loop, and print at the end; fail never ran.
    let names = ["fail", "find", "print", "main"];
    let functions = [
        (64, 0),
        (u64::from(size(split.hot())), 2000),
        (300, 5),
        (200, 100),
    ]
    .map(|(size, samples)| Function { size, samples });
    let arcs = [(3, 1, 100, 150), (3, 2, 1, 180)].map(|(caller, callee, count, offset)| Arc {
        caller,
        callee,
        count,
        offset,
    });
    for (what, order) in [
        ("cdsort", cdsort::order(&functions, &arcs)),
        ("hfsort", hfsort::order(&functions, &arcs)),
    ] {
        let listed: Vec<&str> = order
            .iter()
            .map(|&function| names[function as usize])
            .collect();
        println!("{what}: {}", listed.join(" | "));
    }
}

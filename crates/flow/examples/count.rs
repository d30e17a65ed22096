//! Counts the edges of a small function with the fewest counters, then measures how fast placement
//! and solution are.
//!
//! `cargo run --release -p postlink-flow --example count`

use postlink_flow::{Edge, Graph, Placer, Solver, place, solve};
use std::time::Instant;

fn main() {
    worked_example();
    speed();
}

/// `for (i = 0; i < n; i++) if (a[i]) hit(); else miss();` with the call of `miss` leaving by an
/// exception at times.
fn worked_example() {
    let names = ["outside", "entry", "head", "hit", "miss", "latch", "exit"];
    let edges = [
        (0, 1, 1.0, "call"),
        (1, 2, 1.0, "into the loop"),
        (2, 3, 7.0, "condition holds"),
        (2, 4, 3.0, "condition fails"),
        (3, 5, 7.0, "after hit"),
        (4, 5, 2.9, "after miss"),
        (4, 0, 0.1, "exception"),
        (5, 2, 9.0, "next round"),
        (5, 6, 0.9, "loop ends"),
        (6, 0, 0.9, "return"),
    ];
    let graph = Graph {
        nodes: names.len() as u32,
        edges: edges
            .iter()
            .map(|&(from, to, weight, _)| Edge {
                from,
                to,
                weight: Some(weight),
            })
            .collect(),
    };
    let counted = place(&graph).expect("all edges can carry a counter");
    // What the program did: 5 calls, one of which ended with an exception in its third round.
    let happened = [5, 5, 33, 10, 33, 9, 1, 38, 4, 4];
    let counts: Vec<u64> = counted
        .iter()
        .map(|&edge| happened[edge as usize])
        .collect();
    let solution = solve(&graph, &counted, &counts);

    println!("{} edges, {} counters", edges.len(), counted.len());
    for (id, (from, to, weight, what)) in edges.iter().enumerate() {
        let how = if counted.contains(&(id as u32)) {
            "counted"
        } else {
            "inferred"
        };
        println!(
            "  {:>8} -> {:<8} weight {weight:<4} {how:<8} {:>3}  {what}",
            names[*from as usize], names[*to as usize], solution.edges[id]
        );
    }
    assert_eq!(solution.edges, happened);
}

/// A chain of branches with loops, as many graphs of it as make a big program.
fn speed() {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for blocks in [10u32, 100, 1_000, 100_000] {
        let mut edges = vec![Edge {
            from: blocks,
            to: 0,
            weight: Some(1.0),
        }];
        for block in 0..blocks {
            let mut edge = |to| {
                edges.push(Edge {
                    from: block,
                    to,
                    weight: Some((next() % 1000) as f32),
                })
            };
            edge(block + 1);
            if block % 2 == 0 {
                edge((block + 7).min(blocks));
            } else if block % 9 == 0 {
                edge(block - 9);
            }
        }
        let graph = Graph {
            nodes: blocks + 1,
            edges,
        };
        let rounds = (2_000_000 / blocks).max(1);
        let (mut placer, mut solver) = (Placer::default(), Solver::default());

        let start = Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(placer.place(&graph).expect("all edges can carry a counter"));
        }
        let placing = start.elapsed() / rounds;

        let counted = placer.place(&graph).expect("all edges can carry a counter");
        let counts: Vec<u64> = counted.iter().map(|&edge| u64::from(edge)).collect();
        let start = Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(solver.solve(&graph, counted, &counts));
        }
        let solving = start.elapsed() / rounds;
        println!(
            "{blocks:>7} blocks, {:>7} edges: place {placing:?}, solve {solving:?}",
            graph.edges.len()
        );
    }
}

//! Learns the weights of static branch prediction from exact counts: logistic regression by stochastic gradients with
//! a rate for each weight (Duchi, Hazan, Singer: "Adaptive Subgradient Methods", 2011). Prints the weights in the order
//! of features; and for each program how many of its executed branches are guessed wrong by the weights that are
//! compiled in, by those learnt from the other programs, and by taking every branch for not taken.
//!
//! ```text
//! cargo run --release -p postlink-rewrite --example branch_weights -- ./app app.plraw ./other other.plraw
//! ```

use std::error::Error;
use std::path::Path;

use postlink_elf::elf::Elf;
use postlink_rewrite::branches::{Branch, FEATURES, SHAPES, branches};

/// Rounds over all branches.
const ROUNDS: u32 = 60;
/// What pulls weights to 0.
const DECAY: f64 = 1e-4;

fn expected(weights: &[f64], branch: &Branch) -> f64 {
    let sum: f64 = branch
        .holds
        .iter()
        .map(|(f, sign)| weights[*f] * sign)
        .sum();
    1.0 / (1.0 + (-sum).exp())
}

fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 {
        a
    } else {
        greatest_divisor(b, a % b)
    }
}

fn learn(programs: &[&[Branch]]) -> Vec<f64> {
    let mut weights = vec![0.0; FEATURES];
    let mut squares = vec![1e-8; FEATURES];
    for round in 0..ROUNDS {
        let rate = 0.2 / (1.0 + 0.1 * f64::from(round));
        for branches in programs {
            let n = branches.len();
            // In an order in which neighbours are from different places.
            let step = (7919..).find(|step| greatest_divisor(*step, n.max(1)) == 1);
            let step = step.unwrap_or(1);
            for i in 0..n {
                let branch = &branches[i * step % n];
                let (taken, not_taken) = (branch.taken as f64, branch.not_taken as f64);
                let weight = (1.0 + taken + not_taken).ln() / 10.0;
                let was = (taken + 0.5) / (taken + not_taken + 1.0);
                let error = (expected(&weights, branch) - was) * weight;
                for (f, sign) in &branch.holds {
                    let gradient = error * sign + DECAY * weights[*f];
                    squares[*f] += gradient * gradient;
                    weights[*f] -= rate * gradient / squares[*f].sqrt();
                }
            }
        }
    }
    weights
}

/// Which part of the executed branches is guessed wrong.
fn wrong(branches: &[Branch], guess: impl Fn(&Branch) -> f64) -> f64 {
    let (mut wrong, mut all) = (0.0, 0.0);
    for branch in branches {
        let missed = if guess(branch) > 0.5 {
            branch.not_taken
        } else {
            branch.taken
        };
        wrong += missed as f64;
        all += branch.taken as f64 + branch.not_taken as f64;
    }
    100.0 * wrong / f64::max(all, 1.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() || arguments.len() % 2 == 1 {
        return Err("give programs, each with a profile of it by counters".into());
    }
    let mut programs = Vec::new();
    for pair in arguments.chunks(2) {
        let data = std::fs::read(&pair[0])?;
        let profile = postlink_profile::open(Path::new(&pair[1]))?.read()?;
        programs.push(branches(&Elf::parse(&data)?, &profile)?);
    }
    for (i, own) in programs.iter().enumerate() {
        let others = programs.iter().enumerate().filter(|(k, _)| *k != i);
        let others: Vec<&[Branch]> = others.map(|(_, of)| &of[..]).collect();
        let weights = learn(&others);
        eprintln!(
            "{}: of {} branches wrong by the program's weights {:.1} %, by others' {:.1} %, if none is taken {:.1} %, at least {:.1} %",
            arguments[2 * i],
            own.len(),
            wrong(own, |b| b.expected),
            wrong(own, |b| expected(&weights, b)),
            wrong(own, |_| 0.0),
            wrong(own, |b| if b.taken > b.not_taken { 1.0 } else { 0.0 }),
        );
    }
    let all: Vec<&[Branch]> = programs.iter().map(|of| &of[..]).collect();
    for weight in learn(&all) {
        println!("{weight:.3}");
    }
    let of_shape = |of: &Vec<Branch>| -> Vec<Branch> {
        let by_shape = |b: &Branch| Branch {
            holds: b.shape.clone(),
            ..b.clone()
        };
        let asked = of.iter().filter(|b| !b.shape.is_empty());
        asked.map(by_shape).collect()
    };
    let shapes: Vec<Vec<Branch>> = programs.iter().map(of_shape).collect();
    let all: Vec<&[Branch]> = shapes.iter().map(|of| &of[..]).collect();
    println!("by shape:");
    for weight in &learn(&all)[..SHAPES] {
        println!("{:.2}", weight.exp());
    }
    Ok(())
}

//! Random call graphs that look like those of big programs.
//!
//! For integration tests and examples alike: the module above brings `Random`, `Function` and
//! `Arc`.

use super::{Arc, Function, Random};

/// A call graph of `number` functions: modules whose functions call one another, a few helpers that
/// everybody calls, and a part of the functions never executed.
pub fn program(random: &mut Random, number: usize) -> (Vec<Function>, Vec<Arc>) {
    let size = |random: &mut Random| 16 + (200.0 * -random.unit().max(1e-9).ln()) as u64;
    let mut functions: Vec<Function> = (0..number)
        .map(|_| Function {
            size: size(random),
            samples: 0,
        })
        .collect();
    let mut arcs = Vec::new();
    for caller in 0..number {
        if random.below(3) == 0 {
            continue;
        }
        let runs = 10f64.powf(6.0 * random.unit().powi(2));
        functions[caller].samples += runs as u64;
        for _ in 0..random.below(12) {
            let callee = match random.below(4) {
                // Nearby, anywhere, or a helper; popularity falls steeply.
                0 | 1 => (caller / 50 * 50 + random.below(50)).min(number - 1),
                2 => random.below(number),
                _ => (number as f64 * 0.05 * random.unit().powi(6)) as usize * 20 % number,
            };
            let count = (runs * random.unit().powi(3) * 2.0) as u64;
            functions[callee].samples += count;
            let offset = random.below(functions[caller].size as usize) as u64;
            arcs.push(Arc {
                caller: caller as u32,
                callee: callee as u32,
                count,
                offset,
            });
        }
    }
    (functions, arcs)
}

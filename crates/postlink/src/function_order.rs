//! `--function-order`: an order of functions from a file.
//!
//! A list of symbols is taken as it is. Of traces of runs (LLVM's temporal profiles) an order is made that has
//! functions which start together on the same pages: balanced partitioning, as `llvm-profdata order` and `postlink mip
//! order` do it. It begins with the order of average first calls, in which a trace counts by its weight.

use std::path::Path;

use anyhow::Result;
use postlink_layout::partition;
use postlink_profile::orders::{self, Orders, Trace};

/// Reads an order.
pub fn read(path: &Path) -> Result<Vec<String>> {
    Ok(match orders::read(path)? {
        Orders::List(names) => names,
        Orders::Traces { names, traces } => by_traces(&names, &traces),
    })
}

fn by_traces(names: &[String], traces: &[Trace]) -> Vec<String> {
    // Of each function: its places, and the weights of the traces that it is in.
    let mut sums = vec![(0u128, 0u128); names.len()];
    for trace in traces {
        for (place, &function) in (1u128..).zip(&trace.functions) {
            let weight = u128::from(trace.weight.max(1));
            if let Some(sum) = sums.get_mut(function as usize) {
                sum.0 = sum.0.saturating_add(place.saturating_mul(weight));
                sum.1 = sum.1.saturating_add(weight);
            }
        }
    }
    let mut first_calls: Vec<u32> = (0..names.len() as u32).collect();
    first_calls.sort_by(|&a, &b| {
        let (a, b) = (sums[a as usize], sums[b as usize]);
        a.0.saturating_mul(b.1).cmp(&b.0.saturating_mul(a.1))
    });
    let mut position = vec![0; names.len()];
    for (place, &function) in (0u32..).zip(&first_calls) {
        position[function as usize] = place;
    }
    let renamed: Vec<Vec<u32>> = traces
        .iter()
        .map(|trace| {
            let places = trace
                .functions
                .iter()
                .filter_map(|&f| position.get(f as usize));
            places.copied().collect()
        })
        .collect();
    let utilities = partition::utilities_of_traces(names.len(), &renamed);
    let order = partition::order(&utilities);
    order
        .into_iter()
        .map(|place| names[first_calls[place as usize] as usize].clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_one_run_are_together_and_heavier_runs_come_first() {
        let names: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
        let trace = |weight, functions: &[u32]| Trace {
            weight,
            functions: functions.to_vec(),
        };
        // Two programs' runs, named in turn.
        let traces = [trace(1, &[0, 2, 4]), trace(1, &[1, 3, 5])];
        let order = by_traces(&names, &traces).concat();
        let side = |names: &str| -> String {
            let mut of: Vec<char> = names.chars().collect();
            of.sort_unstable();
            of.into_iter().collect()
        };
        let halves = [side(&order[..3]), side(&order[3..])];
        assert!(
            halves == ["ace", "bdf"] || halves == ["bdf", "ace"],
            "{order}"
        );
        let weighted = [trace(9, &[1, 0]), trace(1, &[0, 1])];
        assert_eq!(by_traces(&names[..2], &weighted).concat(), "ba");
    }
}

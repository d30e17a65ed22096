//! Orders of functions, for a linker to follow.
//!
//! | what is to be little | order | needs |
//! |---|---|---|
//! | | by first call, averaged over runs | call counts |
//! | pages touched when the program starts | balanced partitioning of single runs' first calls | traces |
//! | instruction cache and TLB misses | call graph | call edges |
//! | the compressed size of what never runs | balanced partitioning by common runs of bytes | the program |
//!
//! An order holds functions that ran, and [`by_similarity`] can put the others after. What is not in it a
//! linker leaves in its own order.

use std::cmp::Ordering;

use postlink_layout::call_graph::{Arc, Function as Node};
use postlink_layout::{cdsort, partition};
use postlink_profile::progress;
use rustc_hash::FxHashSet;

use crate::model::Profile;

/// Functions that ran, by the average place of their first call; those of equal average in the order of the map.
///
/// With function coverage there are no places, and it is the order of the map.
pub fn by_first_call(profile: &Profile) -> Vec<u32> {
    let mut order = covered(profile);
    order.sort_by(|&a, &b| {
        let (a, b) = (
            &profile.functions[a as usize],
            &profile.functions[b as usize],
        );
        let left = u128::from(a.order_sum) * u128::from(b.raw_count);
        let right = u128::from(b.order_sum) * u128::from(a.raw_count);
        left.cmp(&right)
    });
    order
}

fn covered(profile: &Profile) -> Vec<u32> {
    (0u32..)
        .zip(&profile.functions)
        .filter(|(_, function)| function.is_covered())
        .map(|(index, _)| index)
        .collect()
}

/// Functions that ran, so that those which start together share pages. `None`: the profile has no first-call
/// orders of single runs, nor sums of places to take for one.
pub fn by_start_up(profile: &Profile) -> Option<Vec<u32>> {
    let first_calls = by_first_call(profile);
    let mut traces: Vec<&[u32]> = profile
        .traces
        .iter()
        .map(|trace| &trace.functions[..])
        .collect();
    if traces.is_empty() {
        if profile.functions.iter().all(|f| f.order_sum == 0) {
            return None;
        }
        traces.push(&first_calls);
    }
    // The solver begins with the order that comes in: that of first calls, as good as there is without it.
    let mut position = vec![u32::MAX; profile.functions.len()];
    for (place, &function) in (0u32..).zip(&first_calls) {
        position[function as usize] = place;
    }
    let renamed: Vec<Vec<u32>> = traces
        .iter()
        .map(|trace| {
            let places = trace.iter().filter_map(|&f| position.get(f as usize));
            places.copied().filter(|&place| place != u32::MAX).collect()
        })
        .collect();
    let utilities = partition::utilities_of_traces(first_calls.len(), &renamed);
    progress::expect(utilities.len());
    let order = partition::order_told(&utilities, &mut progress::did);
    Some(
        order
            .into_iter()
            .map(|place| first_calls[place as usize])
            .collect(),
    )
}

/// Functions that ran, callers and callees near one another. `None`: the profile has no call edges.
pub fn by_call_graph(profile: &Profile) -> Option<Vec<u32>> {
    let mut by_address: Vec<(i64, u32)> = profile
        .functions
        .iter()
        .zip(0u32..)
        .map(|(function, index)| (function.address, index))
        .collect();
    by_address.sort_unstable();
    // The function that a return address is in: it may be just after a call that is the last instruction.
    let around = |return_address: i64| -> Option<(u32, u64)> {
        let call = return_address.checked_sub(1)?;
        let before = by_address.partition_point(|(start, _)| *start <= call);
        let (start, index) = *by_address.get(before.checked_sub(1)?)?;
        let offset = call.checked_sub(start)?;
        let inside = offset < i64::from(profile.functions[index as usize].size);
        inside.then_some((index, offset as u64))
    };
    let mut arcs = Vec::new();
    for (function, callee) in profile.functions.iter().zip(0u32..) {
        for edge in &function.edges {
            if let Some((caller, offset)) = around(edge.source) {
                arcs.push(Arc {
                    caller,
                    callee,
                    count: edge.weight,
                    offset,
                });
            }
        }
    }
    if arcs.is_empty() {
        return None;
    }
    let nodes: Vec<Node> = profile
        .functions
        .iter()
        .map(|function| Node {
            size: function.size.into(),
            samples: function.call_count.max(function.raw_count.into()),
        })
        .collect();
    let mut order = cdsort::order(&nodes, &arcs);
    order.retain(|&f| profile.functions[f as usize].is_covered());
    Some(order)
}

/// Length of the runs of bytes that functions have in common, in bytes.
const SHINGLE: usize = 8;
/// Runs of bytes that represent a function, at most: those with the smallest hashes.
const SHINGLES: usize = 64;

/// Functions that never ran, similar ones near one another, so that they compress well. `code` gives the
/// bytes of a function.
pub fn by_similarity<'c>(profile: &Profile, code: impl Fn(u32) -> Option<&'c [u8]>) -> Vec<u32> {
    let cold: Vec<u32> = (0u32..)
        .zip(&profile.functions)
        .filter(|(_, function)| !function.is_covered())
        .map(|(index, _)| index)
        .collect();
    let utilities: Vec<Vec<u32>> = cold
        .iter()
        .map(|&function| shingles(code(function).unwrap_or_default()))
        .collect();
    progress::expect(utilities.len());
    partition::order_told(&utilities, &mut progress::did)
        .into_iter()
        .map(|place| cold[place as usize])
        .collect()
}

fn shingles(code: &[u8]) -> Vec<u32> {
    let mut hashes: Vec<u32> = code
        .windows(SHINGLE)
        .map(|window| {
            let mut eight = [0; SHINGLE];
            eight.copy_from_slice(window);
            let mixed = u64::from_le_bytes(eight).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 32) as u32
        })
        .collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes.truncate(SHINGLES);
    hashes
}

/// How a linker wants its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One symbol a line: lld's `--symbol-ordering-file`, ld64's `-order_file`.
    Symbols,
    /// One section a line: gold's `--section-ordering-file`, for programs built with `-ffunction-sections`.
    Gold,
    /// GNU ld's `--section-ordering-file`, from 2.43 on.
    Ld,
}

/// Sections that compilers put a function into with `-ffunction-sections`, by what they think of it.
const PREFIXES: [&str; 4] = [".text", ".text.hot", ".text.startup", ".text.unlikely"];

/// The order file. Functions without a name, and names that came before, are left out.
pub fn file(profile: &Profile, order: &[u32], format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    let mut seen: FxHashSet<&[u8]> = FxHashSet::default();
    if format == Format::Ld {
        out.extend(b".text : {\n");
    }
    for &index in order {
        let Some(function) = profile.functions.get(index as usize) else {
            continue;
        };
        let name = function.name.as_slice();
        if name.is_empty() || name.contains(&b'\n') || !seen.insert(name) {
            continue;
        }
        match format {
            Format::Symbols => {
                out.extend(name);
                out.push(b'\n');
            }
            Format::Gold => {
                for prefix in PREFIXES {
                    out.extend(prefix.as_bytes());
                    out.push(b'.');
                    out.extend(name);
                    out.push(b'\n');
                }
            }
            Format::Ld => {
                out.extend(b"  *(");
                for (n, prefix) in PREFIXES.iter().enumerate() {
                    out.extend(if n > 0 { &b" "[..] } else { b"" });
                    out.extend(prefix.as_bytes());
                    out.push(b'.');
                    out.extend(name);
                }
                out.extend(b")\n");
            }
        }
    }
    if format == Format::Ld {
        out.extend(b"}\n");
    }
    out
}

/// Pages that a program touches when it calls functions in the order of a run, by a layout: for each run the
/// number of different pages, of `page` bytes, that hold the start of a function it called. Functions that
/// are not in the layout come after, in the order of the map.
pub fn pages_touched(profile: &Profile, layout: &[u32], page: u64) -> Vec<usize> {
    let mut address = vec![u64::MAX; profile.functions.len()];
    let mut at = 0u64;
    let all = (0u32..).zip(&profile.functions).map(|(index, _)| index);
    for index in layout.iter().copied().chain(all) {
        let (Some(place), Some(function)) = (
            address.get_mut(index as usize),
            profile.functions.get(index as usize),
        ) else {
            continue;
        };
        if *place == u64::MAX {
            *place = at;
            // Functions are aligned to 16 bytes.
            at = at.saturating_add(u64::from(function.size).next_multiple_of(16));
        }
    }
    let page = page.max(1);
    profile
        .traces
        .iter()
        .map(|trace| {
            let mut pages: FxHashSet<u64> = FxHashSet::default();
            pages.extend(
                trace
                    .functions
                    .iter()
                    .filter_map(|f| address.get(*f as usize))
                    .map(|address| address / page),
            );
            pages.len()
        })
        .collect()
}

/// The order of the program as it is, for comparison: all functions by address.
pub fn by_address(profile: &Profile) -> Vec<u32> {
    let mut order: Vec<u32> = (0u32..).zip(&profile.functions).map(|(i, _)| i).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (
            &profile.functions[a as usize],
            &profile.functions[b as usize],
        );
        match a.address.cmp(&b.address) {
            Ordering::Equal => a.name.cmp(&b.name),
            other => other,
        }
    });
    order
}

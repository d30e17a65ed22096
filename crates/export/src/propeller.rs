//! Layouts for the compiler and the linker to follow: Propeller's clusters of basic blocks, and an order of functions.
//!
//! Propeller compiles a program again, each function with its blocks in the order of a list
//! (`-fbasic-block-sections=list=FILE`), and links it with an order of symbols (lld's `--symbol-ordering-file`). The
//! list, in its version 1:
//!
//! ```text
//! v1
//! f hot alias_of_hot
//! c 0 3 4
//! ```
//!
//! A function, and a cluster of blocks that stay together; blocks that are in none go to the function's cold part.
//! Blocks have the numbers that the compiler gave them, which `.llvm_bb_addr_map` says (`-fbasic-block-address-map`):
//! the program that was profiled must have been compiled with it. Version 0 has `!hot` and `!!0 3 4` in place of `f`
//! and `c`.
//!
//! A function's blocks of the map get the counts of the program's blocks that begin in them, and are ordered by
//! ext-TSP. The entry is first. A function with one block that ran has a cluster of that one. The order of functions
//! is cdsort's, by calls; a linker finds the cold parts by itself.
//!
//! Source: LLVM, `BasicBlockSectionsProfileReader`, and what clang 22 accepts.

use std::fmt::Write;

use postlink_elf::bb_addr_map::{self, Block as MapBlock};
use postlink_layout::call_graph::{Arc, Function as Node};
use postlink_layout::{cdsort, ext_tsp};
use postlink_rewrite::facts::{Function, Ran};
use rustc_hash::FxHashMap;

use crate::{Error, Export, Subject};

/// Versions of the list of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `!f`, `!!0 1`: every compiler that knows the option.
    V0,
    /// `f`, `c`: clang from 17 on.
    V1,
}

/// The list of clusters.
///
/// # Errors
/// A program without a map of its basic blocks, or with one that cannot be read.
pub fn clusters(subject: &Subject<'_, '_>, version: Version) -> Result<Export, Error> {
    const FORMAT: &str = "propeller";
    let map = bb_addr_map::functions(subject.elf).map_err(|error| Error::Writing {
        format: FORMAT,
        why: error.to_string(),
    })?;
    if map.is_empty() {
        return Err(Error::Writing {
            format: FORMAT,
            why: "the program has no map of its basic blocks: compile it with -fbasic-block-address-map".to_owned(),
        });
    }
    // A linker leaves entries of functions that it dropped, at address 0.
    let by_entry: FxHashMap<u64, &[MapBlock]> = map
        .iter()
        .filter_map(|function| Some((function.blocks.first()?.start, &function.blocks[..])))
        .filter(|(start, _)| *start != 0)
        .collect();
    let mut text = match version {
        Version::V0 => String::new(),
        Version::V1 => String::from("v1\n"),
    };
    let mut without = 0;
    for &f in &order(subject) {
        let function = &subject.facts.functions[f as usize];
        let Some(ran) = function.ran.as_ref() else {
            continue;
        };
        let Some(cluster) = by_entry
            .get(&function.start())
            .and_then(|blocks| cluster(blocks, ran))
        else {
            without += 1;
            continue;
        };
        let cluster: Vec<String> = cluster.iter().map(u32::to_string).collect();
        let (name, cluster) = (&function.name, cluster.join(" "));
        // Writing to a text does not fail.
        let _ = match version {
            Version::V0 => writeln!(text, "!{name}\n!!{cluster}"),
            Version::V1 => writeln!(text, "f {name}\nc {cluster}"),
        };
    }
    let mut missing = subject.missing();
    if without > 0 {
        missing.push(format!(
            "functions that ran and are not in the map of basic blocks have no clusters: {without}"
        ));
    }
    Ok(Export {
        bytes: text.into_bytes(),
        missing,
    })
}

/// The order of functions: a name a line.
pub fn symbol_order(subject: &Subject<'_, '_>) -> Export {
    let mut text = String::new();
    for &f in &order(subject) {
        let _ = writeln!(text, "{}", subject.facts.functions[f as usize].name);
    }
    Export {
        bytes: text.into_bytes(),
        missing: subject.missing(),
    }
}

/// Functions that ran and have a name that a linker can know, in the order in which they should be.
fn order(subject: &Subject<'_, '_>) -> Vec<u32> {
    let facts = subject.facts;
    let nodes: Vec<Node> = facts
        .functions
        .iter()
        .map(|function| {
            let ran = function.ran.as_ref();
            let hot = ran.map_or(0, |ran| {
                let blocks = ran.blocks.iter().filter(|block| block.count > 0);
                blocks
                    .map(|block| block.end.saturating_sub(block.start))
                    .sum()
            });
            Node {
                size: hot,
                samples: ran.map_or(0, |ran| ran.entries.max(u64::from(ran.instructions > 0))),
            }
        })
        .collect();
    let arcs: Vec<Arc> = facts
        .calls
        .iter()
        .map(|call| Arc {
            caller: call.caller,
            callee: call.callee,
            count: call.count,
            offset: call
                .at
                .saturating_sub(facts.functions[call.caller as usize].start()),
        })
        .collect();
    let named = |function: &Function| {
        let name = &function.name;
        function.ran.is_some() && !name.is_empty() && !name.contains(char::is_whitespace)
    };
    let mut order = cdsort::order(&nodes, &arcs);
    order.retain(|&f| named(&facts.functions[f as usize]) && nodes[f as usize].samples > 0);
    order
}

/// The cluster of a function: numbers of its blocks that ran, the entry first. `None` if the map is of other code.
fn cluster(blocks: &[MapBlock], ran: &Ran) -> Option<Vec<u32>> {
    // Places in the map, by address.
    let mut by_address: Vec<(u64, u32)> =
        blocks.iter().map(|block| block.start).zip(0u32..).collect();
    by_address.sort_unstable();
    let covering = |address: u64| -> Option<u32> {
        let before = by_address.partition_point(|(start, _)| *start <= address);
        // Of several blocks that begin here all but the last one are empty.
        let (_, place) = *by_address.get(before.checked_sub(1)?)?;
        (address < blocks[place as usize].end).then_some(place)
    };
    let places: Vec<Option<u32>> = ran
        .blocks
        .iter()
        .map(|block| covering(block.start))
        .collect();
    let mut nodes: Vec<ext_tsp::Block> = blocks
        .iter()
        .map(|block| ext_tsp::Block {
            size: u32::try_from(block.end - block.start).unwrap_or(u32::MAX),
            count: 0,
        })
        .collect();
    let mut jumps: FxHashMap<(u32, u32), u64> = FxHashMap::default();
    for (block, &place) in ran.blocks.iter().zip(&places) {
        let Some(place) = place else {
            // Padding may be a block of the program's, never one that ran.
            match block.count {
                0 => continue,
                _ => return None,
            }
        };
        let node = &mut nodes[place as usize];
        node.count = node.count.max(block.count);
        for edge in &block.edges {
            let to = places.get(edge.to as usize).copied().flatten();
            let starts = |to: u32| blocks[to as usize].start == ran.blocks[edge.to as usize].start;
            // What stays inside of a block of the map is not a jump; a loop of one block begins where it begins.
            if let Some(to) = to.filter(|&to| to != place || starts(to)) {
                let sum = jumps.entry((place, to)).or_default();
                *sum = sum.saturating_add(edge.count);
            }
        }
    }
    // Blocks without bytes run when their followers do: the compiler keeps them where it likes.
    let mut list: Vec<ext_tsp::Jump> = jumps
        .into_iter()
        .map(|((from, to), count)| ext_tsp::Jump { from, to, count })
        .collect();
    list.sort_unstable_by_key(|jump| (jump.from, jump.to));
    let order = ext_tsp::order(&nodes, &list);
    let hot = |place: &u32| *place == 0 || nodes[*place as usize].count > 0;
    Some(
        order
            .into_iter()
            .filter(hot)
            .map(|place| blocks[place as usize].id)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use postlink_rewrite::facts::{Block, Edge, Ending};

    fn block(start: u64, end: u64, count: u64, edges: &[(u32, u64)]) -> Block {
        Block {
            start,
            end,
            branch: end,
            count,
            instructions: 1,
            entry: start == 0,
            landing_pad: false,
            ending: Ending::Falls,
            out: 0,
            edges: edges
                .iter()
                .map(|&(to, count)| Edge {
                    to,
                    count,
                    estimated: false,
                })
                .collect(),
        }
    }

    fn map_block(id: u32, start: u64, end: u64) -> MapBlock {
        MapBlock {
            id,
            start,
            end,
            landing_pad: false,
        }
    }

    fn ran(blocks: Vec<Block>) -> Ran {
        Ran {
            entries: 100,
            instructions: 1000,
            blocks,
            tables: vec![],
            anchored_targets: vec![],
        }
    }

    #[test]
    fn blocks_that_ran_are_in_the_order_in_which_they_follow_one_another() {
        // The program's second block is cut behind a call, which the map does not do.
        let map = [
            map_block(0, 0, 8),
            map_block(4, 8, 24),
            map_block(2, 24, 32),
            map_block(9, 32, 40),
        ];
        let blocks = vec![
            block(0, 8, 100, &[(1, 1), (3, 99)]),
            block(8, 16, 1, &[(2, 1)]),
            block(16, 24, 1, &[(4, 1)]),
            block(24, 32, 99, &[(4, 99)]),
            block(32, 40, 100, &[]),
        ];
        assert_eq!(cluster(&map, &ran(blocks.clone())), Some(vec![0, 2, 9, 4]));
        let mut cold = blocks;
        cold[1].count = 0;
        cold[2].count = 0;
        assert_eq!(cluster(&map, &ran(cold)), Some(vec![0, 2, 9]));
    }

    #[test]
    fn a_map_of_other_code_gives_no_cluster() {
        let map = [map_block(0, 0, 8)];
        let blocks = vec![block(0, 8, 1, &[(1, 1)]), block(8, 16, 1, &[])];
        assert_eq!(cluster(&map, &ran(blocks)), None);
    }
}

//! Pseudo probes of a program's blocks and of a profile's, as numbers that can be compared.
//!
//! A probe is the same in both if it is of the same source function with the same control flow, in the same place of
//! the tree of what was inlined into what, with the same number. Source functions whose control flow has changed have
//! other probes: their numbers are given anew. [`postlink_profgen::probe`] reads them in a program,
//! [`postlink_profile::bolt_yaml::probes`] in a profile.

use postlink_elf::elf::Elf;
use postlink_profgen::probe::{self, Kind, NodeId, Probes};
use postlink_profile::bolt_yaml::probes::{BlockProbe, Inlined, SourceFunction};
use postlink_profile::bolt_yaml::{Block, Function};
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

fn hash(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

/// What stands for a source function at a place of an inline tree.
fn of_node(function: SourceFunction, parent: Option<u64>, site: u32) -> u64 {
    let own = [function.guid, function.hash];
    match parent {
        Some(parent) => hash(&[own[0], own[1], parent, u64::from(site)]),
        None => hash(&own),
    }
}

/// What stands for a probe of it.
fn of_probe(node: u64, number: u32) -> u64 {
    hash(&[node, u64::from(number)])
}

/// The probes of a program.
pub(crate) struct OfProgram {
    probes: Probes,
    functions: Vec<SourceFunction>,
    nodes: Vec<u64>,
}

impl OfProgram {
    /// `None` if it has none that can be read.
    pub(crate) fn new(elf: &Elf<'_>) -> Option<OfProgram> {
        let loaded = probe::load(elf).ok()??;
        let probes = loaded.probes;
        let (mut functions, mut nodes) = (Vec::new(), Vec::new());
        for (id, node) in probes.nodes() {
            let described = loaded.descriptors.get(node.guid);
            let function = SourceFunction {
                guid: node.guid.0,
                hash: described.map_or(0, |d| d.hash),
            };
            let parent = probes.parent(id).and_then(|p| nodes.get(p.0 as usize));
            nodes.push(of_node(function, parent.copied(), node.site));
            functions.push(function);
        }
        Some(OfProgram {
            probes,
            functions,
            nodes,
        })
    }

    fn blocks(&self, start: u64, end: u64) -> impl Iterator<Item = (NodeId, u32)> {
        let within = self.probes.within(start, end);
        within
            .filter(|probe| probe.kind == Kind::Block)
            .map(|probe| (probe.node, probe.index))
    }

    /// What stands for the probes of code, sorted.
    pub(crate) fn within(&self, start: u64, end: u64) -> Vec<u64> {
        let each = self.blocks(start, end);
        sorted(
            each.filter_map(|(node, number)| {
                Some(of_probe(*self.nodes.get(node.0 as usize)?, number))
            }),
        )
    }
}

/// What stands for the nodes of a function's inline tree in a profile.
pub(crate) fn of_tree(functions: &[SourceFunction], function: &Function) -> Vec<u64> {
    let mut nodes: Vec<u64> = Vec::new();
    for (place, node) in function.inline_tree().iter().enumerate() {
        let parent = (place > 0).then(|| nodes.get(node.parent as usize).copied());
        // A number that names no function is like no probe of a program.
        let source = functions.get(node.function as usize).copied();
        let source = source.unwrap_or(SourceFunction {
            guid: 0,
            hash: u64::from(node.function),
        });
        nodes.push(of_node(source, parent.flatten(), node.site));
    }
    nodes
}

/// What stands for the probes of a block of a profile, sorted; `nodes` are those of [`of_tree`].
pub(crate) fn of_block(nodes: &[u64], block: &Block) -> Vec<u64> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let each = block.probes().into_iter();
    sorted(each.filter_map(|probe| Some(of_probe(*nodes.get(probe.node as usize)?, probe.number))))
}

fn sorted(list: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut list: Vec<u64> = list.collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// Puts the probes of a program into a profile of it.
pub(crate) struct Writer<'a> {
    of: &'a OfProgram,
    /// Source functions by their places in the profile.
    pub(crate) functions: Vec<SourceFunction>,
    numbers: FxHashMap<SourceFunction, u32>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(of: &'a OfProgram) -> Writer<'a> {
        Writer {
            of,
            functions: Vec::new(),
            numbers: FxHashMap::default(),
        }
    }

    /// Writes those of a function. `starts` are its blocks' addresses, and where each ends, by their numbers.
    pub(crate) fn write(&mut self, function: &mut Function, starts: &[(u64, u64)]) {
        // Nodes of the program that the blocks' probes are in, and all that these were inlined into.
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut of_blocks = Vec::new();
        for block in &function.blocks {
            let (start, end) = starts.get(block.bid as usize).copied().unwrap_or_default();
            let probes: Vec<(NodeId, u32)> = self.of.blocks(start, end).collect();
            for (node, _) in &probes {
                let mut at = Some(*node);
                while let Some(node) = at {
                    nodes.push(node);
                    at = self.of.probes.parent(node);
                }
            }
            of_blocks.push(probes);
        }
        nodes.sort_unstable();
        nodes.dedup();
        // One tree: what comes first is the function itself.
        let roots = nodes
            .iter()
            .filter(|n| self.of.probes.parent(**n).is_none());
        if roots.count() != 1 {
            return;
        }
        let place = |node: NodeId| nodes.binary_search(&node).map_or(0, |at| at as u32);
        let mut tree = Vec::new();
        for node in &nodes {
            let Some(source) = self.of.functions.get(node.0 as usize) else {
                return;
            };
            let number = *self.numbers.entry(*source).or_insert_with(|| {
                self.functions.push(*source);
                self.functions.len() as u32 - 1
            });
            tree.push(Inlined {
                function: number,
                parent: self.of.probes.parent(*node).map_or(0, place),
                site: self.of.probes.node(*node).site,
            });
        }
        function.set_inline_tree(&tree);
        for (block, probes) in function.blocks.iter_mut().zip(of_blocks) {
            let mut probes: Vec<BlockProbe> = probes
                .into_iter()
                .map(|(node, number)| BlockProbe {
                    node: place(node),
                    number,
                })
                .collect();
            probes.sort_unstable();
            probes.dedup();
            block.set_probes(&probes);
        }
    }
}

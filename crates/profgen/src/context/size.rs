//! How many bytes of code a function has become where it was inlined.
//!
//! The pre-inliner weighs what inlining a function somewhere would cost. What it cost in the profiled program
//! is known: every instruction has the chain of functions that it was inlined through. Sizes are kept in a
//! tree that starts at the *inlined* function and goes outwards, so that of an unknown chain the longest
//! known end can be found, and failing that any place where the function was inlined.
//!
//! Code of which nothing but probes is left has size 0, which is something else than unknown.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes are numbers that this module gave to elements of its own lists; a file says none of them"
)]

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::trie::{self, Hashes, Key, Trie};
use crate::dwarf::{Frame, Lines};
use crate::names;
use crate::probe::{Loaded, NodeId};
use crate::program::Program;
use crate::sample::{Location, NameId, Names};

#[derive(Debug, Default)]
struct Node {
    children: BTreeMap<Key, u32>,
    size: Option<u32>,
}

/// Sizes by chain, from the inlined function outwards.
#[derive(Debug)]
pub struct Sizes {
    nodes: Vec<Node>,
    hashes: Hashes,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            nodes: vec![Node::default()],
            hashes: Hashes::default(),
        }
    }
}

impl Sizes {
    /// Measures functions, given by their numbers in the program. By probes, places are probes.
    pub fn measure(
        program: &Program<'_>,
        lines: &Lines<'_>,
        loaded: Option<&Loaded<'_>>,
        functions: &FxHashSet<u32>,
        names: &mut Names,
    ) -> Sizes {
        let mut sizes = Sizes::default();
        let by_probes = loaded.is_some();
        let (mut frames, mut before): (Vec<Frame<'_>>, Vec<Frame<'_>>) = (Vec::new(), Vec::new());
        let mut node = 0;
        for (range, function) in program.ranges_with_functions() {
            if !functions.contains(&function) || range.end <= range.start {
                continue;
            }
            for address in program.between(range.start, range.end - 1) {
                lines.frames(address, &mut frames);
                // Only the places of the callers make a difference.
                let same = !frames.is_empty()
                    && frames.len() == before.len()
                    && frames[0].name == before[0].name
                    && frames[1..] == before[1..];
                if !same {
                    node = sizes.node_of(&frames, by_probes, names);
                    std::mem::swap(&mut frames, &mut before);
                }
                let size = sizes.nodes[node].size.get_or_insert(0);
                *size = size.saturating_add(program.len_at(address) as u32);
            }
        }
        if let Some(loaded) = loaded {
            let wanted: FxHashSet<&[u8]> = program
                .ranges_with_functions()
                .filter(|(_, function)| functions.contains(function))
                .map(|(range, _)| range.name)
                .collect();
            for root in loaded.probes.roots() {
                let guid = loaded.probes.node(root).guid;
                let known = loaded.descriptors.get(guid);
                if known.is_some_and(|known| wanted.contains(known.name)) {
                    sizes.left_over(loaded, root, names);
                }
            }
        }
        sizes
    }

    fn child(&mut self, names: &Names, at: usize, site: Location, name: NameId) -> usize {
        let key = self.hashes.key(names, site, name);
        if let Some(&child) = self.nodes[at].children.get(&key) {
            return child as usize;
        }
        let child = self.nodes.len();
        self.nodes.push(Node::default());
        self.nodes[at].children.insert(key, child as u32);
        child
    }

    /// The node of an instruction's frames, innermost first.
    fn node_of(&mut self, frames: &[Frame<'_>], by_probes: bool, names: &mut Names) -> usize {
        let mut node = 0;
        // A frame without a name ends what is known, seen from outside.
        let known = frames
            .iter()
            .rposition(|frame| frame.name.is_empty())
            .map_or(0, |at| at + 1);
        for (depth, frame) in frames[known..].iter().enumerate() {
            let site = match (depth, by_probes) {
                (0, _) => Location::default(),
                (_, true) => Location {
                    offset: frame.discriminator.probe_index(),
                    discriminator: 0,
                },
                (_, false) => Location {
                    offset: frame.line_offset,
                    discriminator: frame.discriminator.0,
                },
            };
            let name = names.intern(names::canonical(frame.name));
            node = self.child(names, node, site, name);
        }
        node
    }

    /// What has probes had code: if none of it is left, its size is 0.
    fn left_over(&mut self, loaded: &Loaded<'_>, root: NodeId, names: &mut Names) {
        let name_of = |names: &mut Names, guid| match loaded.descriptors.get(guid) {
            Some(descriptor) => names.intern(descriptor.name),
            None => names.intern(guid.to_string().as_bytes()),
        };
        for id in loaded.probes.subtree(root) {
            if loaded.probes.of_node(id).len() == 0 {
                continue;
            }
            let own = name_of(names, loaded.probes.node(id).guid);
            let mut node = self.child(names, 0, Location::default(), own);
            for (guid, site) in loaded.probes.context(id).into_iter().rev() {
                let name = name_of(names, guid);
                let at = Location {
                    offset: site,
                    discriminator: 0,
                };
                node = self.child(names, node, at, name);
            }
            self.nodes[node].size.get_or_insert(0);
        }
    }

    /// The size of a function where a tree of callers has it; 0 if it is unknown everywhere.
    pub fn of(&mut self, names: &Names, callers: &Trie, id: trie::Id) -> u32 {
        let (mut node, mut inner) = (Some(0), 0);
        let mut size = None;
        let mut site = Location::default();
        let mut at = id;
        while let (Some(here), Some(parent)) = (node, callers.parent(at)) {
            inner = here;
            let key = self.hashes.key(names, site, callers.node(at).name);
            node = self.nodes[here]
                .children
                .get(&key)
                .map(|&child| child as usize);
            if let Some(found) = node.and_then(|node| self.nodes[node].size) {
                size = Some(found);
            }
            site = callers.node(at).site;
            at = parent;
        }
        // Any other place where it was inlined.
        let mut node = node.unwrap_or(inner);
        while size.is_none()
            && let Some(&child) = self.nodes[node].children.values().next()
        {
            node = child as usize;
            size = self.nodes[node].size;
        }
        size.unwrap_or(0)
    }
}

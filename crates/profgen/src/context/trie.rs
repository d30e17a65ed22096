//! Chains of callers as a tree: a node is a function called from one place of its parent.
//!
//! The pre-inliner moves whole subtrees (what is known of the callees of a function that is not inlined
//! becomes known of the function on its own), and nesting folds children into parents. Both want parents,
//! children and counts that keep their identity while they move, which a map by chain does not give. Nodes
//! and counts are arenas; a node refers to its counts, and the counts to their node.
//!
//! Children are ordered by a hash of callee and place (`key`), the one that LLVM's tools order them by: where
//! several orders are right (which of several sizes to take, which attributes come first), both then give
//! the same result.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes are numbers that this module gave to elements of its own lists; a file says none of them"
)]

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::guid::Guid;
use crate::sample::{Context, Function, Location, NameId, Names, Step};

/// A node, by number.
pub type Id = u32;
/// The node above all functions.
pub const ROOT: Id = 0;
const NONE: u32 = u32::MAX;

/// What children are ordered by. The hash alone could be equal for two.
pub type Key = (u64, NameId, Location);

/// Hashes of names, each calculated once.
#[derive(Debug, Default)]
pub struct Hashes(FxHashMap<NameId, u64>);

impl Hashes {
    /// The hash of a name.
    pub fn of(&mut self, names: &Names, name: NameId) -> u64 {
        *self
            .0
            .entry(name)
            .or_insert_with(|| Guid::of(names.get(name)).0)
    }

    /// What a child is ordered by: a function called at a place.
    pub fn key(&mut self, names: &Names, at: Location, name: NameId) -> Key {
        let place = u64::from(at.discriminator) << 32 | u64::from(at.offset);
        let hash = self.of(names, name).wrapping_add(place.wrapping_mul(33));
        (hash, name, at)
    }
}

/// A function called from one place.
#[derive(Debug)]
pub struct Node {
    parent: Id,
    /// The function.
    pub name: NameId,
    /// Where its parent calls it; 0 below the root.
    pub site: Location,
    /// Its callees.
    pub children: BTreeMap<Key, Id>,
    sampled: u32,
}

/// What was counted at a node.
#[derive(Debug)]
pub struct Sampled {
    /// The counts.
    pub function: Function,
    /// Where they are now.
    pub node: Id,
    /// The pre-inliner has decided to inline it.
    pub inlined: bool,
    /// They have been added to others and count no more.
    pub merged: bool,
}

/// The tree.
#[derive(Debug)]
pub struct Trie {
    nodes: Vec<Node>,
    /// Counts of nodes.
    pub samples: Vec<Sampled>,
    hashes: Hashes,
}

impl Trie {
    /// From a profile's functions by chain.
    pub fn new(names: &Names, functions: FxHashMap<Context, Function>) -> Trie {
        let mut trie = Trie {
            nodes: vec![Node {
                parent: NONE,
                name: NameId(NONE),
                site: Location::default(),
                children: BTreeMap::new(),
                sampled: NONE,
            }],
            samples: Vec::new(),
            hashes: Hashes::default(),
        };
        for (context, function) in functions {
            let mut node = ROOT;
            let mut site = Location::default();
            for step in &context {
                node = trie.child_or_new(names, node, site, step.name);
                site = step.at;
            }
            if node != ROOT {
                trie.set(node, function);
            }
        }
        trie
    }

    /// A node.
    ///
    /// # Panics
    /// On a number that did not come from this tree.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    /// The caller of a node; `None` above the outermost functions.
    pub fn parent(&self, id: Id) -> Option<Id> {
        let parent = self.node(id).parent;
        (parent != NONE).then_some(parent)
    }

    /// The number of a node's counts.
    pub fn sampled(&self, id: Id) -> Option<usize> {
        let sampled = self.node(id).sampled;
        (sampled != NONE).then_some(sampled as usize)
    }

    /// A node's counts.
    pub fn function(&self, id: Id) -> Option<&Function> {
        Some(&self.samples[self.sampled(id)?].function)
    }

    fn set(&mut self, id: Id, function: Function) {
        self.nodes[id as usize].sampled = self.samples.len() as u32;
        self.samples.push(Sampled {
            function,
            node: id,
            inlined: false,
            merged: false,
        });
    }

    /// Takes a node's counts away.
    pub fn clear(&mut self, id: Id) {
        self.nodes[id as usize].sampled = NONE;
    }

    /// The callee of a node at a place.
    pub fn child(&mut self, names: &Names, id: Id, site: Location, name: NameId) -> Option<Id> {
        let key = self.hashes.key(names, site, name);
        self.node(id).children.get(&key).copied()
    }

    fn child_or_new(&mut self, names: &Names, id: Id, site: Location, name: NameId) -> Id {
        let key = self.hashes.key(names, site, name);
        if let Some(&child) = self.node(id).children.get(&key) {
            return child;
        }
        let child = self.nodes.len() as Id;
        self.nodes.push(Node {
            parent: id,
            name,
            site,
            children: BTreeMap::new(),
            sampled: NONE,
        });
        self.nodes[id as usize].children.insert(key, child);
        child
    }

    /// All nodes but the root, callers before callees.
    pub fn breadth_first(&self) -> Vec<Id> {
        let mut all = vec![ROOT];
        let mut at = 0;
        while let Some(&id) = all.get(at) {
            all.extend(self.node(id).children.values());
            at += 1;
        }
        all.remove(0);
        all
    }

    /// Makes a node and everything below it a function on its own, or adds it to the one that is there. Returns that.
    pub fn promote(&mut self, names: &Names, id: Id) -> Id {
        let old = self.nodes[id as usize].parent;
        let (site, name) = (self.node(id).site, self.node(id).name);
        let key = self.hashes.key(names, site, name);
        let to = self.fold_into(names, id, ROOT);
        if old != NONE {
            self.nodes[old as usize].children.remove(&key);
        }
        to
    }

    /// Moves a node below another, or adds it to the one that is there already.
    fn fold_into(&mut self, names: &Names, id: Id, parent: Id) -> Id {
        let site = match parent {
            ROOT => Location::default(),
            _ => self.node(id).site,
        };
        let name = self.node(id).name;
        let key = self.hashes.key(names, site, name);
        let Some(&to) = self.node(parent).children.get(&key) else {
            self.nodes[parent as usize].children.insert(key, id);
            let node = &mut self.nodes[id as usize];
            node.parent = parent;
            node.site = site;
            return id;
        };
        match (self.sampled(id), self.sampled(to)) {
            (Some(from), Some(into)) if from != into => {
                let function = self.samples[from].function.clone();
                let target = &mut self.samples[into].function;
                target.merge(&function);
                target.attributes |= function.attributes & crate::sample::SHOULD_BE_INLINED;
                self.samples[from].merged = true;
            }
            (Some(from), None) => {
                self.nodes[to as usize].sampled = from as u32;
                self.samples[from].node = to;
            }
            _ => {}
        }
        // Depth is that of chains of callers, which the reader of samples bounds.
        let children = std::mem::take(&mut self.nodes[id as usize].children);
        for child in children.into_values() {
            self.fold_into(names, child, to);
        }
        to
    }

    /// Back to functions by chain.
    pub fn into_functions(mut self) -> FxHashMap<Context, Function> {
        let mut functions = FxHashMap::default();
        for id in self.breadth_first() {
            let Some(sampled) = self.sampled(id) else {
                continue;
            };
            let function = std::mem::take(&mut self.samples[sampled].function);
            functions.insert(self.context(id), function);
        }
        functions
    }

    /// The chain of a node.
    fn context(&self, id: Id) -> Context {
        let mut context = Context::new();
        let (mut at, mut site) = (id, Location::default());
        while at != ROOT {
            let node = self.node(at);
            context.push(Step {
                name: node.name,
                at: site,
            });
            site = node.site;
            at = node.parent;
        }
        context.reverse();
        context
    }

    /// Takes a node's counts out, to be put somewhere else.
    pub fn take(&mut self, id: Id) -> Option<Function> {
        let sampled = self.sampled(id)?;
        Some(std::mem::take(&mut self.samples[sampled].function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::text;

    fn text_of(names: &Names, trie: Trie) -> String {
        let profile = crate::sample::Profile {
            names: names.clone(),
            functions: trie.into_functions(),
            context_sensitive: true,
            ..Default::default()
        };
        let mut out = Vec::new();
        text::write(&profile, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_promoted_subtree_is_added_to_the_function_that_stands_alone() {
        let profile = text::read(b"[a:1 @ b:2 @ c]:7:1\n 1: 7\n[a:1 @ b]:5:1\n 1: 5\n[b:2 @ c]:2:0\n 1: 2\n[b]:1:0\n 1: 1\n[a]:9:0\n 1: 9\n").unwrap();
        let names = profile.names.clone();
        let mut trie = Trie::new(&names, profile.functions);
        let at = Location {
            offset: 1,
            discriminator: 0,
        };
        let [a, b] = [b"a", b"b"].map(|name| names.find(name).unwrap());
        let top = trie.child(&names, ROOT, Location::default(), a).unwrap();
        let inner = trie.child(&names, top, at, b).unwrap();
        trie.promote(&names, inner);
        assert_eq!(
            text_of(&names, trie),
            "[a]:9:0\n 1: 9\n[b:2 @ c]:9:1\n 1: 9\n[b]:6:1\n 1: 6\n"
        );
    }
}

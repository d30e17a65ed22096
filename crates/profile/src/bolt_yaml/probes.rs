//! Pseudo probes in profiles by blocks, as llvm-bolt 20 and later write them (`--profile-write-pseudo-probes`).
//!
//! A probe is a number that the compiler gave a block of a source function before it optimised; it survives inlining
//! and copying. A block of the binary has probes of several source functions: its own, and those inlined there.
//!
//! | key | of | |
//! |---|---|---|
//! | `pseudo_probe_desc` | document | `gs`: GUIDs of source functions, `hs`: hashes of their control flow, `gh`: for each GUID which of these |
//! | `inline_tree` | function | what was inlined into what, the function itself first: `g` which GUID (as before if not said), `p` the parent's place less that of the node before, `cs` the call probe |
//! | `probes` | block | `blk`: numbers of probes (1 if not said), `ids`: nodes of the tree that all have them (0 if not said) |
//!
//! They are kept as other keys are ([`super::Extra`]); this is how they are read and made. What does not have this
//! form, that of release 19 for one, is no probe.

use super::{Block, BoltYaml, Extra, Function};
use crate::yaml::Node;

/// The key of the list of source functions.
pub(super) const SOURCE_FUNCTIONS: &[u8] = b"pseudo_probe_desc";

/// More are damage: every node of a group has every probe of it, so that a short text can say very many.
const MOST_PROBES: usize = 1 << 16;

/// A source function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceFunction {
    /// Its GUID.
    pub guid: u64,
    /// The hash of its control flow when it got its probes.
    pub hash: u64,
}

/// A source function at a place of the inline tree of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inlined {
    /// Its place in the document's list.
    pub function: u32,
    /// The node that it was inlined into; itself for the first.
    pub parent: u32,
    /// The call probe there.
    pub site: u32,
}

/// A probe of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockProbe {
    /// Its node in the function's inline tree.
    pub node: u32,
    /// Its number in the source function.
    pub number: u32,
}

fn get<'a>(entries: &'a [(Vec<u8>, Node)], key: &[u8]) -> Option<&'a Node> {
    entries.iter().find(|(k, _)| k == key).map(|(_, node)| node)
}

fn list(node: &Node) -> Option<&[Node]> {
    match node {
        Node::List(list) => Some(list),
        _ => None,
    }
}

fn map(node: &Node) -> Option<&[(Vec<u8>, Node)]> {
    match node {
        Node::Map(entries) => Some(entries),
        _ => None,
    }
}

/// A key's number, or what it is if it is not said.
fn number(entries: &[(Vec<u8>, Node)], key: &[u8], absent: u32) -> Option<u32> {
    match get(entries, key) {
        None => Some(absent),
        Some(node) => u32::try_from(super::number(node)?).ok(),
    }
}

/// A key's numbers, or the only one if they are not said.
fn numbers(entries: &[(Vec<u8>, Node)], key: &[u8], absent: u32) -> Option<Vec<u32>> {
    let Some(node) = get(entries, key) else {
        return Some(vec![absent]);
    };
    let numbers = list(node)?.iter().map(super::number);
    numbers.map(|n| u32::try_from(n?).ok()).collect()
}

impl BoltYaml {
    /// The value of a key that is not modelled.
    pub(super) fn extra_of(&self, key: &[u8]) -> Option<&Node> {
        get(&self.extra, key)
    }

    /// The source functions that inline trees name; none if the profile has no probes.
    pub fn source_functions(&self) -> Vec<SourceFunction> {
        let read = || {
            let desc = map(self.extra_of(SOURCE_FUNCTIONS)?)?;
            let all = |key: &[u8]| -> Option<Vec<u64>> {
                let numbers = list(get(desc, key)?)?.iter().map(super::number);
                numbers.collect()
            };
            let (guids, which, hashes) = (all(b"gs")?, all(b"gh")?, all(b"hs")?);
            let each = guids.iter().zip(&which).map(|(guid, which)| {
                let hash = *hashes.get(usize::try_from(*which).ok()?)?;
                Some(SourceFunction { guid: *guid, hash })
            });
            each.collect::<Option<Vec<_>>>()
        };
        read().unwrap_or_default()
    }

    /// Says which source functions the numbers in inline trees are.
    pub fn set_source_functions(&mut self, functions: &[SourceFunction]) {
        self.extra.retain(|(key, _)| key != SOURCE_FUNCTIONS);
        if functions.is_empty() {
            return;
        }
        let mut hashes: Vec<u64> = functions.iter().map(|f| f.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let which = functions.iter().map(|f| hashes.binary_search(&f.hash));
        let decimal = |n: usize| Node::Scalar(n.to_string().into_bytes());
        let hexadecimal = |n: u64| Node::Scalar(format!("0x{n:X}").into_bytes());
        let desc = vec![
            (
                b"gs".to_vec(),
                Node::List(functions.iter().map(|f| hexadecimal(f.guid)).collect()),
            ),
            (
                b"gh".to_vec(),
                Node::List(which.map(|at| decimal(at.unwrap_or(0))).collect()),
            ),
            (
                b"hs".to_vec(),
                Node::List(hashes.iter().map(|hash| hexadecimal(*hash)).collect()),
            ),
        ];
        self.extra
            .push((SOURCE_FUNCTIONS.to_vec(), Node::Map(desc)));
    }
}

impl Function {
    /// What was inlined into it, itself first; empty if it has no probes.
    pub fn inline_tree(&self) -> Vec<Inlined> {
        let read = || {
            let (mut function, mut parent) = (0, 0u32);
            let nodes = list(get(&self.extra, b"inline_tree")?)?.iter().enumerate();
            let each = nodes.map(|(place, node)| {
                let node = map(node)?;
                function = number(node, b"g", function)?;
                parent = parent.wrapping_add(number(node, b"p", 0)?);
                let before = (parent as usize) < place.max(1);
                before.then_some(Inlined {
                    function,
                    parent,
                    site: number(node, b"cs", 0)?,
                })
            });
            each.collect::<Option<Vec<_>>>()
        };
        read().unwrap_or_default()
    }

    /// Says what was inlined into it: parents come before what was inlined into them, and in their order.
    pub fn set_inline_tree(&mut self, nodes: &[Inlined]) {
        self.extra.retain(|(key, _)| key != b"inline_tree");
        if nodes.is_empty() {
            return;
        }
        let (mut function, mut parent) = (None, 0);
        let each = nodes.iter().map(|node| {
            let mut entries = Extra::new();
            let mut put = |key: &[u8], n: u32| {
                entries.push((key.to_vec(), Node::Scalar(n.to_string().into_bytes())));
            };
            if function.replace(node.function) != Some(node.function) {
                put(b"g", node.function);
            }
            let more = node.parent.wrapping_sub(parent);
            parent = node.parent;
            if more > 0 {
                put(b"p", more);
            }
            if node.site > 0 {
                put(b"cs", node.site);
            }
            Node::Map(entries)
        });
        let tree = Node::List(each.collect());
        self.extra.push((b"inline_tree".to_vec(), tree));
    }
}

impl Block {
    /// Its probes.
    pub fn probes(&self) -> Vec<BlockProbe> {
        let read = || {
            let mut out = Vec::new();
            for group in list(get(&self.extra, b"probes")?)? {
                let group = map(group)?;
                let of = numbers(group, b"blk", 1)?;
                let nodes = numbers(group, b"ids", 0)?;
                let more = of.len().saturating_mul(nodes.len());
                if more.saturating_add(out.len()) > MOST_PROBES {
                    return None;
                }
                for node in nodes {
                    out.extend(of.iter().map(|&number| BlockProbe { node, number }));
                }
            }
            Some(out)
        };
        read().unwrap_or_default()
    }

    /// Says which probes it has: sorted.
    pub fn set_probes(&mut self, probes: &[BlockProbe]) {
        self.extra.retain(|(key, _)| key != b"probes");
        if probes.is_empty() {
            return;
        }
        // Nodes that have the same probes are one entry.
        let mut groups: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
        for of_node in probes.chunk_by(|a, b| a.node == b.node) {
            let numbers: Vec<u32> = of_node.iter().map(|probe| probe.number).collect();
            let nodes = of_node.first().map(|probe| probe.node);
            match groups.iter_mut().find(|group| group.0 == numbers) {
                Some(group) => group.1.extend(nodes),
                None => groups.push((numbers, nodes.into_iter().collect())),
            }
        }
        let each = groups.into_iter().map(|(numbers, nodes)| {
            let mut entries = Extra::new();
            let mut put = |key: &[u8], list: &[u32], absent: u32| {
                if list != [absent] {
                    let list = list
                        .iter()
                        .map(|n| Node::Scalar(n.to_string().into_bytes()));
                    entries.push((key.to_vec(), Node::List(list.collect())));
                }
            };
            put(b"blk", &numbers, 1);
            put(b"ids", &nodes, 0);
            Node::Map(entries)
        });
        let list = Node::List(each.collect());
        self.extra.push((b"probes".to_vec(), list));
    }
}

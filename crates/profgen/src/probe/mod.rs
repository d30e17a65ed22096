//! Pseudo probes: which block or call of which source function is at an address.
//!
//! # The problem
//!
//! A compiler with `-fpseudo-probe-for-profiling` numbers the blocks and calls of every function before it
//! optimises, and carries the numbers through inlining, duplication and layout to the final addresses. What
//! arrives are two sections without a run-time address. [`descriptors`] reads the first, [`decode`] the
//! second; [`load()`] finds both in a file, together with what they need from its symbol table.
//!
//! # `.pseudo_probe_desc`: one record a function, until the section ends
//!
//! | field | encoding |
//! |---|---|
//! | GUID | 8 bytes |
//! | hash of the control-flow graph | 8 bytes |
//! | length of the name | ULEB128 |
//! | name | that many bytes |
//!
//! # `.pseudo_probe`: one record a contiguous piece of a function, until the section ends
//!
//! A record is a body; a body holds the bodies of what was inlined into it.
//!
//! | field of a body | encoding |
//! |---|---|
//! | site (not in a record's outermost body): index of the call probe in the surrounding body | ULEB128 |
//! | GUID of the source function | 8 bytes |
//! | number of probes, number of inlined bodies | ULEB128 each |
//! | probes | see below |
//! | inlined bodies | each a body |
//!
//! | field of a probe | encoding |
//! |---|---|
//! | index in the source function | ULEB128 |
//! | tag: bits 0–3 kind, bit 5 sentinel, bit 6 has a discriminator, bit 7 the address is a difference | 1 byte |
//! | address | SLEB128 difference to the probe before in the section, or 8 bytes |
//! | discriminator, if the tag says so | ULEB128 |
//!
//! # Where addresses start
//!
//! Two generations of compilers differ in what the first difference of a record is relative to.
//!
//! * Until LLVM 15 the first probe of every input section has its full address, and everything after it,
//!   across records, is a difference.
//! * Since LLVM 16 no address is stored. A record starts at the symbol whose name has the GUID of its
//!   outermost body; if the symbol is called otherwise (`f.cold`, `f.resume`), the first entry is a sentinel,
//!   a probe of index 0 whose 8 bytes are the GUID of the symbol's name. The sentinel sets the address and is
//!   no probe.
//!
//! A file is of the first generation from the first full address on that belongs to a probe; until then
//! records start at symbols.
//!
//! # The data model
//!
//! 43 million probes and 25 million bodies in a large program: 16 bytes a probe, 24 a body, flat arrays, no
//! pointers. Bodies are in preorder, so the probes of a body and the bodies of a subtree are ranges. A first
//! pass over the bytes counts and finds where each record starts; the second fills the arrays, in parallel.

#![allow(
    clippy::indexing_slicing,
    reason = "numbers of nodes and probes are made by the decoder alone and are places in these lists"
)]

pub mod anchor;
pub mod cursor;
pub mod decode;
pub mod descriptors;
pub mod load;
mod print;

use crate::guid::Guid;
pub use descriptors::{Descriptor, Descriptors};
pub use load::{Loaded, load};
pub use print::{Listed, inline_text};

/// What a probe represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A block.
    Block,
    /// A call through a pointer.
    IndirectCall,
    /// A call of a named function.
    DirectCall,
    /// A number that no compiler is known to write (3 to 15).
    Unknown(u8),
}

impl Kind {
    fn new(tag: u8) -> Kind {
        match tag & 15 {
            0 => Kind::Block,
            1 => Kind::IndirectCall,
            2 => Kind::DirectCall,
            other => Kind::Unknown(other),
        }
    }

    /// Whether it is at a call instruction.
    pub fn is_call(self) -> bool {
        matches!(self, Kind::IndirectCall | Kind::DirectCall)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Block => f.write_str("Block"),
            Kind::IndirectCall => f.write_str("IndirectCall"),
            Kind::DirectCall => f.write_str("DirectCall"),
            Kind::Unknown(number) => number.fmt(f),
        }
    }
}

/// A body: the probes of one source function at one place of the inline forest. Its number is its place in preorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The source function.
    pub guid: Guid,
    /// The body into which it was inlined; itself if it was not.
    parent: u32,
    /// The call probe of the parent at which it was inlined. 0: unknown. Of an outermost body: 0.
    pub site: u32,
    /// Number of its first probe. Its probes end where those of the next body start.
    first: u32,
    /// One past the last body of its subtree.
    end: u32,
}

/// A probe, packed: see [`Probe`] for its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    address: u64,
    node: u32,
    /// Index in bits 0–23, tag in bits 24–31.
    word: u32,
}

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Link-time address of the instruction. In an object file: see [`load()`].
    pub address: u64,
    /// Number in the source function, from 1; 1 is the entry.
    pub index: u32,
    /// What it represents.
    pub kind: Kind,
    /// Bits 4–6 of the tag, as 0–7.
    pub attributes: u8,
    /// Which copy of the code it is, where a compiler tells them apart; 0 if not.
    pub discriminator: u32,
    /// The body that it belongs to.
    pub node: NodeId,
}

/// What was noticed while decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Records: outermost bodies.
    pub records: u64,
    /// Sentinels.
    pub sentinels: u64,
    /// Probes of the old form whose code is gone.
    pub dangling: u64,
    /// Probes with their full address.
    pub absolute: u64,
    /// Records that have no symbol to start at: their addresses are unreliable.
    pub unanchored: u64,
    /// Records whose symbol was chosen among several of the same name.
    pub chosen: u64,
}

/// The decoded probes of a file.
#[derive(Debug, Default)]
pub struct Probes {
    nodes: Vec<Node>,
    probes: Vec<Packed>,
    /// (number of a probe, its discriminator), ascending; the others have 0.
    discriminators: Vec<(u32, u32)>,
    /// Numbers of the probes, by address; at one address in the order of the section.
    by_address: Vec<u32>,
    /// What was noticed.
    pub statistics: Statistics,
}

impl Probes {
    /// Number of probes.
    pub fn len(&self) -> usize {
        self.probes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.probes.is_empty()
    }

    /// Number of bodies.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// A body.
    ///
    /// # Panics
    /// On a number that did not come from these probes.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// All bodies, in preorder.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> {
        self.nodes
            .iter()
            .enumerate()
            .map(|(at, node)| (NodeId(at as u32), node))
    }

    /// The body into which one was inlined.
    pub fn parent(&self, id: NodeId) -> Option<NodeId> {
        let parent = self.node(id).parent;
        (parent != id.0).then_some(NodeId(parent))
    }

    /// The bodies that were inlined directly into one, in the order of the section.
    pub fn inlinees(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        let end = self.node(id).end;
        let mut next = id.0 + 1;
        std::iter::from_fn(move || {
            let this = next;
            (this < end).then(|| {
                next = self.nodes[this as usize].end;
                NodeId(this)
            })
        })
    }

    /// A body and everything inlined into it, in preorder.
    pub fn subtree(&self, id: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        (id.0..self.node(id).end).map(NodeId)
    }

    /// The outermost bodies, in the order of the section.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let this = next;
            next = self.nodes.get(this as usize)?.end;
            Some(NodeId(this))
        })
    }

    /// The probes of a body, in the order of the section.
    pub fn of_node(&self, id: NodeId) -> impl ExactSizeIterator<Item = Probe> {
        let first = self.node(id).first;
        let end = match self.nodes.get(id.0 as usize + 1) {
            Some(next) => next.first,
            None => self.probes.len() as u32,
        };
        (first..end).map(|number| self.unpack(number))
    }

    /// All probes by ascending address; at one address in the order of the section.
    pub fn by_address(&self) -> impl ExactSizeIterator<Item = Probe> {
        self.by_address.iter().map(|&number| self.unpack(number))
    }

    /// The probes at addresses from `start` up to and without `end`.
    pub fn within(&self, start: u64, end: u64) -> impl ExactSizeIterator<Item = Probe> {
        let address = |&number: &u32| self.probes[number as usize].address;
        let from = self.by_address.partition_point(|n| address(n) < start);
        let count = self.by_address[from..].partition_point(|n| address(n) < end);
        self.by_address[from..from + count]
            .iter()
            .map(|&number| self.unpack(number))
    }

    /// The probes at an address, in the order of the section.
    pub fn at(&self, address: u64) -> impl ExactSizeIterator<Item = Probe> {
        let of = |&number: &u32| self.probes[number as usize].address;
        let from = self.by_address.partition_point(|n| of(n) < address);
        let count = self.by_address[from..].partition_point(|n| of(n) == address);
        self.by_address[from..from + count]
            .iter()
            .map(|&number| self.unpack(number))
    }

    /// The probe of the call instruction at an address: the first call probe there.
    pub fn call_at(&self, address: u64) -> Option<Probe> {
        self.at(address).find(|probe| probe.kind.is_call())
    }

    /// Where a body was inlined, outermost first: the surrounding functions, each with the index of the call
    /// probe in it. Empty if it was not inlined.
    pub fn context(&self, id: NodeId) -> Vec<(Guid, u32)> {
        let mut frames = Vec::new();
        let mut at = id;
        while let Some(parent) = self.parent(at) {
            frames.push((self.node(parent).guid, self.node(at).site));
            at = parent;
        }
        frames.reverse();
        frames
    }

    fn unpack(&self, number: u32) -> Probe {
        let packed = self.probes[number as usize];
        let tag = (packed.word >> 24) as u8;
        let discriminator = match tag & decode::HAS_DISCRIMINATOR {
            0 => 0,
            _ => self
                .discriminators
                .binary_search_by_key(&number, |entry| entry.0)
                .map_or(0, |at| self.discriminators[at].1),
        };
        Probe {
            address: packed.address,
            index: packed.word & 0xff_ffff,
            kind: Kind::new(tag),
            attributes: tag >> 4 & 7,
            discriminator,
            node: NodeId(packed.node),
        }
    }
}

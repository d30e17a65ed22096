//! One function's control flow, from its bytes.
//!
//! A function is swept once into a scratch list of instructions; from it come the blocks (ranges of input
//! addresses), the edges between them, and the *fields*: places in the bytes that hold addresses. Everything
//! else about an instruction stays in the input file, to be copied.
//!
//! Blocks end at branches, before anything that something jumps to, and after calls that may not come back in
//! the ordinary way (see [`crate::discover::NonlocalExits`]): there the count of what follows can differ from
//! the count of what went before.
//!
//! Indirect jumps. Three kinds of tables are known: position-independent jump tables (found by the code that
//! forms their address, delimited by the relocations that the linker kept), tables of absolute addresses
//! (jump tables of fixed-address code and computed goto), and the labels that a function's own instructions
//! form. A jump whose table is not evident may go to every label and table entry of its function; if its
//! operand does not look like a table either, it may leave the function as well. A function with none of
//! these leaves by its indirect jumps: they are tail calls. Wrong guesses cost precision, never correctness:
//! the old body stays where it was, and a table entry that is not recognised goes on leading there.

//!
//! What a control-flow graph is is here, how one is built in [`build`](self::build()), and what indirect
//! jumps may go to in `targets`.

use postlink_isa::{Cond, FixupKind, Insn};

use super::own_bases::OwnBase;
use super::own_tables::OwnTable;
use crate::discover::Program;

/// Index of a block in its function.
pub type BlockId = u32;

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Runs into the next block in the input (`succs[0]`), maybe after a call.
    Fall,
    /// Jumps to `succs[0]`.
    Jump,
    /// To `succs[0]` if the condition holds, else `succs[1]`.
    Cond {
        /// When.
        cond: Cond,
    },
    /// As `Cond`, with an instruction that has neither a long form nor an inverse.
    ShortCond,
    /// Jumps out of the function.
    JumpOut {
        /// Where to.
        target: u64,
    },
    /// Jumps out of the function if the condition holds, else goes on at `succs[0]`.
    CondOut {
        /// When.
        cond: Cond,
        /// Where to.
        target: u64,
    },
    /// As `CondOut`, short.
    ShortCondOut {
        /// Where to.
        target: u64,
    },
    /// Indirect jump within the function (`dispatch`), which may also leave it.
    Dispatch {
        /// Index into [`Cfg::dispatches`].
        dispatch: u32,
        /// It may leave the function as well.
        leaves: bool,
    },
    /// Indirect jump out of the function.
    IndirectOut,
    /// Indirect jump to old code, in the old body or elsewhere: where the linker kept no relocations, tables
    /// stay what they were.
    FallBack,
    /// Return.
    Return,
    /// Trap, or a call at the very end.
    Stop,
}

/// A basic block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// First address.
    pub start: u64,
    /// One past the last, terminator included.
    pub end: u64,
    /// Address of the terminator; `end` if there is none to rewrite (`Fall`, `Return`, `Stop`, indirect jumps
    /// are part of the body).
    pub term_at: u64,
    /// How it ends.
    pub term: Term,
    /// First successor in [`Cfg::succs`].
    pub succ: u32,
    /// Number of successors.
    pub nsucc: u32,
    /// Entered from outside: the function's start, another entry, or a label without a jump that explains it.
    pub entry: bool,
    /// Landing pad of an exception.
    pub landing_pad: bool,
    /// Ends in a call that may leave by another way than returning.
    pub nonlocal_exits: bool,
    /// Where it may first be left for a landing pad by an instruction that faults and is not a call, in languages whose
    /// exceptions come from such instructions; `u64::MAX`: nowhere.
    pub faults_from: u64,
    /// Begins after a call, of a function or of the system, that may return more than once; a system call may
    /// also not return.
    pub returns_twice: bool,
    /// Is in a part that the compiler split off, or ends without going on.
    pub unlikely: bool,
    /// What it means for memory that is watched between an exclusive load and its store.
    pub watch: ExclusiveRegion,
    /// Index of its piece in `Function::pieces`.
    pub piece: u16,
}

/// Between an exclusive load and its store nothing may be put in, or the store fails for ever. A place is
/// critical if both a load without a store may have gone before and a store without a load may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExclusiveRegion {
    /// Such a load may have gone before the block.
    pub loaded_in: bool,
    /// Such a load may have gone before the block's end.
    pub loaded_out: bool,
    /// Such a store may come from the block's beginning on.
    pub stores_in: bool,
    /// The block has an exclusive load or store.
    pub inside: bool,
    /// Every place in the block is critical.
    pub whole: bool,
}

/// What a position-dependent field is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The target of a direct call.
    Call,
    /// An address is formed, or an absolute one is embedded.
    Address,
    /// Memory is read or written there.
    Memory,
}

/// A position-dependent field of an instruction that is copied.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Input address of the field.
    pub at: u64,
    /// Encoding.
    pub kind: FixupKind,
    /// Use.
    pub role: Use,
    /// Input address that it designates.
    pub target: u64,
}

/// An indirect call or indirect tail jump.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Input address.
    pub at: u64,
    /// Length in bytes.
    pub len: u8,
    /// Its block.
    pub block: BlockId,
    /// A jump, not a call.
    pub tail: bool,
    /// What the file says of where it leads.
    pub callee: Callee,
}

/// Where an indirect call leads, as far as it does so every time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callee {
    /// That shows when it runs.
    Unknown,
    /// Through a [constant slot](crate::discover::Refs::constant_slot) to this address.
    Function(u64),
    /// Through an import slot out of the file.
    Import,
}

impl Callee {
    /// Of a call or jump through memory.
    pub(super) fn of(program: &Program<'_>, insn: &Insn) -> Callee {
        let Some(slot) = insn.slot() else {
            return Callee::Unknown;
        };
        match program.refs.constant_slot(slot) {
            Some(target) => Callee::Function(target),
            None if program.leaves(slot) => Callee::Import,
            None => Callee::Unknown,
        }
    }
}

/// A place in data that refers to a block: the entry of a table or a label.
#[derive(Clone, Copy, Debug)]
pub struct TableEntry {
    /// Address of the entry.
    pub place: u64,
    /// Address that entries are relative to; `None` for absolute ones.
    pub base: Option<u64>,
    /// Bytes of the entry: 4 or 8.
    pub width: u64,
    /// Where it leads.
    pub block: BlockId,
}

/// A function's control flow.
#[derive(Clone, Debug, Default)]
pub struct Cfg {
    /// Ascending by address within a piece, pieces in the function's order; block 0 is the entry.
    pub blocks: Vec<Block>,
    /// It has exception tables, and its personality routine is asked about any instruction that faults.
    pub faults: bool,
    /// Successors, see [`Block::succ`].
    pub succs: Vec<BlockId>,
    /// Ascending by `at` within each block.
    pub fields: Vec<Field>,
    /// Indirect calls and tail jumps.
    pub sites: Vec<Site>,
    /// Target lists of indirect jumps, each sorted.
    pub dispatches: Vec<Vec<BlockId>>,
    /// Entries of relative tables, to be rewritten with the function. Absolute labels are found among
    /// [`Refs::pointers`](crate::discover::Refs::pointers).
    pub table_entries: Vec<TableEntry>,
    /// Targets of tables whose entries count from a place in the old code: (address, block). There the old
    /// body gets a jump to the new block.
    pub anchored_targets: Vec<(u64, BlockId)>,
    /// Addresses inside with their blocks: other entries and labels.
    pub address_taken: Vec<(u64, BlockId)>,
    /// Addresses of jumps to old addresses, ascending within a piece: those that go on in old code
    /// ([`Term::FallBack`]), and, where the linker kept no relocations, those that come back from there
    /// ([`Cfg::anchored_targets`]).
    pub falls_back: Vec<u64>,
    /// Those that go on in old code, if they stay in the function, but load no entry of a table in sight: most are tail
    /// calls.
    pub plain_jumps: Vec<u64>,
    /// Tables of their own for jumps of new code, ascending by the jump within a piece.
    pub own_tables: Vec<OwnTable>,
    /// Additions that form the addresses of some of them, ascending.
    pub own_bases: Vec<OwnBase>,
    /// Where calls return that may return in a new process, with the block that ends there or goes on there.
    pub forks: Vec<(BlockId, u64)>,
    /// Index of the first field of each block, and one more.
    pub field_index: Vec<u32>,
}

impl Cfg {
    /// Whether one of a function's labels is among what pointers lead to ([`Cfg::address_taken`]).
    pub fn is_entered_at(&self, labels: &[u64]) -> bool {
        labels
            .iter()
            .any(|label| self.address_taken.iter().any(|m| m.0 == *label))
    }

    /// Successors of a block.
    pub fn succs(&self, b: BlockId) -> &[BlockId] {
        let block = &self.blocks[b as usize];
        &self.succs[block.succ as usize..(block.succ + block.nsucc) as usize]
    }
    /// By [dispatch](Cfg::dispatches): whether a target of it is reached by another indirect jump too, or
    /// from outside. Then how often a block ran does not say how often the jump led there.
    pub fn shared_dispatches(&self) -> Vec<bool> {
        let mut jumps = vec![0u32; self.dispatches.len()];
        for b in &self.blocks {
            if let Term::Dispatch { dispatch, .. } = b.term {
                jumps[dispatch as usize] += 1;
            }
        }
        let mut lists = vec![0u32; self.blocks.len()];
        for t in self.dispatches.iter().flatten() {
            lists[*t as usize] += 1;
        }
        let shares = |t: &BlockId| {
            let b = &self.blocks[*t as usize];
            lists[*t as usize] > 1 || b.entry || b.landing_pad || b.returns_twice
        };
        self.dispatches
            .iter()
            .zip(&jumps)
            .map(|(targets, n)| *n > 1 || targets.iter().any(shares))
            .collect()
    }
    /// Sites whose targets have to be recorded, in the order of their tables.
    pub fn recorded(&self) -> impl Iterator<Item = &Site> {
        self.sites.iter().filter(|s| s.callee == Callee::Unknown)
    }
    /// Gives back space that is not used: many functions' graphs are held at the same time.
    pub(crate) fn shrink(&mut self) {
        self.blocks.shrink_to_fit();
        self.succs.shrink_to_fit();
        self.fields.shrink_to_fit();
        self.sites.shrink_to_fit();
        self.table_entries.shrink_to_fit();
        self.address_taken.shrink_to_fit();
        self.field_index.shrink_to_fit();
        self.anchored_targets.shrink_to_fit();
    }
    /// An empty graph with the same memory.
    pub(super) fn cleared(self) -> Cfg {
        fn clear<T>(mut list: Vec<T>) -> Vec<T> {
            list.clear();
            list
        }
        Cfg {
            blocks: clear(self.blocks),
            succs: clear(self.succs),
            fields: clear(self.fields),
            sites: clear(self.sites),
            address_taken: clear(self.address_taken),
            field_index: clear(self.field_index),
            forks: clear(self.forks),
            ..Cfg::default()
        }
    }

    /// Fields in a block.
    pub fn fields(&self, b: BlockId) -> &[Field] {
        &self.fields
            [self.field_index[b as usize] as usize..self.field_index[b as usize + 1] as usize]
    }
    /// The block at a label, if there is one at this address.
    pub fn label_at(&self, addr: u64) -> Option<BlockId> {
        let (_, b) = *self.address_taken.get(
            self.address_taken
                .binary_search_by_key(&addr, |m| m.0)
                .ok()?,
        )?;
        (!self.blocks[b as usize].entry).then_some(b)
    }

    /// Labels with their blocks: places that pointers in data lead to.
    pub fn labels(&self, program: &Program<'_>, function: usize) -> Vec<(u64, BlockId)> {
        let labels = &program.functions[function].labels;
        if !program.refs.kept {
            return Vec::new();
        }
        self.address_taken
            .iter()
            .copied()
            .filter(|m| labels.binary_search(&m.0).is_ok())
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod for_tests {
    use super::*;

    /// A graph of blocks of one size, from address 0 on: how each ends, and its successors. The first is the entry.
    pub(crate) fn graph<'s>(
        size: u64,
        blocks: impl IntoIterator<Item = (Term, &'s [BlockId])>,
    ) -> Cfg {
        let mut cfg = Cfg::default();
        for (i, (term, succs)) in blocks.into_iter().enumerate() {
            let start = size * i as u64;
            cfg.blocks.push(Block {
                start,
                end: start + size,
                term_at: start + size,
                term,
                succ: cfg.succs.len() as u32,
                nsucc: succs.len() as u32,
                entry: i == 0,
                landing_pad: false,
                nonlocal_exits: false,
                faults_from: u64::MAX,
                returns_twice: false,
                unlikely: false,
                watch: ExclusiveRegion::default(),
                piece: 0,
            });
            cfg.succs.extend_from_slice(succs);
        }
        cfg
    }
}

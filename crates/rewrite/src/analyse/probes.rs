//! What is put into the code of a function beside its own: counters, recorders, checks; and what new code may refer to.

use postlink_isa::{Code, CounterMode, CounterPlace, RegSet};
use rustc_hash::FxHashMap;

use crate::cfg::BlockId;

/// What a place in emitted code refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A block of the same function.
    Block(BlockId),
    /// A unit of the emitter; never in a finished fragment.
    Unit(u32),
    /// Code at this input address, wherever it is now.
    Code(u64),
    /// This address, which did not move.
    Same(u64),
    /// The displacement with which a load reads the function's n-th table of its own.
    OwnTable(u32),
    /// The address of the table that the function's n-th addition forms ([`crate::cfg::OwnBase`]).
    OwnBase(u32),
    /// The function's n-th counter.
    Counter(u32),
    /// The same counter of the owner, where counters are biased.
    OwnersCounter(u32),
    /// A word of the table of the function's n-th recorded site: 8 × n + word.
    SiteWord(u32),
    /// The same word of the owner's table, where counters are biased.
    OwnersSiteWord(u32),
    /// The recorder of the function's n-th site.
    Recorder(u32),
    /// The word that holds the load bias.
    Bias,
    /// The recorders' shared slow path.
    Slow,
    /// The routine that notes first calls and where calls come from.
    SlowWithEdges,
    /// The byte that entry checks look at.
    Ready,
    /// The routine that gives a thread its counters.
    Enter,
    /// The word that says which thread is the owner, where counters are biased.
    Owner,
}

/// Where a function's n-th counter is.
pub fn counter_place(n: u32) -> CounterPlace<Target> {
    CounterPlace {
        counter: Target::Counter(n),
        owners: Target::OwnersCounter(n),
        owner: Target::Owner,
    }
}

/// A counter in the middle of a block.
#[derive(Clone, Copy, Debug)]
pub struct NodeCounter {
    /// Its number within the function.
    pub counter: u32,
    /// Address of the instruction that it is put before.
    pub at: u64,
    /// What must survive it.
    pub live: RegSet,
}

/// Counters in the middle of blocks, at most one in each.
#[derive(Clone, Debug, Default)]
pub struct NodeCounters {
    /// By block, as far as one has a counter: one more than the counter's place in the list, or 0.
    places: Vec<u32>,
    list: Vec<NodeCounter>,
}

impl NodeCounters {
    /// Takes room for so many counters in so many blocks.
    pub fn reserve(&mut self, counters: usize, blocks: usize) {
        self.list.reserve(counters);
        self.places.reserve(blocks);
    }

    /// Puts a counter into a block that has none.
    pub fn insert(&mut self, block: BlockId, counter: NodeCounter) {
        let block = block as usize;
        if block >= self.places.len() {
            self.places.resize(block + 1, 0);
        }
        self.list.push(counter);
        self.places[block] = self.list.len() as u32;
    }

    /// The counter in a block.
    pub fn get(&self, block: BlockId) -> Option<NodeCounter> {
        let place = self.places.get(block as usize)?.checked_sub(1)?;
        self.list.get(place as usize).copied()
    }
}

/// A counter on an edge that gets code of its own.
#[derive(Clone, Copy, Debug)]
pub struct EdgeCounter {
    /// Its number within the function.
    pub counter: u32,
    /// What must survive it.
    pub live: RegSet,
}

/// What is put into the code.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// In blocks.
    pub nodes: NodeCounters,
    /// By (block, which of its ways out: index into its successors; for a conditional jump out of the
    /// function the way out is index `nsucc`).
    pub edges: FxHashMap<(BlockId, u32), EdgeCounter>,
    /// Site numbers by address of the instruction.
    pub sites: FxHashMap<u64, u32>,
    /// How counters are incremented.
    pub mode: Option<CounterMode>,
    /// An entry check in front of the first block; whether it must save what it uses.
    pub entry_check: Option<bool>,
    /// Further blocks that have an entry check for control from outside. It is elsewhere, saves what
    /// it uses, and jumps to the block.
    pub secondary_checks: Vec<BlockId>,
    /// Checks at these addresses, by block, for a new process.
    pub fork_checks: Vec<(BlockId, u64)>,
    /// Puts a counter into a block in place of an increment; arguments are what must survive and the counter's number.
    pub put: Option<fn(&mut Code<Target>, RegSet, u32)>,
    /// Instructions in front of what `put` writes.
    pub before: &'static [u8],
}

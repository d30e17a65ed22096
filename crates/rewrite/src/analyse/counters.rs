//! Which counters a function gets, and what they say.
//!
//! The function's flow is a graph in which every node conserves what enters it: a node for the outside, two
//! for each block (its beginning and its end, joined by an edge that represents the block itself), one for
//! each class of indirect jumps that share targets. Edges that no code can be put on (entries, returns, calls
//! that leave by other ways, the targets of a jump table) cannot have a counter; the fewest and cheapest of
//! the others that determine the rest are counted (`postlink_flow`). The same graph is built again when a
//! profile is read, from the input binary alone, so that nothing needs to be stored beside it.
//!
//! Invariant: the graph depends on the input binary and this version of postlink only, never on options.
//!
//! How many counters a function has does not depend on what they cost: it is the number of edges, less that of nodes,
//! more that of parts of the graph that are not connected. So who reads a profile places the counters of functions that
//! ran, and counts those of all others ([`count`]). That the places are those that the profile was made with follows
//! from [`VERSION`], which is a part of the digest in its header.

use postlink_flow::{Graph, Placer, Solver, Uncountable};
use postlink_isa::{Code, CounterMode, Effects, Flow, Insn, Isa, Reach, RegSet};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::flow_graph::{self, Meaning};
use super::probes::{EdgeCounter, NodeCounter, Probes};
use crate::cfg::{self, Block, BlockId, Cfg, Term};
use crate::discover::Program;
use crate::pin::Pin;

/// The version of where counters are. To be raised by every change of it, of the graph, of the guess of how often edges
/// run, or of what an edge costs: a profile's counters are told apart by nothing else. The golden file
/// `tests/golden/placements.txt` shows whether something has changed.
pub(crate) const VERSION: u32 = 4;

/// The graph of a function and its counters.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    graph: Graph,
    meaning: Vec<Meaning>,
    /// Edges that have counters, in the counters' order.
    pub counted: Vec<u32>,
}

/// Counts of a function.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// By block.
    pub blocks: Vec<u64>,
    /// By successor, parallel to [`Cfg::succs`].
    pub succs: Vec<u64>,
    /// By block: how often a conditional jump out of the function was taken.
    pub out: FxHashMap<BlockId, u64>,
    /// Sum of what had to be cut off because the counters did not agree.
    pub inconsistent: u64,
}

/// Reusable space.
#[derive(Default)]
pub struct Scratch {
    placer: Placer,
    solver: Solver,
    effects: Vec<Effects>,
    /// By block: its instructions, as [`Known`] has them.
    ranges: Vec<(u32, u32)>,
    /// By block: ways that lead to it.
    into: Vec<u32>,
    live: LiveScratch,
    graph: Graph,
    meaning: Vec<Meaning>,
    prices: flow_graph::Prices,
}

impl Scratch {
    /// A block's instructions with what each reads and overwrites, of the function whose [probes](Placement::probes)
    /// were made last. `code`: what its graph was built with.
    pub(crate) fn of_block<'s>(
        &'s self,
        code: &'s cfg::Scratch,
        b: BlockId,
    ) -> impl Iterator<Item = (&'s Insn, &'s Effects)> {
        let (from, to) = self.ranges[b as usize];
        let range = from as usize..to as usize;
        let (insns, _) = code.instructions();
        insns[range.clone()].iter().zip(&self.effects[range])
    }

    /// Uses the memory of a function's counters again.
    pub(crate) fn take_back(&mut self, placement: Placement) {
        (self.graph, self.meaning) = (placement.graph, placement.meaning);
    }
}

/// A function's instructions with what each reads and overwrites: found out once for all of its counters.
struct Known<'i> {
    insns: &'i [Insn],
    effects: &'i [Effects],
    /// By block: its first instruction, and one past its last.
    blocks: &'i [(u32, u32)],
    /// By piece: what calls need not keep there.
    kept_at_calls: SmallVec<[RegSet; 2]>,
    /// What unwind rows need anywhere.
    kept_for_rows: RegSet,
}

impl<'i> Known<'i> {
    /// `code`: what the graph was built with, and what unwind rows need. `effects` and `blocks` are space for them.
    fn new<I: Isa>(
        program: &Program<'_>,
        cfg: &Cfg,
        (code, kept_for_rows): (&'i cfg::Scratch, RegSet),
        (effects, blocks): (&'i mut Vec<Effects>, &'i mut Vec<(u32, u32)>),
    ) -> Self {
        let (insns, pieces) = code.instructions();
        effects.clear();
        effects.reserve(insns.len());
        let mut kept = SmallVec::new();
        for &(from, to) in pieces {
            let of_piece = &insns[from..to];
            let start = of_piece.first().map_or(0, |i| i.addr);
            let len = of_piece.last().map_or(0, |i| i.end() - start);
            let bytes = program.elf.bytes_at(start, len).unwrap_or(&[]);
            effects.extend(of_piece.iter().map(|i| {
                // What is behind the instruction as well: eight bytes are read at once.
                I::effects(&bytes[(i.addr - start) as usize..], i)
            }));
            kept.push(kept_at_calls::<I>(program, start));
        }
        // Blocks follow each other in a piece, and so do instructions.
        let (mut next, mut before) = (0, u16::MAX);
        let of_block = |block: &Block| {
            let (from, to) = pieces[usize::from(block.piece)];
            if block.piece != before {
                (next, before) = (from, block.piece);
            }
            let first = next;
            while next < to && insns[next].addr < block.end {
                next += 1;
            }
            (first as u32, next as u32)
        };
        blocks.clear();
        blocks.extend(cfg.blocks.iter().map(of_block));
        Known {
            insns,
            effects,
            blocks,
            kept_at_calls: kept,
            kept_for_rows,
        }
    }

    fn of_block(&self, b: BlockId) -> impl Iterator<Item = (&Insn, &Effects)> {
        let (from, to) = self.blocks[b as usize];
        let range = from as usize..to as usize;
        self.insns[range.clone()].iter().zip(&self.effects[range])
    }

    /// What is to be kept anywhere in a block, although no instruction reads it.
    fn kept(&self, block: &Block) -> RegSet {
        let at_calls = self.kept_at_calls[usize::from(block.piece)];
        at_calls.or(self.kept_for_rows)
    }
}

/// Chooses counters.
pub fn place(cfg: &Cfg, scratch: &mut Scratch) -> Result<Placement, Pin> {
    let memory = (
        std::mem::take(&mut scratch.graph),
        std::mem::take(&mut scratch.meaning),
    );
    let (graph, meaning) = flow_graph::build(cfg, memory, &mut scratch.prices);
    let counted = scratch.placer.place(&graph).map_err(uncountable)?.to_vec();
    Ok(Placement {
        graph,
        meaning,
        counted,
    })
}

/// How many counters [`place`] chooses.
pub(crate) fn count(cfg: &Cfg, scratch: &mut Scratch) -> Result<u32, Pin> {
    flow_graph::build_without_prices(cfg, &mut scratch.graph);
    let count = scratch.placer.count(&scratch.graph).map_err(uncountable)?;
    // There are fewer than 2^32 edges.
    Ok(count as u32)
}

fn uncountable(_: Uncountable) -> Pin {
    Pin::Uncountable
}

/// How often each block may run, relative to the others: eight times as often for every loop around it,
/// rarely where nothing good follows.
pub(crate) fn estimate(cfg: &Cfg) -> Vec<f32> {
    let n = cfg.blocks.len();
    let mut depth = vec![0i32; n + 1];
    for b in 0..n {
        for s in cfg.succs(b as BlockId) {
            // A jump back to a block that is before it: what is between is a loop, the way compilers lay code out.
            if *s as usize <= b && !matches!(cfg.blocks[b].term, Term::Dispatch { .. }) {
                depth[*s as usize] += 1;
                depth[b + 1] -= 1;
            }
        }
    }
    let mut d = 0;
    (0..n)
        .map(|b| {
            d += depth[b];
            let f = 8f32.powi(d.min(6));
            if cfg.blocks[b].unlikely { f / 512.0 } else { f }
        })
        .collect()
}

impl Placement {
    /// What each counter counts, as two numbers: for who looks whether places have changed.
    #[cfg(test)]
    pub(crate) fn places(&self) -> impl Iterator<Item = (u32, u32)> {
        self.counted
            .iter()
            .map(|c| match self.meaning[*c as usize] {
                Meaning::Node(b) => (b, u32::MAX),
                Meaning::Edge(b, w) => (b, w),
                Meaning::Target(b) => (b, u32::MAX - 1),
                Meaning::Outside => (u32::MAX, u32::MAX),
            })
    }

    /// Turns counters into code to be put in. `code`: what the graph was built with. `kept`: what unwind rows need.
    pub fn probes<I: Isa>(
        &self,
        program: &Program<'_>,
        (cfg, code, kept): (&Cfg, &cfg::Scratch, RegSet),
        mode: CounterMode,
        scratch: &mut Scratch,
    ) -> Probes {
        let mut probes = Probes {
            mode: Some(mode),
            ..Probes::default()
        };
        let Scratch {
            effects,
            ranges,
            into,
            live: live_scratch,
            ..
        } = scratch;
        into.clear();
        into.resize(cfg.blocks.len(), 0);
        for s in &cfg.succs {
            into[*s as usize] += 1;
        }
        probes.nodes.reserve(self.counted.len(), cfg.blocks.len());
        let known = Known::new::<I>(program, cfg, (code, kept), (effects, ranges));
        let spare = spare_of::<I>(program, cfg, &known);
        let live = Liveness::new::<I>(program, cfg, &known, live_scratch);
        let how = (mode, spare, &live, &known);
        for (counter, edge) in self.counted.iter().enumerate() {
            let counter = counter as u32;
            match self.meaning[*edge as usize] {
                Meaning::Node(b) => {
                    probes
                        .nodes
                        .insert(b, node_counter::<I>(program, cfg, b, counter, how));
                }
                Meaning::Edge(b, w) => {
                    let block = &cfg.blocks[b as usize];
                    match cfg.succs(b).get(w as usize) {
                        Some(s) => {
                            let t = &cfg.blocks[*s as usize];
                            let alone = into[*s as usize] == 1
                                && !t.watch.whole
                                && !t.entry
                                && !t.landing_pad
                                && !t.returns_twice;
                            if alone && probes.nodes.get(*s).is_none() {
                                probes
                                    .nodes
                                    .insert(*s, node_counter::<I>(program, cfg, *s, counter, how));
                            } else {
                                let kept = known.kept(t);
                                let live = live.at_entry(*s).or(kept).minus(spare);
                                probes.edges.insert((b, w), EdgeCounter { counter, live });
                            }
                        }
                        // No one reads the flags at a function's entry, but a jump out need not be to an entry.
                        None => {
                            let _ = block;
                            probes.edges.insert(
                                (b, w),
                                EdgeCounter {
                                    counter,
                                    live: RegSet::ALL.minus(spare),
                                },
                            );
                        }
                    }
                }
                Meaning::Target(_) | Meaning::Outside => {}
            }
        }
        (live_scratch.entries, live_scratch.ends) = (live.entries, live.ends);
        probes
    }

    /// Solves for all blocks and edges. `counters` are this function's.
    pub fn solve(&self, cfg: &Cfg, counters: &[u64], scratch: &mut Scratch) -> Counts {
        let solution = scratch.solver.solve(&self.graph, &self.counted, counters);
        let mut counts = Counts {
            blocks: vec![0; cfg.blocks.len()],
            succs: vec![0; cfg.succs.len()],
            out: FxHashMap::default(),
            inconsistent: solution.inconsistent,
        };
        let mut dispatched: FxHashMap<BlockId, u64> = FxHashMap::default();
        for (e, m) in self.meaning.iter().enumerate() {
            let c = solution.edges[e];
            match *m {
                Meaning::Node(b) => counts.blocks[b as usize] = c,
                Meaning::Edge(b, w) => {
                    let block = &cfg.blocks[b as usize];
                    if w < block.nsucc {
                        counts.succs[(block.succ + w) as usize] = c;
                    } else {
                        counts.out.insert(b, c);
                    }
                }
                Meaning::Target(t) => {
                    dispatched.insert(t, c);
                }
                Meaning::Outside => {}
            }
        }
        // The targets of indirect jumps are known in sum over the jumps that share them: give each jump its share.
        for b in 0..cfg.blocks.len() as BlockId {
            let block = &cfg.blocks[b as usize];
            if !matches!(block.term, Term::Dispatch { .. }) {
                continue;
            }
            let of = |t: &BlockId| {
                dispatched
                    .get(t)
                    .copied()
                    .unwrap_or(counts.blocks[*t as usize])
            };
            let total: u128 = cfg.succs(b).iter().map(|t| u128::from(of(t))).sum();
            for (k, t) in cfg.succs(b).iter().enumerate() {
                let share = u128::from(counts.blocks[b as usize]) * u128::from(of(t));
                counts.succs[block.succ as usize + k] = share
                    .checked_div(total)
                    .unwrap_or(0)
                    .min(u128::from(u64::MAX))
                    as u64;
            }
        }
        counts
    }
}

/// The cheapest place in a block for its counter, and what must survive there.
fn node_counter<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    b: BlockId,
    counter: u32,
    (mode, spare, live, known): (CounterMode, RegSet, &Liveness, &Known<'_>),
) -> NodeCounter {
    let block = &cfg.blocks[b as usize];
    let mut places = Places::new();
    for (i, effects) in known.of_block(b) {
        if !look::<I>(program, block, &mut places, i, *effects) {
            break;
        }
    }
    let cost = |live| I::counter_len(mode, live);
    let behind = || live.behind(cfg, b);
    let kept = known.kept(block);
    cheapest_of::<I>(
        program,
        cfg,
        (b, counter),
        (spare, kept),
        &places,
        (&cost, &behind),
    )
}

/// The same for any counter: `cost` is its length, by what must survive. `kept`: what unwind rows need.
pub(crate) fn cheapest<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    b: BlockId,
    counter: u32,
    (spare, kept): (RegSet, RegSet),
    cost: &dyn Fn(RegSet) -> usize,
) -> NodeCounter {
    let block = &cfg.blocks[b as usize];
    let bytes = bytes_of(program, block);
    let mut places = Places::new();
    I::sweep(bytes, block.start, |i| {
        let at = (i.addr - block.start) as usize;
        let effects = I::effects(&bytes[at..at + usize::from(i.len)], i);
        look::<I>(program, block, &mut places, i, effects)
    });
    let behind = || live_out::<I>(program, cfg, b, 3);
    let kept = kept.or(kept_at_calls::<I>(program, block.start));
    cheapest_of::<I>(
        program,
        cfg,
        (b, counter),
        (spare, kept),
        &places,
        (cost, &behind),
    )
}

/// How many instructions of a block are looked at: nearly every block has a good place near its start.
const LOOKED_AT: usize = 24;

/// Instructions of a block in front of which a counter may be: address, what it does, and whether the counter has to go
/// after it.
type Places = SmallVec<[(u64, Effects, bool); LOOKED_AT]>;

/// Adds an instruction of a block. False if the next is not to be looked at.
fn look<I: Isa>(
    program: &Program<'_>,
    block: &Block,
    places: &mut Places,
    i: &Insn,
    effects: Effects,
) -> bool {
    let lets_in = || block.entry && i.addr == block.start && lets_in::<I>(bytes_of(program, block));
    places.push((i.addr, effects, i.traits.landing_pad || lets_in()));
    // The program may end at a trap, or go on elsewhere, and who handles it may look at what is behind it.
    let ends = matches!(i.flow, Flow::Call { .. } | Flow::IndirectCall | Flow::Trap);
    places.len() < LOOKED_AT && !ends
}

fn bytes_of<'d>(program: &Program<'d>, block: &Block) -> &'d [u8] {
    let bytes = program.elf.bytes_at(block.start, block.end - block.start);
    bytes.unwrap_or(&[])
}

/// The cheapest of some places; the second function gives what is live behind the block. `kept`: what is live anywhere
/// in it, although `spare` holds nothing.
fn cheapest_of<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    (b, counter): (BlockId, u32),
    (spare, kept): (RegSet, RegSet),
    places: &Places,
    (cost, behind): (&dyn Fn(RegSet) -> usize, &dyn Fn() -> RegSet),
) -> NodeCounter {
    let block = &cfg.blocks[b as usize];
    let allowed = if block.watch.inside || block.watch.loaded_in {
        unwatched::<I>(bytes_of(program, block), block)
    } else {
        (block.start, u64::MAX)
    };
    // Who leaves the block by a fault has entered it.
    let allowed = (allowed.0, allowed.1.min(block.faults_from.max(allowed.0)));
    let whole = places
        .last()
        .is_none_or(|p| p.0 >= block.term_at || places.len() < LOOKED_AT);
    let mut live = if whole { behind() } else { RegSet::ALL };
    let kept = kept.or(kept_for_pads::<I>(cfg));
    let mut best: Option<(usize, u64, RegSet)> = None;
    for (at, effects, landing_pad) in places.iter().rev() {
        live = RegSet(live.minus(effects.kills).0 | effects.reads.0);
        if *landing_pad || *at < allowed.0 || *at > allowed.1 {
            continue; // the counter goes after it
        }
        if cfg.own_tables.iter().any(|t| t.is_inside(*at)) {
            continue; // and in front of a jump through a table of new code's own
        }
        let live = live.or(kept).minus(spare);
        let cost = cost(live);
        if best.is_none_or(|x| cost <= x.0) {
            best = Some((cost, *at, live));
        }
    }
    match best {
        Some((_, at, live)) => NodeCounter { counter, at, live },
        None => NodeCounter {
            counter,
            at: block.term_at.min(block.end).min(allowed.1).max(allowed.0),
            live: RegSet::ALL.minus(spare),
        },
    }
}

/// Whether an instruction that does something else lets indirect branches in as well (AArch64: `paciasp`): a
/// jump in its place needs a landing pad.
pub(crate) fn lets_in<I: Isa>(code: &[u8]) -> bool {
    let mut jump: Code<()> = Code::default();
    I::put_entry(&mut jump, code, ());
    jump.bytes.len() > I::jump_len(Reach::Long)
}

/// Where in a block nothing is watched: from the first to the second address, which is that of the next
/// exclusive load or store.
fn unwatched<I: Isa>(bytes: &[u8], block: &crate::cfg::Block) -> (u64, u64) {
    let mut critical = block.watch.loaded_in && block.watch.stores_in;
    let mut range = (block.start, block.term_at);
    I::sweep(bytes, block.start, |i| {
        if critical {
            if i.traits.exclusive_store {
                critical = false;
                range.0 = i.end();
            }
            return true;
        }
        if i.traits.exclusive_load || i.traits.exclusive_store {
            range.1 = i.addr.max(range.0);
            return false;
        }
        true
    });
    range
}

/// Registers that hold nothing anywhere in a function: those that calls leave to stubs hold nothing when it
/// is entered and nothing when it is left, and if no instruction of a compiled function reads them, nothing
/// in between.
pub(crate) fn spare<I: Isa>(program: &Program<'_>, cfg: &Cfg) -> RegSet {
    let Some(first) = cfg.blocks.first().and_then(|b| program.piece_at(b.start)) else {
        return RegSet::EMPTY;
    };
    let mut spare = I::CALL_SCRATCH;
    for piece in &program.functions[first.function as usize].pieces {
        let piece = &program.pieces[*piece as usize];
        let Some(bytes) = program.elf.bytes_at(piece.start, piece.end - piece.start) else {
            return RegSet::EMPTY;
        };
        let stopped = I::sweep(bytes, piece.start, |i| {
            let at = (i.addr - piece.start) as usize;
            let effects = I::effects(&bytes[at..at + usize::from(i.len)], i);
            spare = spare.minus(used(program, i, &effects));
            spare != RegSet::EMPTY
        });
        if piece.fde.is_none() || stopped.is_some() {
            return RegSet::EMPTY;
        }
    }
    spare
}

/// The same of a function whose instructions are known.
fn spare_of<I: Isa>(program: &Program<'_>, cfg: &Cfg, known: &Known<'_>) -> RegSet {
    let compiled = known.kept_at_calls.iter().all(|r| *r == RegSet::EMPTY);
    if cfg.blocks.is_empty() || !compiled {
        return RegSet::EMPTY;
    }
    let mut spare = I::CALL_SCRATCH;
    for (i, effects) in known.insns.iter().zip(known.effects) {
        spare = spare.minus(used(program, i, effects));
        if spare == RegSet::EMPTY {
            break;
        }
    }
    spare
}

/// Registers that hold something somewhere if an instruction of a function does this.
fn used(program: &Program<'_>, i: &Insn, effects: &Effects) -> RegSet {
    if !program.refs.kept && !matches!(i.flow, Flow::Call { .. } | Flow::IndirectCall) {
        // A part that is not known to be one may read what it is given.
        return effects.reads.or(effects.kills);
    }
    effects.reads
}

/// Registers to keep although calls leave them to stubs: in functions that may be hand-written.
pub(crate) fn kept_at_calls<I: Isa>(program: &Program<'_>, start: u64) -> RegSet {
    match program.piece_at(start) {
        Some(piece) if piece.fde.is_some() => RegSet::EMPTY,
        _ => I::CALL_SCRATCH,
    }
}

/// Registers that landing pads may read to which any instruction may lead by a fault.
fn kept_for_pads<I: Isa>(cfg: &Cfg) -> RegSet {
    if cfg.faults {
        I::KEPT_BY_CALLS
    } else {
        RegSet::EMPTY
    }
}

/// What is live where a function's blocks begin.
///
/// A data flow from the ends of blocks to their beginnings. At first everything is live everywhere; each of a few
/// rounds takes away what is overwritten on all ways of so many blocks before it is read. So each round's result is
/// right, and what is dead can be shown within few instructions, as the checker wants to.
///
/// Flags that a loop neither reads nor overwrites stay live that way: AF in a loop of `test` alone, which leaves it
/// undefined. So for flags the usual data flow is solved as well, from nothing live upwards, and believed where few
/// blocks have to be looked at to see it ([`Liveness::free_flags`]).
struct Liveness {
    /// By block.
    entries: Vec<RegSet>,
    /// By block: what is live after it whatever its successors are, and whether they add to that.
    ends: Vec<(RegSet, bool)>,
}

/// Memory that [`Liveness`] is found out in, used again from function to function.
#[derive(Default)]
struct LiveScratch {
    entries: Vec<RegSet>,
    next: Vec<RegSet>,
    ends: Vec<(RegSet, bool)>,
    /// By block: what it reads before it overwrites it, and what it leaves alone.
    blocks: Vec<(RegSet, RegSet)>,
    read: Vec<RegSet>,
}

/// Blocks through which a flag may be followed that is dead behind them.
const FOLLOWED: usize = 32;

/// Rounds of [`Liveness`].
const ROUNDS: usize = 8;

impl Liveness {
    fn new<I: Isa>(
        program: &Program<'_>,
        cfg: &Cfg,
        known: &Known<'_>,
        scratch: &mut LiveScratch,
    ) -> Liveness {
        let of_block = |b: BlockId| {
            let mut reads = kept_for_pads::<I>(cfg);
            let mut open = RegSet::ALL;
            for (_, e) in known.of_block(b) {
                reads = reads.or(RegSet(e.reads.0 & open.0));
                open = open.minus(e.reads).minus(e.kills);
            }
            (reads, open)
        };
        let all = 0..cfg.blocks.len() as BlockId;
        let LiveScratch {
            entries,
            next,
            ends,
            blocks,
            read,
        } = scratch;
        blocks.clear();
        blocks.extend(all.clone().map(of_block));
        let mut live = Liveness {
            entries: std::mem::take(entries),
            ends: std::mem::take(ends),
        };
        live.ends.clear();
        live.ends
            .extend(all.map(|b| live_at_end::<I>(program, cfg, b)));
        for list in [&mut live.entries, &mut *next] {
            list.clear();
            list.resize(blocks.len(), RegSet::ALL);
        }
        for _ in 0..ROUNDS {
            for ((b, next), (reads, open)) in (0..).zip(&mut *next).zip(&*blocks) {
                *next = reads.or(RegSet(live.behind(cfg, b).0 & open.0));
            }
            if *next == live.entries {
                break;
            }
            std::mem::swap(&mut live.entries, next);
        }
        if I::counter_len(CounterMode::Atomic, I::FLAGS)
            != I::counter_len(CounterMode::Atomic, RegSet::EMPTY)
        {
            live.free_flags(cfg, blocks, I::FLAGS, (read, next));
        }
        live
    }

    fn at_entry(&self, b: BlockId) -> RegSet {
        self.entries.get(b as usize).copied().unwrap_or(RegSet::ALL)
    }

    /// What is live after a block's last instruction.
    fn behind(&self, cfg: &Cfg, b: BlockId) -> RegSet {
        let (live, goes_on) = self.ends[b as usize];
        let succs = cfg.succs(b).iter().filter(|_| goes_on);
        succs.fold(live, |live, s| live.or(self.at_entry(*s)))
    }

    /// Takes flags away from what is live where blocks begin that no way reads, if that shows within [`FOLLOWED`]
    /// blocks. `blocks`: what each reads, and what it leaves alone. The last two are space.
    fn free_flags(
        &mut self,
        cfg: &Cfg,
        blocks: &[(RegSet, RegSet)],
        flags: RegSet,
        (read, thought): (&mut Vec<RegSet>, &mut Vec<RegSet>),
    ) {
        let both = |a: RegSet, b: RegSet| RegSet(a.0 & b.0);
        if !self.entries.iter().any(|live| live.meets(flags)) {
            return;
        }
        read.clear();
        read.resize(blocks.len(), RegSet::EMPTY);
        loop {
            let mut changed = false;
            for b in (0..blocks.len()).rev() {
                let (end, goes_on) = self.ends[b];
                let succs = cfg.succs(b as BlockId).iter().filter(|_| goes_on);
                let behind = succs.fold(end, |live, s| live.or(read[*s as usize]));
                let (reads, open) = blocks[b];
                let now = both(flags, reads.or(both(behind, open)));
                changed |= now != read[b];
                read[b] = now;
            }
            if !changed {
                break;
            }
        }
        thought.clone_from(&self.entries);
        for b in 0..blocks.len() {
            let unread = both(thought[b], flags).minus(read[b]);
            if unread == RegSet::EMPTY {
                continue;
            }
            let mut seen: SmallVec<[BlockId; FOLLOWED]> = SmallVec::new();
            seen.push(b as BlockId);
            let mut at = 0;
            while let Some(&next) = seen.get(at)
                && seen.len() <= FOLLOWED
            {
                at += 1;
                let open = both(blocks[next as usize].1, unread);
                for s in cfg.succs(next) {
                    if thought[*s as usize].meets(open) && !seen.contains(s) {
                        seen.push(*s);
                    }
                }
            }
            if seen.len() <= FOLLOWED {
                self.entries[b] = self.entries[b].minus(unread);
            }
        }
    }
}

/// What is live after a block's last instruction whatever its successors are, and whether what is live where those
/// begin is as well.
fn live_at_end<I: Isa>(program: &Program<'_>, cfg: &Cfg, b: BlockId) -> (RegSet, bool) {
    match cfg.blocks[b as usize].term {
        // Without relocations it is not known which parts a compiler split off: they begin with anything.
        Term::FallBack => (RegSet::ALL, false),
        Term::JumpOut { .. } if !program.refs.kept => (RegSet::ALL, false),
        Term::Return | Term::Stop | Term::IndirectOut | Term::JumpOut { .. } => {
            (I::LIVE_AT_EXIT, false)
        }
        // Not all targets need be known: control to a missed one continues in the old body, with whatever it needs.
        Term::Dispatch { .. } => (RegSet::ALL, false),
        // What is jumped to need not be an entry, where flags mean nothing.
        Term::CondOut { .. } | Term::ShortCondOut { .. } => (I::LIVE_AT_EXIT.or(I::FLAGS), true),
        _ => (RegSet::EMPTY, true),
    }
}

/// What is live after a block's last instruction; more than that when it is too far to see.
fn live_out<I: Isa>(program: &Program<'_>, cfg: &Cfg, b: BlockId, depth: u32) -> RegSet {
    let (live, goes_on) = live_at_end::<I>(program, cfg, b);
    let succs = cfg.succs(b).iter().filter(|_| goes_on);
    succs.fold(live, |live, s| {
        live.or(match depth {
            0 => RegSet::ALL,
            _ => live_in::<I>(program, cfg, *s, depth - 1),
        })
    })
}

/// What is live at a block's first instruction; more than that when it is too far to see.
fn live_in<I: Isa>(program: &Program<'_>, cfg: &Cfg, b: BlockId, depth: u32) -> RegSet {
    let block = &cfg.blocks[b as usize];
    let bytes = program
        .elf
        .bytes_at(block.start, block.end - block.start)
        .unwrap_or(&[]);
    let mut live = kept_for_pads::<I>(cfg);
    let mut open = RegSet::ALL;
    let mut seen = 0;
    I::sweep(bytes, block.start, |i| {
        let at = (i.addr - block.start) as usize;
        let e = I::effects(&bytes[at..at + usize::from(i.len)], i);
        live = live.or(RegSet(e.reads.0 & open.0));
        open = open.minus(e.reads).minus(e.kills);
        seen += 1;
        seen < I::LOOK_AHEAD && open.meets(I::SOUGHT)
    });
    if seen >= I::LOOK_AHEAD || !open.meets(I::SOUGHT) || depth == 0 {
        return live.or(open);
    }
    live.or(RegSet(live_out::<I>(program, cfg, b, depth - 1).0 & open.0))
}

/// What is live at an address in a block; more than that when it is too far to see.
pub(crate) fn live_at<I: Isa>(program: &Program<'_>, cfg: &Cfg, b: BlockId, at: u64) -> RegSet {
    let block = &cfg.blocks[b as usize];
    let bytes = program
        .elf
        .bytes_at(at, block.end.saturating_sub(at))
        .unwrap_or(&[]);
    let mut live = kept_for_pads::<I>(cfg);
    let mut open = RegSet::ALL;
    I::sweep(bytes, at, |i| {
        let from = (i.addr - at) as usize;
        let e = I::effects(&bytes[from..from + usize::from(i.len)], i);
        live = live.or(RegSet(e.reads.0 & open.0));
        open = open.minus(e.reads).minus(e.kills);
        !matches!(i.flow, Flow::Call { .. } | Flow::IndirectCall)
    });
    live.or(RegSet(live_out::<I>(program, cfg, b, 3).0 & open.0))
}

#[cfg(test)]
mod tests {
    use postlink_isa::Cond;

    use super::*;
    use crate::cfg::for_tests;

    /// `(how it ends, successors, nothing good follows)`.
    fn graph(blocks: &[(Term, &[BlockId], bool)]) -> Cfg {
        let mut cfg = for_tests::graph(256, blocks.iter().map(|(term, succs, _)| (*term, *succs)));
        for (block, (_, _, unlikely)) in cfg.blocks.iter_mut().zip(blocks) {
            block.unlikely = *unlikely;
        }
        cfg
    }

    #[test]
    fn who_leaves_a_block_by_a_fault_is_not_counted_as_going_on() {
        let cond = Term::Cond { cond: Cond(4) };
        let ends = [(Term::Return, &[][..], false), (Term::Return, &[], false)];
        for (term, succs, plain) in [(Term::Fall, &[1][..], 1), (cond, &[1, 2], 2)] {
            let mut cfg = graph(&[&[(term, succs, false)], &ends[..succs.len()]].concat());
            let counters = |cfg: &Cfg| {
                let placement = place(cfg, &mut Scratch::default());
                placement.expect("every block can count").counted.len()
            };
            assert_eq!(counters(&cfg), plain);
            cfg.blocks[0].faults_from = 16;
            assert_eq!(counters(&cfg), plain + 1, "one more for those who fault");
        }
    }

    #[test]
    fn checks_deep_in_a_function_are_counted_where_they_fail() {
        const DEEP: BlockId = 60;
        const CHECKS: BlockId = 5;
        let (home, failure) = (DEEP + CHECKS, DEEP + CHECKS + 1);
        let cond = Term::Cond { cond: Cond(4) };
        // Every block may go home, so that little flow arrives at the checks after them.
        let ways: Vec<[BlockId; 2]> = (0..home)
            .map(|b| [if b < DEEP { home } else { failure }, b + 1])
            .collect();
        let mut blocks: Vec<(Term, &[BlockId], bool)> =
            ways.iter().map(|w| (cond, &w[..], false)).collect();
        blocks.extend([(Term::Return, &[][..], false), (Term::Stop, &[][..], true)]);
        let placement =
            place(&graph(&blocks), &mut Scratch::default()).expect("every block can count");
        let counted = |m: Meaning| {
            placement
                .counted
                .iter()
                .any(|e| placement.meaning[*e as usize] == m)
        };
        let on_the_way = |b: &BlockId| counted(Meaning::Node(*b)) || counted(Meaning::Edge(*b, 1));
        let found: Vec<BlockId> = (DEEP..home).filter(on_the_way).collect();
        assert!(
            found.len() <= 1,
            "ways past the checks {found:?} have counters; one says it all"
        );
    }

    #[test]
    fn a_flag_that_a_loop_leaves_alone_is_dead_in_it_if_nobody_reads_it() {
        const FLAG: RegSet = RegSet(1 << 20);
        let cond = Term::Cond { cond: Cond(4) };
        let looped: [(Term, &[BlockId], bool); 3] = [
            (Term::Fall, &[1], false),
            (cond, &[1, 2], false),
            (Term::Return, &[], false),
        ];
        let free = |cfg: &Cfg, last_reads: RegSet| {
            let last = cfg.blocks.len() - 1;
            let mut blocks = vec![(RegSet::EMPTY, FLAG); cfg.blocks.len()];
            blocks[last].0 = last_reads;
            // As rounds from everything live on leave it: what ends in few blocks is known.
            let mut live = Liveness {
                entries: vec![FLAG; cfg.blocks.len()],
                ends: vec![(RegSet::EMPTY, true); cfg.blocks.len()],
            };
            live.entries[last] = last_reads;
            live.free_flags(cfg, &blocks, FLAG, (&mut Vec::new(), &mut Vec::new()));
            live.entries
        };
        assert_eq!(free(&graph(&looped), RegSet::EMPTY), [RegSet::EMPTY; 3]);
        assert_eq!(free(&graph(&looped), FLAG), [FLAG; 3]);
        // Too far for the checker to look: nothing is claimed.
        let far = 2 * FOLLOWED as BlockId;
        let next: Vec<[BlockId; 1]> = (1..=far).map(|b| [b]).collect();
        let mut chain: Vec<(Term, &[BlockId], bool)> =
            next.iter().map(|n| (Term::Fall, &n[..], false)).collect();
        chain.push((Term::Return, &[], false));
        let live = free(&graph(&chain), RegSet::EMPTY);
        assert_eq!(live[0], FLAG);
        assert_eq!(live[far as usize - 4], RegSet::EMPTY);
    }
}

//! New code for one function.
//!
//! The input's bytes are copied block by block in the order that a [`Plan`] gives, hot blocks to one fragment
//! and cold ones to another; only what ends a block is re-encoded, to suit its new neighbours. Fields that
//! hold addresses become fixups that are resolved when every function has its place. Counters and recorders
//! are put in on the way.
//!
//! Branches start short and grow until all reach (a branch never shrinks again, so this ends). What is copied
//! is described in [`Span`]s, from which unwind rows and call sites are carried over.

use std::borrow::Cow;
use std::cell::RefCell;

use postlink_isa::{
    Code, Cond, CounterMode, Fixup, FixupKind, Flow, Isa, Reach, RegSet, StackMove,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::analyse::{EdgeCounter, NodeCounter, Probes, Target, counter_place};
use crate::cfg::{Block, BlockId, Cfg, Fallback, OwnEntry, OwnTable, Restored, Term, Use};
use crate::discover::Program;
use crate::passes::{Change, Changes};
use crate::pin::Pin;

/// Bytes of an addition that forms the address of a table of labels.
const LABEL_BASE: u64 = 4;

/// Order of the blocks.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Hot blocks, the entry first; then cold ones.
    pub fragments: [Vec<BlockId>; 2],
    /// Counters and recorders.
    pub probes: Probes,
    /// Addresses formed by instructions follow their functions where they may ([`crate::discover::visible`]);
    /// else only calls and jumps do.
    pub move_addresses: bool,
    /// Drop padding that nothing runs through.
    pub drop_padding: bool,
    /// Blocks of the hot fragment that begin at multiples of [`Plan::block_alignment`], counted from the
    /// fragment's start.
    pub aligned: Vec<BlockId>,
    /// Bytes, a power of two; at most what the fragment itself is aligned to.
    pub block_alignment: u32,
    /// Instructions that other code replaces.
    pub changes: Changes,
    /// What the code corresponds to is [given up](Emitted::forget_spans) soon, so it is not copied out of the buffer
    /// that it was put together in.
    pub lends_spans: bool,
}

/// A stretch of output that corresponds to a stretch of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset in the fragment.
    pub out: u32,
    /// Length in the fragment.
    pub len: u32,
    /// Input address where it begins; a stretch that was added has the address whose unwind state it shares.
    pub input: u64,
    /// Copied from there, byte for byte (else added).
    pub copied: bool,
    /// Not copied, but in place of the instruction there: what unwinds from it unwinds from here.
    pub instead: bool,
    /// The instruction of the input that the stretch corresponds to, re-encoded, and its length: what debug
    /// information says of that holds here. None for what was copied, and for what was added.
    pub of: Option<(u64, u8)>,
    /// Piece of the function that `input` is in.
    pub piece: u16,
    /// How many bytes the stack pointer is below where it is in the input, in code that was added.
    pub down: u32,
    /// Registers of the input that such code has saved there.
    pub saved: RegSet,
    /// The register that has the return address meanwhile, if that is another one.
    pub link: Option<u8>,
}

impl Span {
    /// A stretch that shares the unwind state of an input address, and corresponds to nothing.
    fn added(out: u32, len: u32, (input, piece): (u64, u16)) -> Span {
        Span {
            out,
            len,
            input,
            copied: false,
            instead: false,
            of: None,
            piece,
            down: 0,
            saved: RegSet::EMPTY,
            link: None,
        }
    }

    /// The same stretch in parts that have the stack pointer in one place each. Moves count from the stretch's start.
    fn parts(self, mut moves: impl Iterator<Item = StackMove>) -> impl Iterator<Item = Span> {
        let end = self.out + self.len;
        let mut here = Some(self);
        std::iter::from_fn(move || {
            let mut part = here.take()?;
            if let Some(next) = moves.next() {
                let at = self.out + next.at;
                part.len = at - part.out;
                here = (at < end).then_some(Span {
                    out: at,
                    len: end - at,
                    down: next.down,
                    saved: next.saved,
                    link: next.link,
                    ..self
                });
            }
            Some(part)
        })
    }
}

/// One fragment of new code.
#[derive(Clone, Debug, Default)]
pub struct Fragment {
    /// Bytes and open fixups.
    pub code: Code<Target>,
    /// What they correspond to, ascending and without gaps.
    pub spans: Vec<Span>,
    /// What debug information has to know of that, if it is all that was kept ([`Emitted::keep_runs`]).
    pub(crate) runs: Vec<CodeRun>,
}

/// Old bytes and the bytes of a fragment that stand for them, copied, or one instruction that was re-encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRun {
    /// Input address of the first.
    pub old: u64,
    /// Number of old bytes.
    pub old_len: u32,
    /// Offset in the fragment.
    pub out: u32,
    /// Number of new bytes.
    pub len: u32,
    /// Number of new bytes after them that stand for nothing old.
    pub tail: u32,
}

impl Fragment {
    /// Its runs, ascending. Bytes that stand for nothing are the tail of the run in front of them. Where there is none
    /// they are not described at all: a fragment begins so if its first block has nothing but padding.
    pub fn runs(&self) -> Cow<'_, [CodeRun]> {
        if self.spans.is_empty() {
            return Cow::Borrowed(&self.runs);
        }
        let mut runs: Vec<CodeRun> = Vec::with_capacity(self.spans.len());
        for span in self.spans.iter().filter(|s| s.len > 0) {
            let of = if span.copied {
                Some((span.input, span.len))
            } else {
                span.of.map(|(at, len)| (at, u32::from(len)))
            };
            match (of, runs.last_mut()) {
                (Some((old, old_len)), _) => runs.push(CodeRun {
                    old,
                    old_len,
                    out: span.out,
                    len: span.len,
                    tail: 0,
                }),
                (None, Some(run)) => run.tail += span.len,
                (None, None) => {}
            }
        }
        Cow::Owned(runs)
    }

    /// At least as many as there are runs.
    pub fn most_runs(&self) -> usize {
        self.spans.len().max(self.runs.len())
    }
}

/// A function's new code.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    /// Hot and cold.
    pub fragments: [Fragment; 2],
    /// Place of each block: (fragment, offset); `u8::MAX` for blocks that were dropped.
    pub blocks: Vec<(u8, u32)>,
    /// Bytes before block 0 through which control from outside enters.
    pub entry_check: u32,
    /// Where control from outside enters [further blocks](Probes::secondary_checks): block, fragment, offset.
    pub external_entries: Vec<(BlockId, u8, u32)>,
    /// Fallbacks of tables of labels, and what restored entries lead to: the first table that has it, the entry,
    /// fragment, offset.
    pub fallbacks: Vec<(u32, u32, u8, u32)>,
}

impl Emitted {
    /// Gives up what the code corresponds to but for its [runs](Fragment::runs), which take a third of the memory; and
    /// where the stack pointer is. To be called once unwind tables are carried over.
    pub fn keep_runs(&mut self) {
        for fragment in &mut self.fragments {
            let mut runs = fragment.runs().into_owned();
            runs.shrink_to_fit();
            fragment.runs = runs;
        }
        self.forget_spans();
    }

    /// Gives up what the code corresponds to, which takes several times the memory of the code, and where the stack
    /// pointer is. To be called once unwind tables are carried over, where nothing else is made of it.
    pub fn forget_spans(&mut self) {
        for fragment in &mut self.fragments {
            fragment.code.stack = Vec::new();
            let mut spans = std::mem::take(&mut fragment.spans);
            spans.clear();
            // If they were lent, the next function has room for its own.
            BUFFERS.with_borrow_mut(|buffers| {
                if buffers.fragment.spans.capacity() < spans.capacity() {
                    buffers.fragment.spans = spans;
                }
            });
        }
    }
}

/// Where a branch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Dest {
    Unit(u32),
    Out(u64),
}

#[derive(Clone, Copy, Debug)]
enum CondKind {
    Cond(Cond),
    Short { from: u64, len: u8 },
}

/// A block being placed, or a stub for a counted edge.
#[derive(Clone, Debug)]
struct Unit {
    fragment: u8,
    body: (u32, u32),
    fixups: (u32, u32),
    spans: (u32, u32),
    cond: Option<(CondKind, Dest, Reach)>,
    /// A counter between the conditional branch and the fall-through path.
    mid: Option<(u32, u32, u32, u32)>,
    jump: Option<(Dest, Reach)>,
    offset: u32,
    /// Begins at a multiple of this.
    align: u32,
    /// Bytes in front of it that make it so.
    pad: u32,
    /// An entry check in front of it, whether it saves what it uses, and its length.
    check: Option<(bool, u32)>,
    /// Input address whose unwind state the added instructions share, and its piece.
    state: (u64, u16),
    /// The same for those after the conditional branch: rows may change where that falls through, by no instruction.
    on: (u64, u16),
    /// The input's instruction that branches at the end of the block, and its length.
    branch: Option<(u64, u8)>,
}

/// A branch that may be short, if it reaches its target so.
#[derive(Clone, Copy)]
struct ShortBranch {
    unit: u32,
    /// Another unit of the fragment, or the same.
    target: u32,
    /// Where a conditional branch ends in its unit; a jump ends with it.
    end: Option<u32>,
    /// Its condition, if it is not one of the kinds that are always short.
    cond: Option<Cond>,
}

/// What a function is put together in, used again for the next one: for lists that grew anew for every function it took
/// longer to find them memory than to fill them.
#[derive(Default)]
struct Buffers {
    temp: Code<Target>,
    spans: Vec<Span>,
    units: Vec<Unit>,
    fragment: Fragment,
    lists: Lists,
}

impl Buffers {
    fn clear(&mut self) {
        clear(&mut self.temp);
        self.spans.clear();
        self.units.clear();
    }
}

/// Lists of numbers that are made anew for every function, in the same memory.
#[derive(Default)]
struct Lists {
    /// By block: its unit.
    unit_of: Vec<u32>,
    /// By unit: its block.
    block_of: Vec<u32>,
    /// By fragment: its units.
    order: [Vec<u32>; 2],
    /// Branches that may still be short.
    short: Vec<ShortBranch>,
    /// By unit: its length.
    lens: Vec<u32>,
    /// By unit: its offset, and the bytes in front of it that align it.
    places: Vec<(u32, u32)>,
}

/// Makes a list one of so many equal numbers.
fn fill<T: Copy>(list: &mut Vec<T>, len: usize, value: T) {
    list.clear();
    list.resize(len, value);
}

fn clear(code: &mut Code<Target>) {
    code.bytes.clear();
    code.fixups.clear();
    code.stack.clear();
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Emits a function.
pub fn emit<I: Isa>(program: &Program<'_>, cfg: &Cfg, plan: &Plan) -> Result<Emitted, Pin> {
    let Buffers {
        temp,
        spans,
        units,
        mut fragment,
        mut lists,
    } = BUFFERS.take();
    let mut e = Emitter::<I> {
        program,
        cfg,
        plan,
        pieces: pieces(program, cfg),
        temp,
        spans,
        units,
        far: FxHashMap::default(),
        _isa: std::marker::PhantomData,
    };
    let emitted = emit_with(&mut e, &mut fragment, &mut lists);
    let mut buffers = Buffers {
        temp: e.temp,
        spans: e.spans,
        units: e.units,
        fragment,
        lists,
    };
    buffers.clear();
    BUFFERS.set(buffers);
    emitted
}

/// A function's code in the input, by piece: first address and bytes.
fn pieces<'d>(program: &Program<'d>, cfg: &Cfg) -> SmallVec<[(u64, &'d [u8]); 2]> {
    let first = cfg.blocks.first().and_then(|b| program.piece_at(b.start));
    let function = first.map(|piece| &program.functions[piece.function as usize]);
    let pieces = function.iter().flat_map(|f| &f.pieces);
    pieces
        .map(|p| {
            let piece = &program.pieces[*p as usize];
            let bytes = program.elf.bytes_at(piece.start, piece.end - piece.start);
            (piece.start, bytes.unwrap_or_default())
        })
        .collect()
}

/// The same; `buffer` is what a fragment is put together in.
fn emit_with<I: Isa>(
    e: &mut Emitter<'_, '_, I>,
    buffer: &mut Fragment,
    lists: &mut Lists,
) -> Result<Emitted, Pin> {
    let (cfg, plan) = (e.cfg, e.plan);
    let n = cfg.blocks.len();
    let mut aligned = Vec::new();
    if !plan.aligned.is_empty() {
        aligned.resize(n, false);
    }
    for b in &plan.aligned {
        aligned[*b as usize] = plan.block_alignment > 1;
    }
    let Lists {
        unit_of,
        block_of,
        order,
        short,
        lens,
        places,
    } = lists;
    fill(unit_of, n, u32::MAX);
    order.iter_mut().for_each(Vec::clear);
    for (fragment, blocks) in plan.fragments.iter().enumerate() {
        for b in blocks {
            unit_of[*b as usize] = e.units.len() as u32;
            order[fragment].push(e.units.len() as u32);
            let mut unit = e.body(*b, fragment as u8)?;
            if fragment == 0 && aligned.get(*b as usize) == Some(&true) {
                unit.align = plan.block_alignment;
            }
            if *b == 0
                && let Some(save) = plan.probes.entry_check
            {
                // Nothing may run into it but through the entry.
                if fragment != 0 || !e.units.is_empty() {
                    return Err(Pin::FallsOffItsEnd);
                }
                clear(&mut buffer.code);
                I::put_entry_check(&mut buffer.code, save, Target::Ready, Target::Enter);
                unit.check = Some((save, buffer.code.bytes.len() as u32));
            }
            e.units.push(unit);
        }
    }
    for (fragment, blocks) in plan.fragments.iter().enumerate() {
        for (i, b) in blocks.iter().enumerate() {
            let next = blocks.get(i + 1).copied();
            e.ways_out(*b, next, fragment as u8, unit_of, order)?;
        }
    }
    let mut external_entries = Vec::new();
    for b in &plan.probes.secondary_checks {
        let to = unit_of[*b as usize];
        if to != u32::MAX {
            let fragment = usize::from(e.units[to as usize].fragment);
            external_entries.push((*b, e.external_entry(to)));
            order[fragment].push(e.units.len() as u32 - 1);
        }
    }
    let mut fallbacks = e.fallbacks(unit_of, order)?;
    e.restored_entries(unit_of, order, &mut fallbacks)?;
    e.relax(order, (short, lens, places));
    let mut out = Emitted {
        blocks: vec![(u8::MAX, 0); n],
        ..Emitted::default()
    };
    for (fragment, units) in order.iter().enumerate() {
        out.fragments[fragment] = e.assemble(fragment as u8, units, buffer)?;
    }
    for (b, u) in unit_of.iter().enumerate() {
        if *u != u32::MAX {
            let unit = &e.units[*u as usize];
            out.blocks[b] = (unit.fragment, unit.offset);
            if let (0, Some((_, len))) = (b, unit.check) {
                out.entry_check = len;
            }
        }
    }
    out.external_entries = external_entries
        .into_iter()
        .map(|(block, unit)| {
            let unit = &e.units[unit as usize];
            let check = unit.check.map_or(0, |c| c.1);
            (block, unit.fragment, unit.offset - check)
        })
        .collect();
    out.fallbacks = fallbacks
        .into_iter()
        .map(|(table, entry, unit)| {
            let unit = &e.units[unit as usize];
            (table, entry, unit.fragment, unit.offset)
        })
        .collect();
    // Units that correspond to blocks are numbered by plan order; their open fixups speak of blocks. There are none
    // where all code is in one fragment.
    if order.iter().any(Vec::is_empty) {
        return Ok(out);
    }
    fill(block_of, e.units.len(), u32::MAX);
    for (b, u) in unit_of.iter().enumerate() {
        if *u != u32::MAX {
            block_of[*u as usize] = b as u32;
        }
    }
    for f in &mut out.fragments {
        for x in &mut f.code.fixups {
            if let Target::Unit(u) = x.target {
                x.target = Target::Block(block_of[u as usize]);
            }
        }
    }
    Ok(out)
}

struct Emitter<'a, 'd, I> {
    program: &'a Program<'d>,
    cfg: &'a Cfg,
    plan: &'a Plan,
    /// By piece: its first address and its code.
    pieces: SmallVec<[(u64, &'d [u8]); 2]>,
    /// Bodies and counters, one after the other.
    temp: Code<Target>,
    spans: Vec<Span>,
    units: Vec<Unit>,
    /// Jumps of far conditional branches, by fragment and destination.
    far: FxHashMap<(u8, Dest), u32>,
    _isa: std::marker::PhantomData<I>,
}

impl<'d, I: Isa> Emitter<'_, 'd, I> {
    /// The input's bytes between two addresses of a piece.
    fn input(&self, piece: u16, from: u64, to: u64) -> Option<&'d [u8]> {
        let (start, code) = *self.pieces.get(usize::from(piece))?;
        code.get(from.checked_sub(start)? as usize..to.checked_sub(start)? as usize)
    }

    /// Copies a block without its terminator, with its counter and recorders.
    fn body(&mut self, b: BlockId, fragment: u8) -> Result<Unit, Pin> {
        let block = self.cfg.blocks[b as usize];
        let begin = self.begin();
        let body = begin.0;
        let node = self.plan.probes.nodes.get(b);
        let mut from = block.start;
        let end = if self.plan.drop_padding {
            self.without_padding(&block)
        } else {
            block.term_at
        };
        // Both lists ascend by block.
        let sites = &self.cfg.sites[self.cfg.sites.partition_point(|s| s.block < b)..];
        let forks = &self.plan.probes.fork_checks;
        let forks = &forks[forks.partition_point(|c| c.0 < b)..];
        let mut stops: SmallVec<[(u64, Stop); 4]> = sites
            .iter()
            .take_while(|s| s.block == b)
            .filter_map(|s| {
                self.plan.probes.sites.get(&s.at).map(|n| {
                    (
                        s.at,
                        Stop::Site {
                            number: *n,
                            len: s.len,
                            tail: s.tail,
                        },
                    )
                })
            })
            .collect();
        if let Some(n) = node {
            stops.push((n.at, Stop::Counter(n)));
        }
        let forks = forks.iter().take_while(|c| c.0 == b);
        stops.extend(forks.map(|c| (c.1, Stop::Fork)));
        let changes = self.plan.changes.of(b);
        stops.extend(changes.iter().map(|c| (c.at, Stop::Change(c))));
        let own = self.cfg.own_tables.iter().zip(0u32..);
        let own = own.filter(|(t, _)| t.load >= block.start && t.load < block.end);
        stops.extend(own.map(|(t, n)| (t.load, Stop::Table(n, t))));
        let bases = self.cfg.own_bases.iter().zip(0u32..);
        let bases = bases.filter(|(b, _)| b.at >= block.start && b.at < block.end);
        stops.extend(bases.map(|(b, n)| (b.at, Stop::Base(n))));
        // A check for a new process goes first, a counter before a recorder at the same place.
        stops.sort_by_key(|s| match s.1 {
            Stop::Fork => (s.0, 0),
            Stop::Counter(_) => (s.0, 1),
            Stop::Site { .. } | Stop::Change(_) | Stop::Table(..) | Stop::Base(_) => (s.0, 2),
        });
        let mode = self.mode();
        for (at, stop) in stops {
            // Nothing is put between instructions that are encoded again as a whole.
            if at < from {
                return Err(Pin::Uncountable);
            }
            self.copy(b, from, at, body)?;
            from = at;
            let out = self.temp.bytes.len() as u32 - body;
            match stop {
                Stop::Counter(n) => match self.plan.probes.put {
                    Some(put) => {
                        self.temp.bytes.extend_from_slice(self.plan.probes.before);
                        put(&mut self.temp, n.live, n.counter);
                    }
                    None => I::put_counter(&mut self.temp, mode, n.live, counter_place(n.counter)),
                },
                Stop::Site { number, len, tail } => {
                    if tail {
                        I::put_jump(&mut self.temp, Reach::Long, Target::Recorder(number));
                    } else {
                        I::put_call(&mut self.temp, Target::Recorder(number));
                    }
                    from = at + u64::from(len);
                }
                Stop::Fork => I::put_fork_check(&mut self.temp, Target::Ready, Target::Enter),
                Stop::Change(change) => {
                    self.put(&change.code);
                    from = at + u64::from(change.len);
                }
                Stop::Table(number, table) => {
                    self.table_load(number, table)?;
                    from = at + u64::from(table.len);
                }
                Stop::Base(number) => {
                    let bytes = self.program.elf.bytes_at(at, LABEL_BASE);
                    let bytes = bytes.ok_or(Pin::NotInstructions)?;
                    if !I::put_table_base(&mut self.temp, bytes, Target::OwnBase(number)) {
                        return Err(Pin::OutOfReach);
                    }
                    from = at + LABEL_BASE;
                }
            }
            // After the last call of a piece no state is described.
            let at = if at < block.end {
                at
            } else {
                self.state_behind(&block)
            };
            let len = self.temp.bytes.len() as u32 - body - out;
            let span = Span {
                instead: matches!(
                    stop,
                    Stop::Site { .. } | Stop::Change(_) | Stop::Table(..) | Stop::Base(_)
                ),
                of: match stop {
                    Stop::Site { len, .. } => Some((at, len)),
                    Stop::Change(change) => Some((at, change.len)),
                    Stop::Table(_, table) => Some((at, table.len)),
                    Stop::Base(_) => Some((at, LABEL_BASE as u8)),
                    Stop::Counter(_) | Stop::Fork => None,
                },
                ..Span::added(out, len, (at, block.piece))
            };
            let moves = moves_in(&self.temp, body + out, body + out + len);
            push_parts(&mut self.spans, span, moves);
        }
        self.copy(b, from, end.max(from), body)?;
        let state = if block.term_at < block.end {
            block.term_at
        } else {
            self.state_behind(&block)
        };
        let mut unit = self.unit(fragment, begin, (state, block.piece));
        unit.branch =
            (block.term_at < block.end).then(|| (block.term_at, (block.end - block.term_at) as u8));
        Ok(unit)
    }

    /// Appends code that replaces an instruction.
    fn put(&mut self, code: &Code<Target>) {
        let base = self.temp.bytes.len() as u32;
        self.temp.bytes.extend_from_slice(&code.bytes);
        let moved = |f: &Fixup<Target>| Fixup {
            at: f.at + base,
            ..*f
        };
        self.temp.fixups.extend(code.fixups.iter().map(moved));
    }

    /// Appends the load of an entry of a table of its own, and what is in front of it if nothing bounds the index; or
    /// all up to the jump, where that is encoded again.
    fn table_load(&mut self, number: u32, table: &OwnTable) -> Result<(), Pin> {
        let bytes = self.program.elf.bytes_at(table.load, table.len.into());
        let bytes = bytes.ok_or(Pin::NotInstructions)?;
        if table.relative {
            let fits = I::put_table_jump(&mut self.temp, bytes, Target::OwnTable(number));
            return fits.then_some(()).ok_or(Pin::OutOfReach);
        }
        if let Some(how) = table.labels {
            let (wide, own) = (table.width == 8, Target::OwnTable(number));
            if let (Some(base), Some(scratch)) = (table.base_guard, table.scratch) {
                let (old, load) = (Target::Same(table.table), Target::Same(table.load));
                if !I::put_base_guard(&mut self.temp, base, scratch, old, load) {
                    return Err(Pin::OutOfReach);
                }
            }
            let fits = I::put_label_load(&mut self.temp, bytes, how, wide, own);
            return fits.then_some(()).ok_or(Pin::OutOfReach);
        }
        let last = (table.entries.len() as u32).saturating_sub(1);
        let old = Target::Same(table.load);
        if table.guarded && !I::put_index_guard(&mut self.temp, table.index, last, old) {
            return Err(Pin::OutOfReach);
        }
        let fits = I::put_table_load(&mut self.temp, bytes, Target::OwnTable(number));
        fits.then_some(()).ok_or(Pin::OutOfReach)
    }

    /// The address whose unwind state holds after a block: that of the next instruction, if it is in the same piece.
    fn state_behind(&self, block: &Block) -> u64 {
        let (start, code) = self.pieces[usize::from(block.piece)];
        if block.end < start + code.len() as u64 {
            block.end
        } else {
            block.start
        }
    }

    /// End of a block without the padding that it ends with.
    fn without_padding(&self, block: &Block) -> u64 {
        let first = self.cfg.blocks.first().map(|b| b.start);
        // Landing pads may be counted from the start, and a distance of 0 says that there is none.
        let starts = first == Some(block.start);
        if block.term != Term::Fall || starts || block.term_at - block.start > 256 {
            return block.term_at;
        }
        let Some(bytes) = self
            .program
            .elf
            .bytes_at(block.start, block.term_at - block.start)
        else {
            return block.term_at;
        };
        let (mut end, mut before) = (block.start, Flow::Next);
        I::sweep(bytes, block.start, |i| {
            // Who handles a trap may look at what is behind it.
            if !i.traits.nop || before == Flow::Trap {
                end = i.end();
            }
            before = i.flow;
            true
        });
        end
    }

    fn mode(&self) -> CounterMode {
        self.plan.probes.mode.unwrap_or(CounterMode::Plain)
    }

    /// Appends a part of a block as it is; `body`: where the unit begins that it is for.
    fn copy(&mut self, block: BlockId, from: u64, to: u64, body: u32) -> Result<(), Pin> {
        if from >= to {
            return Ok(());
        }
        let piece = self.cfg.blocks[block as usize].piece;
        let bytes = self.input(piece, from, to).ok_or(Pin::NotInstructions)?;
        // Where the stretch begins that is copied as it is.
        let mut stretch = from;
        let (temp, spans) = (&mut self.temp, &mut self.spans);
        let mut at = temp.bytes.len() as u32;
        let copy_to = |temp: &mut Code<Target>, spans: &mut Vec<Span>, stretch: u64, to: u64| {
            let part = &bytes[(stretch - from) as usize..(to - from) as usize];
            let out = temp.bytes.len() as u32 - body;
            temp.bytes.extend_from_slice(part);
            if !part.is_empty() {
                let len = part.len() as u32;
                spans.push(Span {
                    copied: true,
                    ..Span::added(out, len, (stretch, piece))
                });
            }
        };
        let fields = self.cfg.fields(block).iter();
        for f in fields.filter(|f| f.at >= from && f.at < to) {
            let target = match f.role {
                Use::Call => Target::Code(f.target),
                Use::Address
                    if self.plan.move_addresses && self.program.may_follow(f.target)
                        || self.program.refs.is_registered_frame(f.target) =>
                {
                    Target::Code(f.target)
                }
                Use::Address | Use::Memory => Target::Same(f.target),
            };
            // A label of the function's own tables.
            let may_be_label = f.role == Use::Address && self.program.refs.kept;
            let label = may_be_label.then(|| self.cfg.label_at(f.target)).flatten();
            let target = label.map_or(target, Target::Block);
            // What reaches only nearby is encoded so that it reaches everything.
            let rest = &bytes[(f.at - from) as usize..];
            if matches!(f.kind, FixupKind::Adr | FixupKind::Imm19)
                && let Some(insn) = I::decode(rest, f.at).filter(I::is_near)
            {
                copy_to(temp, spans, stretch, f.at);
                let out = temp.bytes.len() as u32;
                if !I::put_far(temp, &rest[..usize::from(insn.len)], target) {
                    return Err(Pin::OutOfReach);
                }
                let len = temp.bytes.len() as u32 - out;
                spans.push(Span {
                    instead: true,
                    of: Some((f.at, insn.len)),
                    ..Span::added(out - body, len, (f.at, piece))
                });
                stretch = insn.end();
                at = temp.bytes.len() as u32;
                continue;
            }
            temp.fixups.push(Fixup {
                at: at + (f.at - stretch) as u32,
                kind: f.kind,
                target,
            });
        }
        copy_to(temp, spans, stretch, to);
        Ok(())
    }

    /// Decides the branches at the end of a block.
    fn ways_out(
        &mut self,
        b: BlockId,
        next: Option<BlockId>,
        fragment: u8,
        unit_of: &[u32],
        order: &mut [Vec<u32>; 2],
    ) -> Result<(), Pin> {
        let block = self.cfg.blocks[b as usize];
        let cfg = self.cfg;
        let succs = cfg.succs(b);
        let u = unit_of[b as usize] as usize;
        let unit_dest = |s: BlockId| -> Result<Dest, Pin> {
            match unit_of[s as usize] {
                u32::MAX => Err(Pin::BranchIntoInstruction),
                u => Ok(Dest::Unit(u)),
            }
        };
        let next_dest = match next {
            Some(n) => Some(unit_dest(n)?),
            None => None,
        };
        if self.plan.changes.ends(b, block.term_at) {
            return Ok(());
        }
        /// A destination, and the number of the way that leads there.
        type Way = (Dest, u32);
        // The branch taken, then the fall-through path.
        let (cond, on): (Option<(CondKind, Dest, u32)>, Option<Way>) = match block.term {
            Term::Fall | Term::Jump => match succs.first() {
                Some(s) => (None, Some((unit_dest(*s)?, 0))),
                None => (None, None),
            },
            Term::Cond { cond } => (
                Some((CondKind::Cond(cond), unit_dest(succs[0])?, 0)),
                Some((unit_dest(succs[1])?, 1)),
            ),
            Term::ShortCond => (
                Some((self.short(&block), unit_dest(succs[0])?, 0)),
                Some((unit_dest(succs[1])?, 1)),
            ),
            Term::JumpOut { target } => (None, Some((Dest::Out(target), 0))),
            Term::CondOut { cond, target } => (
                Some((CondKind::Cond(cond), Dest::Out(target), 1)),
                Some((unit_dest(succs[0])?, 0)),
            ),
            Term::ShortCondOut { target } => (
                Some((self.short(&block), Dest::Out(target), 1)),
                Some((unit_dest(succs[0])?, 0)),
            ),
            Term::Dispatch { .. }
            | Term::IndirectOut
            | Term::FallBack
            | Term::Return
            | Term::Stop => (None, None),
        };
        let edges = &self.plan.probes.edges;
        let on_counter = on.and_then(|(_, way)| edges.get(&(b, way)).copied());
        let cond_counter = cond.and_then(|(_, _, way)| edges.get(&(b, way)).copied());
        let mut cond = cond;
        let mut on = on;
        // The likelier neighbour is next: turn the condition round if its taken way is the one that follows.
        if let (Some((CondKind::Cond(c), taken, tw)), Some((fall, fw))) = (cond, on)
            && Some(taken) == next_dest
            && Some(fall) != next_dest
            && cond_counter.is_none()
            && on_counter.is_none()
        {
            cond = Some((CondKind::Cond(I::invert(c)), fall, fw));
            on = Some((taken, tw));
        }
        if let (Some(c), Some((_, dest, _))) = (cond_counter, &mut cond) {
            let stub = self.stub(Some(c), *dest, fragment, &block);
            order[fragment as usize].push(stub);
            *dest = Dest::Unit(stub);
        }
        if I::FAR_CONDITIONS_BY_STUB
            && let Some((CondKind::Cond(_), dest, _)) = &mut cond
        {
            let far = match *dest {
                Dest::Unit(t) => self.units[t as usize].fragment != fragment,
                Dest::Out(_) => true,
            };
            if far {
                let stub = match self.far.get(&(fragment, *dest)) {
                    Some(stub) => *stub,
                    None => {
                        let stub = self.stub(None, *dest, fragment, &block);
                        order[fragment as usize].push(stub);
                        self.far.insert((fragment, *dest), stub);
                        stub
                    }
                };
                *dest = Dest::Unit(stub);
            }
        }
        let mid = on_counter.map(|c| {
            let (b0, f0) = (self.temp.bytes.len() as u32, self.temp.fixups.len() as u32);
            let mode = self.mode();
            I::put_counter(&mut self.temp, mode, c.live, counter_place(c.counter));
            (
                b0,
                self.temp.bytes.len() as u32,
                f0,
                self.temp.fixups.len() as u32,
            )
        });
        let behind = on.and_then(|(dest, _)| self.state_of(dest));
        let unit = &mut self.units[u];
        if let (Some(_), Some(behind)) = (cond, behind) {
            unit.on = behind;
        }
        unit.mid = mid;
        unit.cond = cond.map(|(k, d, _)| (k, d, Reach::Short));
        unit.jump = match on {
            Some((d, _)) if Some(d) != next_dest => Some((d, Reach::Short)),
            _ => None,
        };
        Ok(())
    }

    fn short(&self, block: &Block) -> CondKind {
        CondKind::Short {
            from: block.term_at,
            len: (block.end - block.term_at) as u8,
        }
    }

    /// A counter on a taken edge, or the jump of a far one: a unit of its own at the end of the fragment.
    fn stub(&mut self, c: Option<EdgeCounter>, dest: Dest, fragment: u8, block: &Block) -> u32 {
        let begin = self.begin();
        let body = begin.0;
        let mode = self.mode();
        if let Some(c) = c {
            I::put_counter(&mut self.temp, mode, c.live, counter_place(c.counter));
        }
        let len = self.temp.bytes.len() as u32 - body;
        // Being there is as good as being where it leads: rows may change on the way by no instruction, and
        // branches that were at places with other rows may share it.
        let state = self.state_of(dest);
        let state = state.unwrap_or((block.term_at, block.piece));
        if len > 0 {
            let moves = moves_in(&self.temp, body, body + len);
            push_parts(&mut self.spans, Span::added(0, len, state), moves);
        }
        let mut unit = self.unit(fragment, begin, state);
        unit.jump = Some((dest, Reach::Short));
        self.units.push(unit);
        self.units.len() as u32 - 1
    }

    /// An entry check that continues at a block's unit.
    fn external_entry(&mut self, to: u32) -> u32 {
        let target = &self.units[to as usize];
        let (state, fragment) = (self.first_state(target), target.fragment);
        let mut check: Code<Target> = Code::default();
        I::put_entry_check(&mut check, true, Target::Ready, Target::Enter);
        let mut unit = self.unit(fragment, self.begin(), state);
        unit.jump = Some((Dest::Unit(to), Reach::Short));
        unit.check = Some((true, check.bytes.len() as u32));
        self.units.push(unit);
        self.units.len() as u32 - 1
    }

    /// Code that goes on in old code where an index is of no label, of all tables: the first table that has it, the
    /// entry, and the unit.
    fn fallbacks(
        &mut self,
        unit_of: &[u32],
        order: &mut [Vec<u32>; 2],
    ) -> Result<Vec<(u32, u32, u32)>, Pin> {
        let tables = &self.cfg.own_tables;
        let mut all = Vec::new();
        for (n, table) in tables.iter().enumerate() {
            let shares = |other: &OwnTable| other.is_same(table);
            let Some(fallback) = table.fallback else {
                continue;
            };
            if tables[..n].iter().any(shares) {
                continue;
            }
            let without = table.entries.iter().zip(0u32..);
            for (_, entry) in without.filter(|e| e.0.block.is_none()) {
                let unit = self.fallback(table, fallback, entry, unit_of)?;
                order[usize::from(self.units[unit as usize].fragment)].push(unit);
                all.push((n as u32, entry, unit));
            }
        }
        Ok(all)
    }

    /// Code that loads an entry of the old table, and jumps to it.
    fn fallback(
        &mut self,
        table: &OwnTable,
        fallback: Fallback,
        entry: u32,
        unit_of: &[u32],
    ) -> Result<u32, Pin> {
        let holds = |b: &Block| b.start <= table.jump && table.jump < b.end;
        let block = self.cfg.blocks.iter().position(holds);
        let unit = block.and_then(|b| self.units.get(*unit_of.get(b)? as usize));
        let fragment = unit.ok_or(Pin::NotInstructions)?.fragment;
        let piece = block.map_or(0, |b| self.cfg.blocks[b].piece);
        let begin = self.begin();
        let base = fallback.base.map(|base| (base, Target::Same(table.table)));
        let entry = Target::Same(table.table.wrapping_add(8 * u64::from(entry)));
        if !I::put_label_fallback(&mut self.temp, fallback.to, entry, base) {
            return Err(Pin::OutOfReach);
        }
        let len = self.temp.bytes.len() as u32 - begin.0;
        self.spans.push(Span::added(0, len, (table.jump, piece)));
        let unit = self.unit(fragment, begin, (table.jump, piece));
        self.units.push(unit);
        Ok(self.units.len() as u32 - 1)
    }

    /// Code that gives registers what they held, of all entries of tables that need it.
    fn restored_entries(
        &mut self,
        unit_of: &[u32],
        order: &mut [Vec<u32>; 2],
        all: &mut Vec<(u32, u32, u32)>,
    ) -> Result<(), Pin> {
        let mut done: FxHashMap<(BlockId, u8, Option<(u8, i32)>), u32> = FxHashMap::default();
        for (table, n) in self.cfg.own_tables.iter().zip(0u32..) {
            let Some(restored) = table.restored else {
                continue;
            };
            let entries = table.entries.iter().zip(0u32..);
            for (entry, k) in entries.filter(|e| e.0.restores) {
                let block = entry.block.ok_or(Pin::NotInstructions)?;
                // Where it is the same code, it is once there.
                let distance = restored.distance.map(|to| (to, entry.stored as i32));
                let key = (block, restored.target, distance);
                let unit = match done.get(&key) {
                    Some(unit) => *unit,
                    None => {
                        let unit = self.restored_entry((block, entry), restored, unit_of)?;
                        order[usize::from(self.units[unit as usize].fragment)].push(unit);
                        done.insert(key, unit);
                        unit
                    }
                };
                all.push((n, k, unit));
            }
        }
        Ok(())
    }

    /// Such code for one entry, which leads to a block.
    fn restored_entry(
        &mut self,
        (block, entry): (BlockId, &OwnEntry),
        restored: Restored,
        unit_of: &[u32],
    ) -> Result<u32, Pin> {
        let to = unit_of.get(block as usize).copied();
        let to = to
            .filter(|to| *to != u32::MAX)
            .ok_or(Pin::NotInstructions)?;
        let unit = &self.units[to as usize];
        let (fragment, state) = (unit.fragment, self.first_state(unit));
        let begin = self.begin();
        let target = (restored.target, Target::Same(entry.target));
        let distance = restored.distance.map(|to| (to, entry.stored as i32));
        if !I::put_restored(&mut self.temp, target, distance) {
            return Err(Pin::OutOfReach);
        }
        let len = self.temp.bytes.len() as u32 - begin.0;
        self.spans.push(Span::added(0, len, state));
        let mut unit = self.unit(fragment, begin, state);
        unit.jump = Some((Dest::Unit(to), Reach::Short));
        self.units.push(unit);
        Ok(self.units.len() as u32 - 1)
    }

    /// Where what is appended next begins: among the bytes, the fixups and the spans.
    fn begin(&self) -> (u32, u32, u32) {
        (
            self.temp.bytes.len() as u32,
            self.temp.fixups.len() as u32,
            self.spans.len() as u32,
        )
    }

    /// A unit of what was appended since [`Self::begin`]. `state`: the input address whose unwind state added
    /// instructions have, and its piece.
    fn unit(&self, fragment: u8, begin: (u32, u32, u32), state: (u64, u16)) -> Unit {
        let end = self.begin();
        Unit {
            fragment,
            body: (begin.0, end.0),
            fixups: (begin.1, end.1),
            spans: (begin.2, end.2),
            cond: None,
            mid: None,
            jump: None,
            offset: 0,
            align: 1,
            pad: 0,
            check: None,
            state,
            on: state,
            branch: None,
        }
    }

    /// The input address whose unwind state holds where a unit begins, and its piece.
    fn state_of(&self, dest: Dest) -> Option<(u64, u16)> {
        let Dest::Unit(unit) = dest else {
            return None;
        };
        Some(self.first_state(&self.units[unit as usize]))
    }

    fn first_state(&self, unit: &Unit) -> (u64, u16) {
        let first = self.spans[unit.spans.0 as usize..unit.spans.1 as usize].first();
        first.map_or(unit.state, |s| (s.input, s.piece))
    }

    fn cond_len(&self, kind: CondKind, reach: Reach) -> u32 {
        match kind {
            CondKind::Cond(_) => I::cond_jump_len(reach) as u32,
            CondKind::Short { from, len } => I::short_cond_len(
                self.program
                    .elf
                    .bytes_at(from, u64::from(len))
                    .unwrap_or(&[]),
            ) as u32,
        }
    }

    fn unit_len(&self, u: &Unit) -> u32 {
        u.body.1 - u.body.0
            + u.cond.map_or(0, |(k, _, r)| self.cond_len(k, r))
            + u.mid.map_or(0, |m| m.1 - m.0)
            + u.jump.map_or(0, |(_, r)| I::jump_len(r) as u32)
    }

    /// Places units, lengthening branches until all reach.
    fn relax(
        &mut self,
        order: &[Vec<u32>; 2],
        (short, lens, places): (&mut Vec<ShortBranch>, &mut Vec<u32>, &mut Vec<(u32, u32)>),
    ) {
        self.short_branches(short);
        let mut grown: Vec<ShortBranch> = Vec::new();
        // Units are large, and gone through several times: what changes is beside them.
        lens.clear();
        lens.extend(self.units.iter().map(|u| self.unit_len(u)));
        fill(places, self.units.len(), (0, 0));
        loop {
            for units in order {
                let mut at = 0u32;
                for u in units {
                    let unit = &self.units[*u as usize];
                    at += unit.check.map_or(0, |c| c.1);
                    let pad = at.next_multiple_of(unit.align) - at;
                    at += pad;
                    places[*u as usize] = (at, pad);
                    at += lens[*u as usize];
                }
            }
            short.retain(|branch| {
                let (start, _) = places[branch.unit as usize];
                let end = start + branch.end.unwrap_or(lens[branch.unit as usize]);
                let (target, _) = places[branch.target as usize];
                let reaches = I::reaches_short(branch.cond, i64::from(target) - i64::from(end));
                if !reaches {
                    grown.push(*branch);
                }
                reaches
            });
            if grown.is_empty() {
                break;
            }
            for branch in grown.drain(..) {
                let unit = &mut self.units[branch.unit as usize];
                match (branch.end, &mut unit.cond, &mut unit.jump) {
                    (Some(_), Some(cond), _) => cond.2 = Reach::Long,
                    (None, _, Some(jump)) => jump.1 = Reach::Long,
                    _ => {}
                }
                lens[branch.unit as usize] = self.unit_len(&self.units[branch.unit as usize]);
            }
        }
        for (unit, place) in self.units.iter_mut().zip(places) {
            (unit.offset, unit.pad) = *place;
        }
    }

    /// Branches that may be short, as they stay in their fragment. Those that leave it are long from the start.
    fn short_branches(&mut self, short: &mut Vec<ShortBranch>) {
        short.clear();
        for i in 0..self.units.len() {
            let unit = &self.units[i];
            let near = |d: Dest| match d {
                Dest::Unit(t) if self.units[t as usize].fragment == unit.fragment => Some(t),
                Dest::Unit(_) | Dest::Out(_) => None,
            };
            let cond = unit.cond.map(|(kind, d, _)| (kind, near(d)));
            let jump = unit.jump.map(|(d, _)| near(d));
            if let Some((kind, Some(target))) = cond {
                let end = unit.body.1 - unit.body.0 + self.cond_len(kind, Reach::Short);
                let cond = match kind {
                    CondKind::Cond(cond) => Some(cond),
                    CondKind::Short { .. } => None,
                };
                short.push(ShortBranch {
                    unit: i as u32,
                    target,
                    end: Some(end),
                    cond,
                });
            }
            if let Some(Some(target)) = jump {
                short.push(ShortBranch {
                    unit: i as u32,
                    target,
                    end: None,
                    cond: None,
                });
            }
            let unit = &mut self.units[i];
            if let (Some((_, None)), Some(cond)) = (cond, &mut unit.cond) {
                cond.2 = Reach::Long;
            }
            if let (Some(None), Some(jump)) = (jump, &mut unit.jump) {
                jump.1 = Reach::Long;
            }
        }
    }

    /// Puts a fragment together, in a buffer.
    fn assemble(&self, fragment: u8, units: &[u32], out: &mut Fragment) -> Result<Fragment, Pin> {
        clear(&mut out.code);
        out.spans.clear();
        for id in units {
            let u = &self.units[*id as usize];
            if u.pad > 0 {
                // What runs into it runs on into the unit.
                let out_at = out.code.bytes.len() as u32;
                I::put_nops(&mut out.code.bytes, u.pad as usize);
                out.spans
                    .push(Span::added(out_at, u.pad, self.first_state(u)));
            }
            if let Some((save, len)) = u.check {
                let out_at = out.code.bytes.len() as u32;
                I::put_entry_check(&mut out.code, save, Target::Ready, Target::Enter);
                let moves: Vec<_> = moves_in(&out.code, out_at, out_at + len).collect();
                let span = Span::added(out_at, len, self.first_state(u));
                push_parts(&mut out.spans, span, moves.into_iter());
            }
            assert_eq!(u.offset as usize, out.code.bytes.len());
            let base = out.code.bytes.len() as u32;
            self.append(&mut out.code, u.body, u.fixups);
            for s in &self.spans[u.spans.0 as usize..u.spans.1 as usize] {
                out.spans.push(Span {
                    out: s.out + base,
                    ..*s
                });
            }
            let added = out.code.bytes.len() as u32;
            let target = |d: Dest| match d {
                Dest::Unit(t) => Target::Unit(t),
                Dest::Out(a) => Target::Code(a),
            };
            if let Some((kind, d, reach)) = u.cond {
                match kind {
                    CondKind::Cond(c) => I::put_cond_jump(&mut out.code, c, reach, target(d)),
                    CondKind::Short { from, len } => {
                        let original = self
                            .program
                            .elf
                            .bytes_at(from, u64::from(len))
                            .ok_or(Pin::NotInstructions)?;
                        I::put_short_cond(&mut out.code, original, target(d));
                    }
                }
            }
            let behind = out.code.bytes.len() as u32;
            if let Some((b0, b1, f0, f1)) = u.mid {
                self.append(&mut out.code, (b0, b1), (f0, f1));
            }
            if let Some((d, reach)) = u.jump {
                I::put_jump(&mut out.code, reach, target(d));
            }
            // The jump after a counter corresponds to nothing by itself.
            let end = out.code.bytes.len() as u32;
            let [cond, jump] = match u.cond {
                Some(_) => [u.branch, None],
                None => [None, u.branch.filter(|_| u.mid.is_none())],
            };
            let parts = [(added, behind, u.state, cond), (behind, end, u.on, jump)];
            for (from, to, state, of) in parts {
                if from < to {
                    let added = Span::added(from, to - from, state);
                    let moves = u.mid.filter(|_| from == behind);
                    // A jump may follow.
                    let moves = moves.map(|mid| moves_in(&self.temp, mid.0, mid.1 + 1));
                    let added = Span { of, ..added };
                    push_parts(&mut out.spans, added, moves.into_iter().flatten());
                }
            }
        }
        // Branches within the fragment are final.
        let Code { bytes, fixups, .. } = &mut out.code;
        let mut failed = false;
        fixups.retain(|f| match f.target {
            Target::Unit(t) if self.units[t as usize].fragment == fragment => {
                let unit = &self.units[t as usize];
                failed |= I::write_field(
                    f.kind,
                    &mut bytes[f.at as usize..],
                    u64::from(f.at),
                    u64::from(unit.offset),
                )
                .is_err();
                false
            }
            _ => true,
        });
        if failed {
            return Err(Pin::OutOfReach);
        }
        // All functions' code is in memory at once: it has no room to grow.
        let spans = if self.plan.lends_spans {
            std::mem::take(&mut out.spans)
        } else {
            out.spans.clone()
        };
        Ok(Fragment {
            code: out.code.clone(),
            spans,
            runs: Vec::new(),
        })
    }

    fn append(&self, out: &mut Code<Target>, bytes: (u32, u32), fixups: (u32, u32)) {
        let base = out.bytes.len() as u32;
        out.bytes
            .extend_from_slice(&self.temp.bytes[bytes.0 as usize..bytes.1 as usize]);
        for f in &self.temp.fixups[fixups.0 as usize..fixups.1 as usize] {
            out.fixups.push(Fixup {
                at: f.at - bytes.0 + base,
                ..*f
            });
        }
    }
}

/// Appends the parts of a stretch ([`Span::parts`]). Most have one.
fn push_parts(spans: &mut Vec<Span>, span: Span, moves: impl Iterator<Item = StackMove>) {
    let mut moves = moves.peekable();
    if moves.peek().is_none() {
        spans.push(span);
    } else {
        spans.extend(span.parts(moves));
    }
}

/// Where the stack pointer is in a stretch of added code, by offset in the stretch.
fn moves_in(code: &Code<Target>, from: u32, to: u32) -> impl Iterator<Item = StackMove> {
    let first = code.stack.partition_point(|m| m.at <= from);
    let moves = code.stack[first..].iter().copied();
    let moves = moves.take_while(move |m| m.at < to);
    moves.map(move |m| StackMove {
        at: m.at - from,
        ..m
    })
}

#[derive(Clone, Copy)]
enum Stop<'a> {
    Counter(NodeCounter),
    Site {
        number: u32,
        len: u8,
        tail: bool,
    },
    /// A check for a new process.
    Fork,
    /// Other code in place of an instruction.
    Change(&'a Change),
    /// The load of an entry of the function's n-th table of its own.
    Table(u32, &'a OwnTable),
    /// The n-th addition that forms the address of such a table.
    Base(u32),
}

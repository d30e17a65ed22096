//! Control flow of one function, built from one sweep over its bytes.
//!
//! The steps of [`build`], each of which reads what those before it made:
//!
//! | step | gives |
//! |---|---|
//! | [`FunctionCode::read`] | instructions and landing pads |
//! | [`relative_tables`] | tables of self-relative entries whose address the function forms |
//! | [`collect_leaders`] | where blocks begin, as far as direct jumps and tables say |
//! | [`own_tables::find`] | tables of their own for indirect jumps, where the linker kept no relocations |
//! | [`indirect::resolve`] | the targets of each indirect jump, and the leaders that follow from them |
//! | [`blocks::cut`] | blocks, fields, call sites |
//! | [`connect`] | edges |
//! | [`mark`] | entries, labels, landing pads, tables' entries by block |

use postlink_isa::{FixupKind, Flow, Insn, Isa};
use smallvec::SmallVec;

use super::blocks::{self, BlockIndex, Targets};
use super::exclusive;
use super::explained::JumpReason;
use super::graph::{BlockId, Cfg, TableEntry, Term};
use super::indirect::{self, IndirectJumps};
use super::own_tables::{self, OwnTable};
use crate::discover::{
    Function, NonlocalExits, NumberInside, Program, lsda_of, personality, table_entries,
};
use crate::pin::Pin;

/// Memory that is used again from function to function.
#[derive(Default)]
pub struct Scratch {
    insns: Vec<Insn>,
    pieces: Vec<(usize, usize)>,
    leaders: Vec<u64>,
    /// In [`sort_places`]: by byte of the function, a bit.
    marks: Vec<u64>,
    index: BlockIndex,
    targets: Vec<Targets>,
    /// A graph that is needed no more.
    graph: Cfg,
}

impl Scratch {
    /// Uses the memory of a graph again.
    pub(crate) fn take_back(&mut self, graph: Cfg) {
        self.graph = graph;
    }

    /// The instructions of the function whose graph was built last, piece by piece, and by piece its first one and one
    /// past its last.
    pub fn instructions(&self) -> (&[Insn], &[(usize, usize)]) {
        (&self.insns, &self.pieces)
    }
}

/// Builds a function's control flow, or says why it cannot be.
pub fn build<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    function: usize,
    scratch: &mut Scratch,
) -> Result<Cfg, Pin> {
    let mut cfg = build_for_now::<I>(program, nonlocal_exits, function, scratch)?;
    cfg.shrink();
    Ok(cfg)
}

/// The same, of a function that is not kept for long: the graph has more space than it needs.
pub fn build_for_now<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    function: usize,
    scratch: &mut Scratch,
) -> Result<Cfg, Pin> {
    if let Some(pin) = program.functions[function].pin {
        return Err(pin);
    }
    let Scratch {
        insns,
        pieces,
        leaders,
        marks,
        index,
        targets,
        graph,
    } = scratch;
    insns.clear();
    pieces.clear();
    leaders.clear();
    let mut code = FunctionCode::read::<I>(program, function, insns, pieces)?;
    let tables = relative_tables(&code);
    collect_leaders(&code, &tables, leaders, marks);
    let (own_tables, own_bases, jumps, labels) = loop {
        let (own_tables, own_bases) = own_tables::find::<I>(&code);
        let inside = own_tables.iter().flat_map(|t| &t.entries);
        let known = leaders.len();
        leaders.extend(inside.filter(|e| e.inside).map(|e| e.target));
        if leaders.len() > known {
            sort(leaders);
        }
        let jumps = indirect::resolve::<I>(&code, (&tables, &own_tables), leaders);
        let jumps = jumps.map_err(|unresolved| unresolved.pin)?;
        // Control that went on in old code comes back there, so fewer tables may be found, and more jumps go on in old
        // code then.
        let is_new = |a: &u64| code.from_old.binary_search(a).is_err();
        let labels = labels_from_old(&code, &jumps, &own_tables);
        let more = !own_tables.is_empty() && jumps.anchored_targets.iter().any(is_new);
        if !more && !labels.iter().any(is_new) {
            break (own_tables, own_bases, jumps, labels);
        }
        code.from_old.extend_from_slice(&jumps.anchored_targets);
        code.from_old.extend_from_slice(labels);
        sort(&mut code.from_old);
        leaders.clear();
        collect_leaders(&code, &tables, leaders, marks);
    };
    if program.refs.kept {
        labels_are_explained(&code, &jumps)?;
    }
    if !jumps.anchored_targets.is_empty() {
        leaders.extend_from_slice(&jumps.anchored_targets);
        sort(leaders);
    }
    let graph = std::mem::take(graph).cleared();
    let memory = (graph, &mut *index, &mut *targets);
    let mut cfg = blocks::cut::<I>(&code, nonlocal_exits, &jumps, leaders, memory)?;
    if !program.refs.kept {
        if knows_insides(&code, &cfg, &own_tables) {
            return Err(Pin::PointerToItsInside);
        }
        if !numbers_are_explained(&code, &cfg, &own_tables) {
            return Err(Pin::NumberMayBeItsInside);
        }
    }
    connect(&mut cfg, &jumps, targets, index)?;
    mark(&mut cfg, &code, &tables, (&jumps, labels), index);
    cfg.own_tables = own_tables;
    cfg.own_bases = own_bases;
    let entries = cfg.own_tables.iter_mut().flat_map(|t| &mut t.entries);
    let entries = entries.filter(|e| e.inside);
    entries.for_each(|e| e.block = index.get(e.target));
    mark_unlikely(&mut cfg);
    if code.seen.exclusive_loads {
        exclusive::mark_regions(&mut cfg, code.insns);
    }
    Ok(cfg)
}

/// Calls something with a function's instructions, if they can be read.
pub(super) fn with_code<I: Isa, T>(
    program: &Program<'_>,
    function: usize,
    scratch: &mut Scratch,
    then: impl FnOnce(&FunctionCode<'_, '_>) -> T,
) -> Option<T> {
    let Scratch { insns, pieces, .. } = scratch;
    insns.clear();
    pieces.clear();
    let code = FunctionCode::read::<I>(program, function, insns, pieces).ok()?;
    Some(then(&code))
}

/// The indirect jump for which [`build`] gives up, and why.
pub(super) fn unresolved<I: Isa>(
    program: &Program<'_>,
    function: usize,
    scratch: &mut Scratch,
) -> Option<(u64, JumpReason)> {
    let mut leaders = Vec::new();
    with_code::<I, _>(program, function, scratch, |code| {
        let tables = relative_tables(code);
        collect_leaders(code, &tables, &mut leaders, &mut Vec::new());
        let found = indirect::resolve::<I>(code, (&tables, &[]), &leaders);
        found.err().and_then(|unresolved| unresolved.jump)
    })
    .flatten()
}

/// What a function's instructions have in sum: most look for what most functions have none of.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    /// How many end a block wherever they are.
    pub ends: usize,
    /// How many have a field.
    pub fields: usize,
    /// Some form an address.
    pub forms_address: bool,
    /// Some have a field that forms what entries of a table count from.
    pub anchors: bool,
    /// Some are indirect jumps.
    pub indirect_jumps: bool,
    /// Some are exclusive loads.
    pub exclusive_loads: bool,
}

impl Seen {
    #[inline(always)]
    fn add(&mut self, insn: &Insn) {
        let goes_on = matches!(
            insn.flow,
            Flow::Next | Flow::Call { .. } | Flow::IndirectCall
        );
        self.ends += usize::from(!goes_on);
        self.fields += usize::from(insn.field.is_some());
        self.forms_address |= insn.traits.forms_address;
        self.anchors |= insn.field.is_some_and(|f| f.kind == FixupKind::Adr);
        self.indirect_jumps |= insn.flow == Flow::IndirectJump;
        self.exclusive_loads |= insn.traits.exclusive_load;
    }
}

/// A function's instructions, and what is known of it before blocks are.
pub(super) struct FunctionCode<'a, 'd> {
    pub program: &'a Program<'d>,
    pub function: &'a Function,
    /// First address of each piece, and one past its last.
    pub ranges: SmallVec<[(u64, u64); 2]>,
    /// Of all pieces, one after the other.
    pub insns: &'a [Insn],
    /// What they have in sum.
    pub seen: Seen,
    /// By piece: its first instruction, and one past its last.
    pub pieces: &'a [(usize, usize)],
    /// Landing pads of exceptions, ascending.
    pub landing_pads: Vec<u64>,
    /// Where an instruction that faults leads to a landing pad, ascending.
    pub faulting: Vec<(u64, u64)>,
    /// Its personality routine is asked about any instruction.
    pub faults: bool,
    /// Where old code comes back, in whatever state, when an indirect jump has gone on there: places of its code that a
    /// table may count to, ascending. As far as they are known.
    pub from_old: Vec<u64>,
}

impl<'a, 'd> FunctionCode<'a, 'd> {
    /// Decodes all pieces.
    fn read<I: Isa>(
        program: &'a Program<'d>,
        function: usize,
        insns: &'a mut Vec<Insn>,
        pieces: &'a mut Vec<(usize, usize)>,
    ) -> Result<Self, Pin> {
        let f = &program.functions[function];
        let mut seen = Seen::default();
        let ranges: SmallVec<[(u64, u64); 2]> = f
            .pieces
            .iter()
            .map(|p| &program.pieces[*p as usize])
            .map(|p| (p.start, p.end))
            .collect();
        for &(start, end) in &ranges {
            let bytes = program.elf.bytes_at(start, end - start);
            let bytes = bytes.ok_or(Pin::NotInstructions)?;
            let from = insns.len();
            let stopped = I::list(bytes, start, insns, |i| seen.add(i));
            if stopped.is_some() || insns.len() == from {
                return Err(Pin::NotInstructions);
            }
            pieces.push((from, insns.len()));
        }
        let (landing_pads, faulting) = exceptions(program, function)?;
        let mut asked = f.pieces.iter().map(|p| *p as usize);
        let faults = asked.any(|p| {
            let faults = personality(program, p).is_some_and(|p| p.faults);
            faults && lsda_of(program, p).ok().flatten().is_some()
        });
        Ok(FunctionCode {
            program,
            function: f,
            ranges,
            insns,
            seen,
            pieces,
            landing_pads,
            faulting,
            faults,
            from_old: Vec::new(),
        })
    }

    /// Whether an address is in one of the pieces.
    pub fn contains(&self, addr: u64) -> bool {
        self.ranges.iter().any(|r| addr >= r.0 && addr < r.1)
    }

    /// The instruction that begins at an address.
    pub fn insn_at(&self, addr: u64) -> Option<&'a Insn> {
        let mut pieces = self.pieces.iter().map(|&(from, to)| &self.insns[from..to]);
        pieces.find_map(|piece| {
            let at = piece.binary_search_by_key(&addr, |i| i.addr).ok()?;
            Some(&piece[at])
        })
    }

    /// The number of the instruction that begins at an address.
    pub fn index_of(&self, addr: u64) -> Option<usize> {
        self.pieces.iter().find_map(|&(from, to)| {
            let piece = &self.insns[from..to];
            let at = piece.binary_search_by_key(&addr, |i| i.addr).ok()?;
            Some(from + at)
        })
    }

    /// An instruction's bytes.
    pub fn bytes(&self, insn: &Insn) -> &'d [u8] {
        let bytes = self.program.elf.bytes_at(insn.addr, u64::from(insn.len));
        bytes.unwrap_or(&[])
    }

    /// The place in the code, other than the entry, whose address an `adr` forms: what entries of a table count from.
    pub fn anchor(&self, insn: &Insn) -> Option<u64> {
        let field = insn.field.filter(|f| f.kind == FixupKind::Adr)?;
        let inside = self.contains(field.target) && field.target != self.ranges[0].0;
        inside.then_some(field.target)
    }

    /// Whether that is the start of a piece, or control enters there from elsewhere.
    fn begins(&self, at: u64) -> bool {
        self.ranges.iter().any(|r| r.0 == at) || self.function.entries.binary_search(&at).is_ok()
    }
}

/// Landing pads of all pieces, and the ranges of code where any instruction that faults leads to one.
fn exceptions(program: &Program<'_>, function: usize) -> Result<(Vec<u64>, Vec<(u64, u64)>), Pin> {
    let pieces = &program.functions[function].pieces;
    let (mut list, mut faulting) = (Vec::new(), Vec::new());
    for p in pieces {
        if let Some(lsda) = lsda_of(program, *p as usize)? {
            let caught = lsda.call_sites.iter().filter(|c| c.landing_pad.is_some());
            if personality(program, *p as usize).is_some_and(|p| p.faults) {
                faulting.extend(caught.clone().map(|c| (c.start, c.end())));
            }
            list.extend(caught.filter_map(|c| c.landing_pad));
        }
    }
    sort(&mut list);
    faulting.sort_unstable();
    let inside = |a: &u64| {
        let mut ranges = pieces.iter().map(|p| &program.pieces[*p as usize]);
        ranges.any(|p| *a >= p.start && *a < p.end)
    };
    if list.iter().all(inside) {
        Ok((list, faulting))
    } else {
        Err(Pin::ExceptionTable)
    }
}

/// A table of self-relative entries: a jump table of position-independent code.
pub(super) struct RelativeTable {
    /// Its first address, which entries count from.
    pub base: u64,
    /// Entries that lead into the function: address of the entry, target.
    pub entries: Vec<(u64, u64)>,
}

impl RelativeTable {
    /// Where its entries lead.
    pub fn targets(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().map(|e| e.1)
    }
}

/// Relative tables whose address this function forms, by one instruction or by several.
fn relative_tables(code: &FunctionCode<'_, '_>) -> Vec<RelativeTable> {
    let program = code.program;
    let by_several = code
        .ranges
        .iter()
        .flat_map(|r| program.refs.formed_in(r.0, r.1))
        .map(|f| f.1);
    let forming = if code.seen.forms_address {
        code.insns
    } else {
        &[]
    };
    let by_one = forming
        .iter()
        .filter(|i| i.traits.forms_address)
        .filter_map(|i| i.field.map(|f| f.target));
    let mut tables: Vec<RelativeTable> = Vec::new();
    for base in by_one.chain(by_several) {
        if program.refs.relative_width(base).is_none() || tables.iter().any(|t| t.base == base) {
            continue;
        }
        let mut entries = Vec::new();
        for (place, target) in table_entries(program.elf, &program.refs, &program.table_bases, base)
        {
            if code.contains(target) {
                entries.push((place, target));
            } else if !code.ranges.iter().any(|r| r.1 == target) {
                break;
            }
        }
        if !entries.is_empty() {
            tables.push(RelativeTable { base, entries });
        }
    }
    tables
}

/// Leaders: whatever control can reach other than from the instruction before. Targets of indirect jumps
/// through other tables come later.
/// Ascending.
fn collect_leaders(
    code: &FunctionCode<'_, '_>,
    tables: &[RelativeTable],
    leaders: &mut Vec<u64>,
    marks: &mut Vec<u64>,
) {
    leaders.extend(code.ranges.iter().map(|r| r.0));
    leaders.extend_from_slice(&code.function.entries);
    if code.program.refs.kept {
        leaders.extend_from_slice(&code.function.labels);
    }
    leaders.extend_from_slice(&code.from_old);
    leaders.extend_from_slice(&code.landing_pads);
    for i in code.insns {
        match i.flow {
            Flow::Jump { target } | Flow::CondJump { target, .. } | Flow::ShortCond { target }
                if code.contains(target) =>
            {
                leaders.push(target);
            }
            _ => {}
        }
    }
    leaders.extend(tables.iter().flat_map(RelativeTable::targets));
    sort_places(leaders, &code.ranges, marks);
}

/// A pointer to the inside must be explained by an indirect jump that can follow it.
fn labels_are_explained(code: &FunctionCode<'_, '_>, jumps: &IndirectJumps) -> Result<(), Pin> {
    let explained = |l: &u64| jumps.dispatches.iter().any(|d| d.binary_search(l).is_ok());
    if code.function.labels.iter().all(explained) {
        Ok(())
    } else {
        Err(Pin::PointerToItsInside)
    }
}

/// Labels at whose old places jumps to the new code are tried, where the linker kept no relocations: the function jumps
/// to what it has read from memory that the program writes (interpreters store labels in the code that they run), so no
/// table of new code's own helps.
fn labels_from_old<'f>(
    code: &FunctionCode<'f, '_>,
    jumps: &IndirectJumps,
    own_tables: &[OwnTable],
) -> &'f [u64] {
    let labels = &code.function.labels;
    let held = |label: &u64| {
        let mut entries = own_tables
            .iter()
            .filter(|t| t.is_of_labels())
            .flat_map(|t| &t.entries);
        entries.any(|e| e.target == *label)
    };
    let unknown = |i: &Insn| {
        i.flow == Flow::IndirectJump
            && jumps.by_address.get(&i.addr).is_some_and(|j| j.0.is_none())
            && blocks::falls_back(code.program, i)
    };
    // A jump that loads no entry in sight is a tail call, where all labels are of known tables.
    let explained = labels.iter().all(held);
    let may = |i: &Insn| unknown(i) && (!explained || jumps.through_tables.contains(&i.addr));
    if code.program.refs.kept || labels.is_empty() || !code.insns.iter().any(may) {
        return &[];
    }
    labels
}

/// Whether the function jumps to labels whose addresses are in tables that stay: an address inside of it is one, as
/// where a jump continues in old code.
fn has_labels(own_tables: &[OwnTable]) -> bool {
    own_tables.iter().any(|t| t.labels.is_some())
}

/// Whether something may know an address inside of the function by which it describes the code there: not a label of
/// a jump that goes on in old code, nor what a table of the function's holds or counts from.
fn knows_insides(code: &FunctionCode<'_, '_>, cfg: &Cfg, own_tables: &[OwnTable]) -> bool {
    let formed = code.insns.iter().filter(|_| code.seen.anchors);
    let formed = formed
        .filter_map(|insn| code.anchor(insn))
        .filter(|at| !code.begins(*at));
    let mut labels = code.function.labels.iter().copied().chain(formed);
    if code.program.visible.describes_insides {
        return labels.next().is_some();
    }
    let explained = |label: u64| {
        let holds = |t: &OwnTable| {
            t.base == label || t.is_of_labels() && t.entries.iter().any(|e| e.target == label)
        };
        own_tables.iter().any(holds)
    };
    cfg.falls_back.is_empty() && !has_labels(own_tables) && !labels.all(explained)
}

/// The same of numbers in a program at a fixed address: whether none of them may be an address by which something
/// describes the function's code.
fn numbers_are_explained(code: &FunctionCode<'_, '_>, cfg: &Cfg, own_tables: &[OwnTable]) -> bool {
    let program = code.program;
    let knows_labels = !cfg.falls_back.is_empty() || has_labels(own_tables);
    if knows_labels && !program.visible.describes_insides {
        return true;
    }
    let explained = |number: &NumberInside| {
        let in_table = |t: &OwnTable| {
            if t.is_of_labels() {
                number.word.is_some_and(|at| t.holds(at))
            } else {
                t.base == number.target
            }
        };
        // There is the jump to the new code, which leads on whatever comes there.
        let is_behind_pad = || {
            let first = code.insns.first().filter(|i| i.traits.landing_pad);
            first.is_some_and(|i| i.end() == number.target)
        };
        let tables = || !program.visible.describes_insides && own_tables.iter().any(in_table);
        is_behind_pad() || tables()
    };
    let numbers = |r: &(u64, u64)| program.entry_proof.numbers_inside(r.0, r.1);
    code.ranges.iter().flat_map(numbers).all(explained)
}

/// Sorts a list and drops what occurs twice.
fn sort(list: &mut Vec<u64>) {
    list.sort_unstable();
    list.dedup();
}

/// The same for places of which most are in a function with these pieces: in a long list of a function of one piece
/// they are marked, and read off. `marks` is space.
fn sort_places(list: &mut Vec<u64>, ranges: &[(u64, u64)], marks: &mut Vec<u64>) {
    /// A sort is quicker up to so many.
    const SHORT: usize = 16;
    let &[(start, end)] = ranges else {
        return sort(list);
    };
    let is_inside = |addr: &u64| start <= *addr && *addr < end;
    if list.len() <= SHORT || !list.iter().all(is_inside) {
        return sort(list);
    }
    marks.clear();
    marks.resize((end - start).div_ceil(64) as usize, 0);
    for addr in list.drain(..) {
        let at = (addr - start) as usize;
        marks[at / 64] |= 1 << (at % 64);
    }
    for (word, mut bits) in (0u64..).zip(marks.iter().copied()) {
        while bits != 0 {
            list.push(start + 64 * word + u64::from(bits.trailing_zeros()));
            bits &= bits - 1;
        }
    }
}

/// Makes edges of targets.
fn connect(
    cfg: &mut Cfg,
    jumps: &IndirectJumps,
    targets: &[Targets],
    index: &BlockIndex,
) -> Result<(), Pin> {
    cfg.succs.reserve(2 * cfg.blocks.len());
    for d in &jumps.dispatches {
        let mut list: Vec<BlockId> = d.iter().filter_map(|t| index.get(*t)).collect();
        list.sort_unstable();
        cfg.dispatches.push(list);
    }
    for (b, targets) in targets.iter().enumerate() {
        let next = cfg.blocks.get(b + 1).map(|b| b.start);
        let block = &mut cfg.blocks[b];
        let from = cfg.succs.len() as u32;
        if let Term::Dispatch { dispatch, .. } = block.term {
            cfg.succs
                .extend_from_slice(&cfg.dispatches[dispatch as usize]);
        } else {
            for t in targets.iter().filter(|t| **t != 0) {
                // Every second way leads to the block that follows.
                let to = match next {
                    Some(start) if start == *t => b as BlockId + 1,
                    _ => index.get(*t).ok_or(Pin::BranchIntoInstruction)?,
                };
                cfg.succs.push(to);
            }
        }
        block.succ = from;
        block.nsucc = cfg.succs.len() as u32 - from;
    }
    Ok(())
}

/// Notes which blocks tables, pointers and exceptions lead to; `from_old`: [`labels_from_old`].
fn mark(
    cfg: &mut Cfg,
    code: &FunctionCode<'_, '_>,
    tables: &[RelativeTable],
    (jumps, from_old): (&IndirectJumps, &[u64]),
    index: &BlockIndex,
) {
    let block_at = |a: u64| index.get(a);
    for table in tables {
        let width = code.program.refs.relative_width(table.base).unwrap_or(4);
        let entry = |(place, target): &(u64, u64)| {
            Some(TableEntry {
                place: *place,
                base: Some(table.base),
                width,
                block: block_at(*target)?,
            })
        };
        cfg.table_entries
            .extend(table.entries.iter().filter_map(entry));
    }
    let anchored_targets = jumps.anchored_targets.iter();
    cfg.anchored_targets
        .extend(anchored_targets.filter_map(|a| Some((*a, block_at(*a)?))));
    let (entries, labels) = (&code.function.entries, &code.function.labels);
    // Other labels stay old addresses where the linker kept no relocations.
    let labels = if code.program.refs.kept {
        labels
    } else {
        from_old
    };
    let marked = entries.iter().chain(labels);
    cfg.address_taken
        .extend(marked.filter_map(|a| Some((*a, block_at(*a)?))));
    cfg.address_taken.sort_unstable();
    cfg.address_taken.dedup();
    cfg.blocks[0].entry = true;
    let entered = entries.iter().chain(from_old);
    for b in entered.filter_map(|a| block_at(*a)) {
        cfg.blocks[b as usize].entry = true;
    }
    for b in code.landing_pads.iter().filter_map(|a| block_at(*a)) {
        let block = &mut cfg.blocks[b as usize];
        block.landing_pad = true;
        block.unlikely = true;
    }
    cfg.faults = code.faults;
    if !code.faulting.is_empty() {
        mark_faults(cfg, code);
    }
}

/// Notes where each block may be left by a fault. Calls end blocks, where they may throw; jumps do not fault.
fn mark_faults(cfg: &mut Cfg, code: &FunctionCode<'_, '_>) {
    for block in &mut cfg.blocks {
        let first = code.faulting.partition_point(|f| f.1 <= block.start);
        let Some(&(start, _)) = code.faulting.get(first) else {
            continue;
        };
        if start >= block.end {
            continue;
        }
        let (from, to) = code.pieces[usize::from(block.piece)];
        let piece = &code.insns[from..to];
        let inside = &piece[piece.partition_point(|i| i.addr < block.start)..];
        let inside = inside.iter().take_while(|i| i.addr < block.end);
        let ranges = &code.faulting[first..];
        let mut faults = inside.filter(|i| {
            let covers = |r: &(u64, u64)| r.0 <= i.addr && i.addr < r.1;
            i.flow == Flow::Next && ranges.iter().take_while(|r| r.0 < block.end).any(covers)
        });
        block.faults_from = faults.next().map_or(u64::MAX, |i| i.addr);
    }
}

/// Blocks from which only unlikely blocks follow are unlikely too.
fn mark_unlikely(cfg: &mut Cfg) {
    for _ in 0..2 {
        for b in (0..cfg.blocks.len() as BlockId).rev() {
            let all = !cfg.succs(b).is_empty()
                && cfg
                    .succs(b)
                    .iter()
                    .all(|s| cfg.blocks[*s as usize].unlikely);
            cfg.blocks[b as usize].unlikely |= all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_are_marked_come_out_as_sorted() {
        let (start, end) = (0x1007u64, 0x1507);
        let long: Vec<u64> = (0..200).map(|i| start + i * 7919 % (end - start)).collect();
        let beside = [&long[..], &[0x10, end]].concat();
        for list in [&long[..3], &long, &beside, &[start, end - 1].repeat(20)] {
            for ranges in [
                &[(start, end)][..],
                &[(start, start + 64), (start + 64, end)],
            ] {
                let (mut expected, mut list) = (list.to_vec(), list.to_vec());
                sort(&mut expected);
                sort_places(&mut list, ranges, &mut vec![u64::MAX; 3]);
                assert_eq!(list, expected);
            }
        }
    }
}

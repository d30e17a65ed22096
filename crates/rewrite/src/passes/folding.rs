//! Identical functions: the new code of one stands for the others (identical code folding).
//!
//! Two functions are identical if their instructions are the same, name the same data, and call the same functions or
//! functions that are identical themselves, and if unwinding does the same at each instruction. Of such a set one
//! function moves, with the counts of all; the others have no new code. Calls of them in new code, and a jump at
//! their old entries, lead to that one's. Pointers to them stay what they are, so no two functions get one address,
//! and so do their symbols and their debug information, which describe old code.
//!
//! This is decided before blocks are ordered, by what the input has: a hash of everything but the functions that are
//! called, and then by which sets those are in, until no set is split any more. The rule that the checker has is in
//! `verify/walk/changes/folding.rs`; whatever it cannot show is taken back, so a hash that says too much costs a
//! function's new place and nothing else.
//!
//! What is never folded:
//!
//! * functions with jump tables, labels, further entries or static probes: places in them are known by address;
//! * functions that run mostly by pointers, where those could lead to new code: they would go by the old entry. Such a
//!   function still stands for others.

use postlink_elf::probes;
use postlink_isa::Isa;
use rustc_hash::{FxHashMap, FxHashSet};
use xxhash_rust::xxh3::Xxh3;

use super::PassReport;
use crate::analyse::counters::Counts;
use crate::analyse::{EntryPatch, FunctionUnwind};
use crate::attach::{Call, Counted};
use crate::cfg::{BlockId, Cfg, Term, Use};
use crate::discover::Program;

/// Which identical functions are folded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Folding {
    /// None.
    #[default]
    None,
    /// Those that call nothing: there is no return address in them, so no backtrace names one for the other.
    Safe,
    /// All.
    All,
}

/// A function for which the new code of another stands.
#[derive(Clone, Copy, Debug)]
pub struct Folded {
    /// The function.
    pub function: u32,
    /// The other one.
    pub into: u32,
    /// The entries of both.
    entries_of: (u64, u64),
    /// Where a jump goes at its old entry, if there is space.
    pub patch: Option<EntryPatch>,
    /// How often it was entered.
    entries: u64,
    /// Its bytes of code.
    bytes: u64,
}

/// What was folded.
#[derive(Clone, Debug, Default)]
pub struct Folds {
    /// Ascending by function.
    pub list: Vec<Folded>,
    /// Functions that were looked at.
    considered: usize,
    /// How often sets were split by what their functions call.
    rounds: usize,
    /// By function: what it calls where the one that stands for it calls another, and that one.
    calls: FxHashMap<u32, Box<[(u64, u64)]>>,
}

/// Figures for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FoldingReport {
    /// Functions for which the new code of others stands.
    pub folded: usize,
    /// Functions that were looked at.
    pub considered: usize,
    /// How often sets of functions were split.
    pub rounds: usize,
    /// Bytes of code that the folded ones have in the input.
    pub bytes: u64,
    /// How often they were called.
    pub executions: u64,
}

impl Folds {
    /// The functions that are left of the list if some stay: not those themselves, nor what was folded into them, nor
    /// functions that are identical only if these are.
    pub fn retain(&mut self, moves: impl Fn(u32) -> bool) {
        self.list.retain(|f| moves(f.function) && moves(f.into));
        loop {
            let stands: FxHashMap<u64, u64> = self.list.iter().map(|f| f.entries_of).collect();
            let called = |entry: &u64| *stands.get(entry).unwrap_or(entry);
            let before = self.list.len();
            let calls = &self.calls;
            self.list.retain(|f| {
                let mut pairs = calls.get(&f.function).into_iter().flatten();
                pairs.all(|(own, other)| called(own) == called(other))
            });
            if self.list.len() == before {
                return;
            }
        }
    }

    /// Figures.
    pub fn report(&self) -> FoldingReport {
        FoldingReport {
            folded: self.list.len(),
            considered: self.considered,
            rounds: self.rounds,
            bytes: self.list.iter().map(|f| f.bytes).sum(),
            executions: (self.list.iter()).fold(0, |sum, f| sum.saturating_add(f.entries)),
        }
    }

    /// As of any other pass. `found`: how many it folded at first.
    pub fn as_pass(&self, found: usize) -> PassReport {
        PassReport {
            pass: "icf",
            what: "functions with an identical one",
            sites: found as u64,
            changed: self.list.len() as u64,
            executions: self.report().executions,
        }
    }
}

/// What a function is, beside the functions that it calls.
struct Shape {
    hash: u128,
    /// What it calls and jumps to, in its order.
    callees: Vec<u64>,
}

/// Folds identical functions: those that others stand for are taken out of `counted`, and what is known of them is told
/// of the others. Functions without counts may be folded, and do not move otherwise. `keep`: entries of functions that
/// stay.
pub fn fold<'d, I: Isa>(
    program: &mut Program<'_>,
    (counted, without_counts): (&mut Vec<Counted<'d>>, Vec<Counted<'d>>),
    calls: &mut Vec<Call>,
    which: Folding,
    keep: &FxHashSet<u64>,
) -> Folds {
    let moves = counted.len();
    counted.extend(without_counts);
    let mut folds = Folds {
        considered: counted.len(),
        ..Folds::default()
    };
    let probes: Vec<u64> = probes::probes(program.elf).iter().map(|p| p.at).collect();
    let shape = |c: &Counted<'_>| {
        let stays = keep.contains(&program.start(c.function as usize));
        let may = !stays && may_fold(program, c, which, &probes);
        may.then(|| shape::<I>(program, c)).flatten()
    };
    let shapes: Vec<Option<Shape>> = postlink_parallel::map(counted, shape);
    let (sets, rounds) = sets(program, counted, &shapes);
    folds.rounds = rounds;
    let apart = mostly_by_pointers(program, counted, calls);
    // By position: the position of the one that stands for it.
    let mut into: Vec<Option<usize>> = vec![None; counted.len()];
    for set in sets {
        let rank = |i: &usize| {
            let c = &counted[*i];
            let busiest = std::cmp::Reverse(c.entries);
            (!apart.contains(&c.function), busiest, c.function)
        };
        let move_themselves = set.iter().copied().filter(|i| *i < moves);
        let Some(first) = move_themselves.min_by_key(rank) else {
            continue;
        };
        for i in set {
            let alike = is_alike(&counted[first], &counted[i]);
            if i != first && alike && !apart.contains(&counted[i].function) {
                into[i] = Some(first);
            }
        }
    }
    for i in 0..counted.len() {
        let Some(first) = into[i] else { continue };
        let (function, into) = (counted[i].function, counted[first].function);
        let start = |function: u32| program.start(function as usize);
        if let (Some(own), Some(other)) = (&shapes[i], &shapes[first]) {
            let pairs = own.callees.iter().zip(&other.callees);
            let others = pairs.filter(|(a, b)| a != b).map(|(a, b)| (*a, *b));
            let others: Box<[(u64, u64)]> = others.collect();
            if !others.is_empty() {
                folds.calls.insert(function, others);
            }
        }
        folds.list.push(Folded {
            function,
            into,
            entries_of: (start(function), start(into)),
            patch: counted[i].analysed.entry_patch,
            entries: counted[i].entries,
            bytes: program.size(function as usize),
        });
        program.folded.insert(program.start(function as usize));
    }
    move_calls(program, counted, &into, calls);
    for i in 0..counted.len() {
        if let Some(first) = into[i] {
            let counts = std::mem::take(&mut counted[i].counts);
            let entries = counted[i].entries;
            add(&mut counted[first], &counts, entries);
        }
    }
    let mut position = 0..into.len();
    counted.retain(|_| {
        position
            .next()
            .is_some_and(|i| i < moves && into[i].is_none())
    });
    folds.list.sort_unstable_by_key(|f| f.function);
    folds
}

/// What the blocks of a function that ran call and jump to; all of its blocks, if it has no counts.
pub fn called(c: &Counted<'_>) -> Vec<u64> {
    let cfg = &c.analysed.cfg;
    let mut out = Vec::new();
    for b in 0..cfg.blocks.len() as BlockId {
        if c.entries > 0 && c.counts.blocks[b as usize] == 0 {
            continue;
        }
        let calls = cfg.fields(b).iter().filter(|f| f.role == Use::Call);
        out.extend(calls.map(|f| f.target));
        match cfg.blocks[b as usize].term {
            Term::JumpOut { target }
            | Term::CondOut { target, .. }
            | Term::ShortCondOut { target } => out.push(target),
            _ => {}
        }
    }
    out
}

fn has_tables(cfg: &Cfg) -> bool {
    !cfg.dispatches.is_empty() || !cfg.own_tables.is_empty() || !cfg.falls_back.is_empty()
}

/// Whether a function may be folded, if there is an identical one.
fn may_fold(program: &Program<'_>, c: &Counted<'_>, which: Folding, probes: &[u64]) -> bool {
    let (cfg, function) = (&c.analysed.cfg, &program.functions[c.function as usize]);
    let known_inside = has_tables(cfg)
        || !cfg.table_entries.is_empty()
        || !cfg.anchored_targets.is_empty()
        || !cfg.address_taken.is_empty()
        || !c.analysed.secondary_entries.is_empty()
        || !function.entries.is_empty()
        || !function.labels.is_empty();
    let mut pieces = function.pieces.iter().map(|p| &program.pieces[*p as usize]);
    let described = pieces.any(|p| {
        let frames = program.refs.formed_in(p.start, p.end).iter();
        let mut frames = frames.filter(|f| program.refs.is_registered_frame(f.1));
        frames.next().is_some() || probes.iter().any(|at| (p.start..p.end).contains(at))
    });
    let calls =
        || cfg.fields.iter().any(|f| f.role == Use::Call) || cfg.sites.iter().any(|s| !s.tail);
    !known_inside && !described && (which == Folding::All || !calls())
}

/// What a function is; `None` if that cannot be told.
fn shape<I: Isa>(program: &Program<'_>, c: &Counted<'_>) -> Option<Shape> {
    let (cfg, function) = (&c.analysed.cfg, &program.functions[c.function as usize]);
    let piece_start = |piece: u16| {
        let index = function.pieces.get(usize::from(piece))?;
        Some(program.pieces[*index as usize].start)
    };
    let mut hash = Xxh3::new();
    let mut callees = Vec::new();
    let put = |hash: &mut Xxh3, numbers: &[u64]| {
        numbers.iter().for_each(|n| hash.update(&n.to_le_bytes()));
    };
    let mut own = Vec::new();
    for b in 0..cfg.blocks.len() as BlockId {
        let block = &cfg.blocks[b as usize];
        let start = piece_start(block.piece)?;
        let place = |at: u64| at.wrapping_sub(start);
        let (term, cond, target) = match block.term {
            Term::Fall => (0, 0, None),
            Term::Jump => (1, 0, None),
            Term::Cond { cond } => (2, cond.0, None),
            Term::ShortCond => (3, 0, None),
            Term::JumpOut { target } => (4, 0, Some(target)),
            Term::CondOut { cond, target } => (5, cond.0, Some(target)),
            Term::ShortCondOut { target } => (6, 0, Some(target)),
            Term::IndirectOut => (7, 0, None),
            Term::Return => (8, 0, None),
            Term::Stop => (9, 0, None),
            Term::Dispatch { .. } | Term::FallBack => return None,
        };
        let flags = u64::from(block.landing_pad)
            | u64::from(block.entry) << 1
            | u64::from(block.returns_twice) << 2;
        let header = [place(block.start), place(block.term_at), place(block.end)];
        put(&mut hash, &header);
        put(&mut hash, &[block.piece.into(), term, cond.into(), flags]);
        put(&mut hash, &[cfg.succs(b).len() as u64]);
        for s in cfg.succs(b) {
            put(&mut hash, &[(*s).into()]);
        }
        own.clear();
        let len = block.term_at - block.start;
        own.extend_from_slice(program.elf.bytes_at(block.start, len)?);
        for f in cfg.fields(b) {
            let at = (f.at - block.start) as usize;
            // What it designates is compared, not how far away that is.
            I::write_field(f.kind, own.get_mut(at..)?, 0, 0).ok()?;
            put(&mut hash, &[at as u64]);
            match f.role {
                Use::Call => callees.push(f.target),
                Use::Address | Use::Memory => put(&mut hash, &[f.target]),
            }
        }
        hash.update(&own);
        callees.extend(target);
    }
    put(&mut hash, &[callees.len() as u64]);
    if let Some(unwind) = &c.analysed.unwind {
        put_unwind(program, unwind, &mut hash);
    }
    Some(Shape {
        hash: hash.digest128(),
        callees,
    })
}

/// What unwinding does in a function.
fn put_unwind(program: &Program<'_>, unwind: &FunctionUnwind<'_>, hash: &mut Xxh3) {
    let mut put = |n: u64| hash.update(&n.to_le_bytes());
    for ((start, index), lsda) in unwind.pieces.iter().zip(&unwind.lsdas) {
        let fde = &program.eh.fdes[*index as usize];
        put(fde.cie as u64);
        put(fde.instructions.len() as u64);
        fde.instructions.iter().for_each(|b| put((*b).into()));
        let Some(lsda) = lsda else { continue };
        for site in &lsda.call_sites {
            put(site.start.wrapping_sub(*start));
            put(site.len);
            // Counted from the first piece: it may be in another one.
            let first = unwind.pieces.first().map_or(0, |p| p.0);
            put(site.landing_pad.map_or(0, |pad| pad.wrapping_sub(first)));
            put(site.action);
        }
        lsda.actions.iter().for_each(|b| put((*b).into()));
        lsda.types.iter().for_each(|t| put(*t));
        lsda.specs.iter().for_each(|b| put((*b).into()));
    }
}

/// Sets of identical functions, by position, and how often sets were split.
fn sets(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    shapes: &[Option<Shape>],
) -> (Vec<Vec<usize>>, usize) {
    let mut position: FxHashMap<u64, usize> = FxHashMap::default();
    for (i, c) in counted
        .iter()
        .enumerate()
        .filter(|(i, _)| shapes[*i].is_some())
    {
        position.insert(program.start(c.function as usize), i);
    }
    // By position: the first of its set. At first all of one shape are in one.
    let mut first: Vec<usize> = (0..shapes.len()).collect();
    let mut known: FxHashMap<u128, usize> = FxHashMap::default();
    for (i, shape) in shapes.iter().enumerate() {
        if let Some(shape) = shape {
            first[i] = *known.entry(shape.hash).or_insert(i);
        }
    }
    let mut rounds = 1;
    loop {
        let mut split: FxHashMap<(usize, Vec<u64>), usize> = FxHashMap::default();
        let mut next = first.clone();
        let mut changed = false;
        for (i, shape) in shapes.iter().enumerate() {
            let Some(shape) = shape else { continue };
            // Addresses are never as small as positions.
            let set = |callee: &u64| match position.get(callee) {
                Some(k) => first[*k] as u64,
                None => *callee,
            };
            let key = (first[i], shape.callees.iter().map(set).collect());
            next[i] = *split.entry(key).or_insert(i);
            changed |= next[i] != first[i];
        }
        if !changed {
            break;
        }
        (first, rounds) = (next, rounds + 1);
    }
    let mut members: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
    for (i, set) in first
        .iter()
        .enumerate()
        .filter(|(i, _)| shapes[*i].is_some())
    {
        members.entry(*set).or_default().push(i);
    }
    let mut sets: Vec<_> = members.into_values().filter(|set| set.len() > 1).collect();
    sets.sort_unstable();
    (sets, rounds)
}

/// Functions whose pointers would lead to new code and that run by them more often than by direct calls.
fn mostly_by_pointers(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    calls: &[Call],
) -> FxHashSet<u32> {
    if !program.refs.kept {
        return FxHashSet::default();
    }
    let sites = |c: &Counted<'_>| {
        let function = c.function;
        let sites = c.analysed.cfg.sites.iter();
        sites.map(move |s| (function, s.at)).collect::<Vec<_>>()
    };
    let sites: FxHashSet<(u32, u64)> = counted.iter().flat_map(sites).collect();
    let mut direct: FxHashMap<u32, u64> = FxHashMap::default();
    for call in calls.iter().filter(|c| !sites.contains(&(c.caller, c.at))) {
        let count = direct.entry(call.callee).or_default();
        *count = count.saturating_add(call.count);
    }
    let by_pointers = |c: &&Counted<'_>| {
        let direct = direct.get(&c.function).copied().unwrap_or(0);
        program.functions[c.function as usize].address_taken
            && program.may_follow(program.start(c.function as usize))
            && c.entries.saturating_sub(direct) > direct
    };
    counted
        .iter()
        .filter(by_pointers)
        .map(|c| c.function)
        .collect()
}

/// Whether the counts of two functions are of the same blocks and edges.
fn is_alike(a: &Counted<'_>, b: &Counted<'_>) -> bool {
    let size = |c: &Counted<'_>| {
        let cfg = &c.analysed.cfg;
        (cfg.blocks.len(), cfg.succs.len())
    };
    size(a) == size(b)
}

/// Adds the counts of a function to those of the one that stands for it.
fn add(to: &mut Counted<'_>, counts: &Counts, entries: u64) {
    let all = |to: &mut [u64], from: &[u64]| {
        for (a, b) in to.iter_mut().zip(from) {
            *a = a.saturating_add(*b);
        }
    };
    all(&mut to.counts.blocks, &counts.blocks);
    all(&mut to.counts.succs, &counts.succs);
    for (block, n) in &counts.out {
        let out = to.counts.out.entry(*block).or_default();
        *out = out.saturating_add(*n);
    }
    to.counts.inconsistent = to.counts.inconsistent.saturating_add(counts.inconsistent);
    to.entries = to.entries.saturating_add(entries);
}

/// Tells calls by and of folded functions of those that stand for them. Calls through pointers go by the old entry.
fn move_calls(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    into: &[Option<usize>],
    calls: &mut Vec<Call>,
) {
    let folded = counted.iter().zip(into);
    let folded: FxHashMap<u32, (&Counted<'_>, &Counted<'_>)> = folded
        .filter_map(|(c, first)| Some((c.function, (c, &counted[(*first)?]))))
        .collect();
    if folded.is_empty() {
        return;
    }
    let mut sites: FxHashSet<(u32, u64)> = FxHashSet::default();
    for c in counted {
        sites.extend(c.analysed.cfg.sites.iter().map(|s| (c.function, s.at)));
    }
    let mut known: FxHashMap<(u32, BlockId, u64, u64), usize> = FxHashMap::default();
    let mut moved: Vec<Call> = Vec::with_capacity(calls.len());
    for mut call in calls.drain(..) {
        let direct = !sites.contains(&(call.caller, call.at));
        if let Some((_, other)) = folded.get(&call.callee)
            && direct
            && call.target == program.start(call.callee as usize)
        {
            call.callee = other.function;
            call.target = program.start(other.function as usize);
        }
        if let Some((own, other)) = folded.get(&call.caller) {
            let start = |c: &Counted<'_>| c.analysed.cfg.blocks[call.block as usize].start;
            call.at = call.at.wrapping_sub(start(own)).wrapping_add(start(other));
            call.caller = other.function;
        }
        let key = (call.caller, call.block, call.at, call.target);
        match known.get(&key) {
            Some(k) => moved[*k].count = moved[*k].count.saturating_add(call.count),
            None => {
                known.insert(key, moved.len());
                moved.push(call);
            }
        }
    }
    *calls = moved;
}

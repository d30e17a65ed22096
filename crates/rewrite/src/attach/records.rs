//! Records of branches and runs, fitted to the flow graphs of functions.
//!
//! Records within a function are counts of edges, records between functions are calls and entries. The counts
//! are balanced ([`Evidence::solve`]).
//!
//! Which records within a function fit its flow graph:
//!
//! | record | meaning |
//! |---|---|
//! | from an instruction of a block to the start of a block that it leads to | that edge |
//! | likewise, where the block leads there only through blocks that a call ends or a jump alone | the edges on the way |
//! | to a no-op in front of a block's first real instruction, or after a block's last | the block that follows |
//! | over a next block that leads only there | both edges |
//! | from a place to itself; from a block that leads nowhere; from a call or an indirect jump to an entry | nothing for the graph |
//! | anything else | does not fit: the code was another |
//!
//! A function of which a good part does not fit was built from other code. Of its records those that fit are
//! kept as evidence of a stale profile if they are the greater part; else the function is left without a
//! profile.

//!
//! A run between two branches counts the edges from block to block that it goes over, in BOLT's blocks; or
//! none of them, if it would go where the code does not.

use std::collections::{BTreeMap, BTreeSet};

use postlink_flow::infer::{Inference, Prices};
use postlink_isa::{Flow, Isa};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::analyse::bolt_blocks::BoltBlocks;
use crate::analyse::{Analysed, Scratch, prepare};
use crate::attach::account::Account;
use crate::attach::evidence::Evidence;
use crate::attach::lookup::function_at;
use crate::attach::sampled;
use crate::attach::{Attached, Outcome};
use crate::cfg::{BlockId, Cfg, Term};
use crate::discover::{NonlocalExits, Program};

/// A record between addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record {
    /// Function that it is evidence of.
    pub function: u32,
    pub from: u64,
    pub to: u64,
    /// It arrives in another function, or at an entry.
    pub leaves: bool,
    /// It comes from elsewhere.
    pub enters: bool,
    pub count: u64,
}

/// Code that ran without a taken branch, in one part of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    /// The function.
    pub function: u32,
    /// Where control arrived.
    pub from: u64,
    /// The branch at the end.
    pub to: u64,
    /// It arrived from another function.
    pub foreign: bool,
    pub count: u64,
}

/// Notes a branch that was taken so often: link-time addresses, `None` outside of the program.
pub(super) fn push_branch(
    program: &Program<'_>,
    from: Option<u64>,
    to: Option<u64>,
    count: u64,
    records: &mut Vec<Record>,
) {
    let source = from.and_then(|a| function_at(program, a));
    let target = to.and_then(|a| function_at(program, a));
    let (from, to) = (from.unwrap_or(0), to.unwrap_or(0));
    let record = |function, leaves, enters| Record {
        function,
        from,
        to,
        leaves,
        enters,
        count,
    };
    match (source, target) {
        (Some(s), Some(t)) if s == t => records.push(record(s, false, false)),
        (s, t) => {
            if let Some(s) = s {
                records.push(record(s, true, false));
            }
            if let Some(t) = t {
                records.push(record(t, false, true));
            }
        }
    }
}

/// Notes samples of an address.
pub(super) fn push_sample(
    program: &Program<'_>,
    at: Option<u64>,
    count: u64,
    records: &mut Vec<Record>,
) {
    if let Some((function, at)) = at.and_then(|a| Some((function_at(program, a)?, a))) {
        records.push(Record {
            function,
            from: at,
            to: at,
            leaves: false,
            enters: false,
            count,
        });
    }
}

/// What is known of how records were made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    /// They are samples of addresses, not of branches.
    pub weigh: Option<CountWeight>,
    /// They are of this very code, so what does not fit is an accident.
    pub same_code: bool,
}

/// Finds counts for all functions that have records or runs, which are sorted by function.
pub(super) fn attach_all<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    mut records: Vec<Record>,
    runs: &[Run],
    made: Made,
    mut account: Account,
) -> Attached<'d> {
    records.par_sort_unstable();
    let of_records = records.chunk_by(|a, b| a.function == b.function);
    let of_runs = runs.chunk_by(|a, b| a.function == b.function);
    let mut groups: BTreeMap<u32, (&[Record], &[Run])> = BTreeMap::new();
    for group in of_records {
        groups.entry(group[0].function).or_default().0 = group;
    }
    for group in of_runs {
        groups.entry(group[0].function).or_default().1 = group;
    }
    account.functions = groups.len() as u64;
    let groups: Vec<_> = groups.into_iter().collect();
    if let Some(weigh @ (CountWeight::Instructions | CountWeight::Time)) = made.weigh {
        let done = sampled::attach_all::<I>(program, nonlocal_exits, &groups, weigh);
        return Attached::gather(program, done, account);
    }
    let done: Vec<Outcome<'d>> = postlink_parallel::map_with(
        &groups,
        || (Scratch::default(), Inference::default()),
        |(scratch, inference), (function, group)| {
            attach_function::<I>(
                program,
                nonlocal_exits,
                *function,
                *group,
                made,
                scratch,
                inference,
            )
        },
    );
    Attached::gather(program, done, account)
}

/// How samples become counts of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) enum CountWeight {
    /// Samples come at instructions: a block has as many as it has instructions.
    Instructions,
    /// Samples come at points in time: the same, but for what takes longer.
    Time,
    /// Samples come at calls or branches.
    Calls,
}

impl CountWeight {
    /// By the names of the events.
    pub(super) fn of(events: &BTreeSet<Vec<u8>>) -> CountWeight {
        let has = |what: &[u8]| {
            events
                .iter()
                .any(|e| e.windows(what.len()).any(|w| w == what))
        };
        if has(b"branch") && !has(b"cycles") && !has(b"instructions") {
            CountWeight::Calls
        } else if has(b"instructions") && !has(b"cycles") && !has(b"clock") {
            CountWeight::Instructions
        } else {
            CountWeight::Time
        }
    }
}

/// Attaches the records of one function.
fn attach_function<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    function: u32,
    (records, runs): (&[Record], &[Run]),
    Made { weigh, same_code }: Made,
    scratch: &mut Scratch,
    inference: &mut Inference,
) -> Outcome<'d> {
    let mut out = Outcome::default();
    let total = records.iter().map(|r| r.count).fold(0, u64::saturating_add);
    out.account.records = records.len() as u64;
    out.account.counts = total;
    let analysed = match prepare::analyse::<I>(program, nonlocal_exits, function as usize, scratch)
    {
        Ok(analysed) => analysed,
        Err(pin) => {
            out.pin = Some((function, pin));
            out.account.pinned += 1;
            return out;
        }
    };
    let places = Places::new(&analysed.cfg);
    let prices = if weigh.is_some() {
        Prices::BLOCKS
    } else {
        Prices::SAMPLED
    };
    let mut evidence = Evidence::new(&analysed.cfg, prices);
    let mut fitted = MatchedRecords::default();
    match weigh {
        Some(weigh) => {
            samples::<I>(program, &analysed, &places, records, weigh, &mut evidence);
        }
        None => {
            fitted = branches::<I>(program, &analysed, &places, records, &mut evidence);
            fit_runs::<I>(
                program,
                &analysed.cfg,
                &places,
                runs,
                &mut evidence,
                &mut fitted,
            );
        }
    }
    out.account.records += fitted.run_records;
    out.account.counts = out.account.counts.saturating_add(fitted.run_counts);
    out.account.impossible_runs = fitted.impossible;
    out.calls = fitted.indirect;
    out.account.bad_records = fitted.bad;
    out.account.bad_counts = fitted.bad_counts;
    if fitted.bad > 0 && !same_code {
        out.account.stale += 1;
        evidence.prices = Prices::STALE;
        // Less than half of what was counted inside of it fits.
        if fitted.bad_counts > fitted.good_counts {
            out.account.dropped += 1;
            out.calls.clear();
            return out;
        }
    } else if weigh.is_none() && fitted.good > 0 {
        let joined = |b: BlockId| places.blocks.run(places.blocks.of[b as usize]).end() != &b;
        evidence.close(&analysed.cfg, fitted.falls, joined);
    }
    let counted = evidence.solve(function, analysed, inference);
    if counted.counts.blocks.iter().any(|c| *c > 0) {
        out.account.attached += 1;
        out.counted = Some(counted);
    }
    out
}

/// Blocks by address.
pub(super) struct Places {
    starts: Vec<(u64, BlockId)>,
    blocks: BoltBlocks,
}

impl Places {
    pub(super) fn new(cfg: &Cfg) -> Places {
        let mut starts: Vec<(u64, BlockId)> = cfg
            .blocks
            .iter()
            .enumerate()
            .map(|(i, b)| (b.start, i as BlockId))
            .collect();
        starts.sort_unstable();
        Places {
            starts,
            blocks: BoltBlocks::new(cfg),
        }
    }

    /// The block that covers an address.
    fn covering(&self, cfg: &Cfg, address: u64) -> Option<BlockId> {
        let i = self
            .starts
            .partition_point(|s| s.0 <= address)
            .checked_sub(1)?;
        let b = self.starts[i].1;
        (address < cfg.blocks[b as usize].end).then_some(b)
    }

    /// The block that control reaches by arriving at an address.
    fn arriving<I: Isa>(&self, program: &Program<'_>, cfg: &Cfg, address: u64) -> Option<BlockId> {
        let b = self.covering(cfg, address)?;
        let block = &cfg.blocks[b as usize];
        if block.start == address {
            return Some(b);
        }
        let only_nops = |from: u64, to: u64| {
            let mut only = true;
            if let Some(bytes) = program.elf.bytes_at(from, to - from) {
                I::sweep(bytes, from, |insn| {
                    only &= insn.traits.nop;
                    only
                });
            }
            only
        };
        if only_nops(block.start, address) {
            Some(b)
        } else if block.term == Term::Fall && only_nops(address, block.end) {
            cfg.succs(b).first().copied()
        } else {
            None
        }
    }
}

/// What of the records within a function fits.
#[derive(Default)]
struct MatchedRecords {
    good: u64,
    good_counts: u64,
    bad: u64,
    bad_counts: u64,
    /// Some record runs into the next block.
    falls: bool,
    /// Edges that runs went over, each as often as there is a run.
    run_records: u64,
    /// The sum of their counts.
    run_counts: u64,
    /// Runs that the code does not allow.
    impossible: u64,
    indirect: Vec<(BlockId, u64, u64, u64)>,
}

fn branches<I: Isa>(
    program: &Program<'_>,
    analysed: &Analysed<'_>,
    places: &Places,
    records: &[Record],
    evidence: &mut Evidence,
) -> MatchedRecords {
    let cfg = &analysed.cfg;
    let mut out = MatchedRecords::default();
    // Addresses of the instructions that call or jump through registers and memory.
    let sites: FxHashMap<u64, BlockId> = cfg.recorded().map(|s| (s.at, s.block)).collect();
    let bad = |r: &Record, out: &mut MatchedRecords| {
        out.bad += 1;
        out.bad_counts = out.bad_counts.saturating_add(r.count);
    };
    for r in records {
        if r.enters {
            // A return or an exception arrives in the middle: no entry.
            if let Some(b) = places.covering(cfg, r.to)
                && cfg.blocks[b as usize].entry
                && cfg.blocks[b as usize].start == r.to
            {
                let slot = evidence.entries.entry(b).or_default();
                *slot = slot.saturating_add(r.count);
            }
            continue;
        }
        let Some(from) = places.covering(cfg, r.from) else {
            bad(r, &mut out);
            continue;
        };
        if r.leaves {
            if let Some(block) = sites.get(&r.from) {
                out.indirect.push((*block, r.from, r.to, r.count));
            }
            let block = &cfg.blocks[from as usize];
            if matches!(block.term, Term::CondOut { .. } | Term::ShortCondOut { .. })
                && r.from == block.term_at
            {
                let slot = evidence.out.entry(from).or_default();
                *slot = slot.saturating_add(r.count);
            }
            if let Some(e) = to_tail_call(cfg, from, r) {
                evidence.add_edge(e, r.count);
            }
            continue;
        }
        match match_record::<I>(program, cfg, places, r, from) {
            Matched::Edges(edges, falls) => {
                out.good += 1;
                out.good_counts = out.good_counts.saturating_add(r.count);
                out.falls |= falls;
                for e in edges {
                    evidence.add_edge(e, r.count);
                }
            }
            Matched::Entry(b) => {
                let slot = evidence.entries.entry(b).or_default();
                *slot = slot.saturating_add(r.count);
                if let Some(block) = sites.get(&r.from) {
                    out.indirect.push((*block, r.from, r.to, r.count));
                }
            }
            Matched::Nothing => {}
            Matched::Bad => bad(r, &mut out),
        }
    }
    out
}

/// What a record within a function represents.
enum Matched {
    /// These edges; and whether it runs into the next block.
    Edges(Vec<usize>, bool),
    /// A call or jump to one of its own entries.
    Entry(BlockId),
    Nothing,
    Bad,
}

/// The edge from a block to another.
fn edge(cfg: &Cfg, b: BlockId, to: BlockId) -> Option<usize> {
    let k = cfg.succs(b).iter().position(|s| *s == to)?;
    Some(cfg.blocks[b as usize].succ as usize + k)
}

/// The edge to a jump out of the function that a conditional branch was led past: the branch leaves at once then.
fn to_tail_call(cfg: &Cfg, b: BlockId, r: &Record) -> Option<usize> {
    let block = &cfg.blocks[b as usize];
    if !matches!(block.term, Term::Cond { .. }) || r.from != block.term_at {
        return None;
    }
    let leaves = |s: &BlockId| {
        let jump = &cfg.blocks[*s as usize];
        jump.start == jump.term_at && jump.term == Term::JumpOut { target: r.to }
    };
    edge(cfg, b, *cfg.succs(b).iter().find(|s| leaves(s))?)
}

/// Whether a block runs into another without a jump.
fn falls(cfg: &Cfg, b: BlockId, to: BlockId) -> bool {
    matches!(
        cfg.blocks[b as usize].term,
        Term::Fall | Term::Cond { .. } | Term::ShortCond | Term::CondOut { .. }
    ) && cfg.succs(b).last() == Some(&to)
}

/// Counts the edges that runs went over.
fn fit_runs<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    places: &Places,
    runs: &[Run],
    evidence: &mut Evidence,
    out: &mut MatchedRecords,
) {
    for run in runs {
        let Some(edges) = edges_of_run::<I>(program, cfg, places, run) else {
            out.impossible = out.impossible.saturating_add(run.count);
            continue;
        };
        for (b, to, e) in edges {
            out.good += 1;
            out.good_counts = out.good_counts.saturating_add(run.count);
            out.run_records += 1;
            out.run_counts = out.run_counts.saturating_add(run.count);
            out.falls |= falls(cfg, b, to);
            evidence.add_edge(e, run.count);
        }
    }
}

/// The edges from one of BOLT's blocks to the next on a run: source, target, number. Those inside of a block
/// are not its own, as a call ended the run there. `None` if the code does not allow such a run.
fn edges_of_run<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    places: &Places,
    run: &Run,
) -> Option<Vec<(BlockId, BlockId, usize)>> {
    let blocks = &places.blocks;
    let of = |address: u64| Some(blocks.of[places.covering(cfg, address)? as usize]);
    let (mut at, last) = (of(run.from)?, of(run.to)?);
    let step = |b: u32| {
        let (from, to) = (
            blocks.blocks[b as usize].last,
            blocks.blocks.get(b as usize + 1)?.first,
        );
        let same_part = cfg.blocks[from as usize].piece == cfg.blocks[to as usize].piece;
        Some((from, to, edge(cfg, from, to).filter(|_| same_part)?))
    };
    // After a call: it is the call's return, and the block with the call continues.
    let first = &cfg.blocks[blocks.blocks[at as usize].first as usize];
    if run.foreign
        && run.from == first.start
        && !first.entry
        && !first.landing_pad
        && let Some(before) = at.checked_sub(1)
        && let Some((from, ..)) = step(before)
        && ends_in_call::<I>(program, cfg, from)
    {
        at = before;
    }
    if run.from > run.to || at > last {
        return None;
    }
    (at..last).map(step).collect()
}

/// Whether a block's last instruction calls, or leaves the function by a condition.
fn ends_in_call<I: Isa>(program: &Program<'_>, cfg: &Cfg, b: BlockId) -> bool {
    let block = &cfg.blocks[b as usize];
    if matches!(block.term, Term::CondOut { .. } | Term::ShortCondOut { .. }) {
        return true;
    }
    let mut calls = false;
    if let Some(bytes) = program.elf.bytes_at(block.start, block.end - block.start) {
        I::sweep(bytes, block.start, |insn| {
            calls = matches!(insn.flow, Flow::Call { .. } | Flow::IndirectCall);
            true
        });
    }
    calls
}

fn match_record<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    places: &Places,
    r: &Record,
    from: BlockId,
) -> Matched {
    let Some(to) = places.arriving::<I>(program, cfg, r.to) else {
        return if r.from == r.to {
            Matched::Nothing
        } else {
            Matched::Bad
        };
    };
    let edge = |b: BlockId, to: BlockId| edge(cfg, b, to);
    let falls = |b: BlockId, to: BlockId| falls(cfg, b, to);
    // The blocks of BOLT's block from here on, each with the way to it.
    let mut way = Vec::new();
    let run = places.blocks.run(places.blocks.of[from as usize]);
    for b in from..=*run.end() {
        if let Some(e) = edge(b, to) {
            let falls = falls(b, to);
            way.push(e);
            return Matched::Edges(way, falls);
        }
        if b < *run.end() {
            match edge(b, b + 1) {
                Some(e) => way.push(e),
                None => break,
            }
        }
    }
    // A recursive call, or a tail call of itself.
    if cfg.blocks[to as usize].entry
        && cfg.blocks[to as usize].start == r.to
        && calls::<I>(program, cfg, from, r.from)
    {
        return Matched::Entry(to);
    }
    if r.from == r.to || cfg.succs(from).is_empty() && cfg.succs(*run.end()).is_empty() {
        return Matched::Nothing;
    }
    // Over a block that only goes there; or past a jump alone, in code whose branches were led past it.
    let last = *run.end();
    for middle in cfg.succs(last) {
        let block = &cfg.blocks[*middle as usize];
        let jump_alone = block.start == block.term_at && block.term == Term::Jump;
        if let [only] = cfg.succs(*middle)
            && *only == to
            && let (Some(a), Some(b)) = (edge(last, *middle), edge(*middle, to))
            && (falls(last, *middle) || jump_alone)
        {
            return Matched::Edges(vec![a, b], falls(last, *middle));
        }
    }
    Matched::Bad
}

/// Whether the instruction at an address calls, or jumps to what is not written in it.
fn calls<I: Isa>(program: &Program<'_>, cfg: &Cfg, b: BlockId, at: u64) -> bool {
    let block = &cfg.blocks[b as usize];
    let mut calls = false;
    if at < block.end
        && let Some(bytes) = program.elf.bytes_at(at, block.end - at)
    {
        I::sweep(bytes, at, |insn| {
            calls = matches!(
                insn.flow,
                Flow::Call { .. } | Flow::IndirectCall | Flow::IndirectJump
            );
            false
        });
    }
    calls
}

/// Counts of blocks from samples of addresses: a thousand for each sample by instruction, as BOLT does it.
pub(super) fn samples<I: Isa>(
    program: &Program<'_>,
    analysed: &Analysed<'_>,
    places: &Places,
    records: &[Record],
    weigh: CountWeight,
    evidence: &mut Evidence,
) {
    let cfg = &analysed.cfg;
    let blocks = &places.blocks;
    let mut sums = vec![0u64; blocks.blocks.len()];
    for r in records {
        if let Some(b) = places.covering(cfg, r.from) {
            let sum = &mut sums[blocks.of[b as usize] as usize];
            *sum = sum.saturating_add(r.count);
        }
    }
    for (b, sum) in sums.iter().enumerate() {
        let run = blocks.blocks[b];
        let from = cfg.blocks[run.first as usize].start;
        let to = cfg.blocks[run.last as usize].end;
        let (mut insns, mut calls) = (0u64, 0u64);
        if let Some(bytes) = program.elf.bytes_at(from, to - from) {
            I::sweep(bytes, from, |insn| {
                insns += u64::from(!insn.traits.nop);
                calls += u64::from(matches!(insn.flow, Flow::Call { .. } | Flow::IndirectCall));
                true
            });
        }
        let parts = match weigh {
            CountWeight::Instructions | CountWeight::Time => insns.max(1),
            CountWeight::Calls => calls + 1,
        };
        let count = u128::from(*sum) * 1000 / u128::from(parts);
        evidence.blocks[run.first as usize] = Some(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

//! A profile by names (fdata, aggregated samples) attached to a program.
//!
//! 1. Names are looked up among all that a symbol can be called by ([`crate::names`]). What is not found is tried again by what
//!    link-time optimisation leaves of a name, and by the name without its number, if only one function answers to it.
//! 2. Records within a function are counts of edges, records between functions are calls and entries.
//! 3. The counts are balanced ([`Evidence::solve`]).
//!
//! Which records within a function fit its flow graph:
//!
//! | record | meaning |
//! |---|---|
//! | from an instruction of a block to the start of a block that it leads to | that edge |
//! | likewise, where the block leads there only through blocks that a call ends or a jump alone | the edges on the way |
//! | to a no-op in front of a block's first real instruction, or behind a block's last | the block that follows |
//! | over a next block that leads only there | both edges |
//! | from a place to itself; from a block that leads nowhere; from a call or an indirect jump to an entry | nothing for the graph |
//! | anything else | does not fit: the code was another |
//!
//! A function of which a good part does not fit was built from other code. Of its records those that fit are kept as evidence of a stale
//! profile if they are the greater part; else the function is left without a profile.

use postlink_flow::infer::{Inference, Prices};
use postlink_isa::{Flow, Isa};
use postlink_profile::symbolic::{Branch, Location, NameId, SymbolicProfile};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::attach::account::Account;
use crate::attach::evidence::Evidence;
use crate::attach::lookup::{Lookup, function_at};
use crate::attach::{Attached, Outcome};
use crate::bolt_blocks::BoltBlocks;
use crate::cfg::{BlockId, Cfg, Term};
use crate::discover::Program;
use crate::leaks::Leaks;
use crate::prepare::{self, Analysed, Scratch};

/// A record between addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    /// Function that it is evidence of.
    function: u32,
    from: u64,
    to: u64,
    /// It arrives in another function, or at an entry.
    leaves: bool,
    /// It comes from elsewhere.
    enters: bool,
    count: u64,
}

/// Attaches a profile.
pub fn attach<'d, I: Isa>(
    program: &Program<'d>,
    leaks: &Leaks,
    profile: &SymbolicProfile,
) -> Attached<'d> {
    let lookup = Lookup::of_names(program, profile.names().iter());
    let mut account = Account {
        unknown_names: lookup.unknown.len() as u64,
        examples: lookup.examples(),
        renamed: lookup.similar,
        ..Account::default()
    };
    let place = |l: Location| -> Option<u64> {
        let base = l.in_symbol.then(|| lookup.address(l.name)).flatten()?;
        base.checked_add(l.offset)
    };
    let by_samples = profile.collection.is_some_and(|c| !c.branches);
    let mut records: Vec<Record> = Vec::new();
    let missing = |l: Location, count: u64, account: &mut Account| {
        if l.in_symbol && lookup.is_unknown(l.name) {
            account.lost_records += 1;
            account.lost_counts = account.lost_counts.saturating_add(count);
        }
    };
    for b in profile.branches() {
        missing(
            if b.from.in_symbol { b.from } else { b.to },
            b.count,
            &mut account,
        );
        push_branch(program, b, place(b.from), place(b.to), &mut records);
    }
    for s in profile.samples() {
        missing(s.at, s.count, &mut account);
        if let Some((function, at)) = place(s.at).and_then(|a| Some((function_at(program, a)?, a)))
        {
            records.push(Record {
                function,
                from: at,
                to: at,
                leaves: false,
                enters: false,
                count: s.count,
            });
        }
    }
    records.par_sort_unstable();
    // Whether what runs into the next block was recorded is a property of the whole profile.
    let groups: Vec<&[Record]> = records.chunk_by(|a, b| a.function == b.function).collect();
    account.functions = groups.len() as u64;
    let weigh = match by_samples {
        true => Some(Weigh::of(profile)),
        false => None,
    };
    let done: Vec<Outcome<'d>> = groups
        .par_iter()
        .map_init(
            || (Scratch::default(), Inference::default()),
            |(scratch, room), group| one::<I>(program, leaks, group, weigh, scratch, room),
        )
        .collect();
    Attached::gather(program, done, account)
}

fn push_branch(
    program: &Program<'_>,
    b: &Branch,
    from: Option<u64>,
    to: Option<u64>,
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
        count: b.count,
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

/// How samples become counts of blocks.
#[derive(Clone, Copy, Debug)]
enum Weigh {
    /// Samples come at instructions or points in time: a block has as many as it has instructions.
    ByInstructions,
    /// Samples come at calls or branches.
    ByCalls,
}

impl Weigh {
    fn of(profile: &SymbolicProfile) -> Weigh {
        let has = |what: &[u8]| {
            profile
                .events
                .iter()
                .any(|e| e.windows(what.len()).any(|w| w == what))
        };
        match has(b"branch") && !has(b"cycles") && !has(b"instructions") {
            true => Weigh::ByCalls,
            false => Weigh::ByInstructions,
        }
    }
}

/// Attaches the records of one function.
fn one<'d, I: Isa>(
    program: &Program<'d>,
    leaks: &Leaks,
    records: &[Record],
    weigh: Option<Weigh>,
    scratch: &mut Scratch,
    room: &mut Inference,
) -> Outcome<'d> {
    let mut out = Outcome::default();
    let Some(function) = records.first().map(|r| r.function) else {
        return out;
    };
    let total = records.iter().map(|r| r.count).fold(0, u64::saturating_add);
    out.account.records = records.len() as u64;
    out.account.counts = total;
    let analysed = match prepare::analyse::<I>(program, leaks, function as usize, scratch) {
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
    let mut fitted = Fitted::default();
    match weigh {
        Some(weigh) => samples::<I>(program, &analysed, &places, records, weigh, &mut evidence),
        None => fitted = branches::<I>(program, &analysed, &places, records, &mut evidence),
    }
    out.calls = fitted.indirect;
    out.account.bad_records = fitted.bad;
    out.account.bad_counts = fitted.bad_counts;
    if fitted.bad > 0 {
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
    let counted = evidence.solve(function, analysed, room);
    if counted.counts.blocks.iter().any(|c| *c > 0) {
        out.account.attached += 1;
        out.counted = Some(counted);
    }
    out
}

/// Blocks by address.
struct Places {
    starts: Vec<(u64, BlockId)>,
    blocks: BoltBlocks,
}

impl Places {
    fn new(cfg: &Cfg) -> Places {
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
struct Fitted {
    good: u64,
    good_counts: u64,
    bad: u64,
    bad_counts: u64,
    /// Some record runs into the next block.
    falls: bool,
    indirect: Vec<(BlockId, u64, u64, u64)>,
}

fn branches<I: Isa>(
    program: &Program<'_>,
    analysed: &Analysed<'_>,
    places: &Places,
    records: &[Record],
    evidence: &mut Evidence,
) -> Fitted {
    let cfg = &analysed.cfg;
    let mut out = Fitted::default();
    // Addresses of the instructions that call or jump through registers and memory.
    let sites: FxHashMap<u64, BlockId> = cfg.recorded().map(|s| (s.at, s.block)).collect();
    let bad = |r: &Record, out: &mut Fitted| {
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
            continue;
        }
        match within::<I>(program, cfg, places, r, from) {
            Way::Edges(edges, falls) => {
                out.good += 1;
                out.good_counts = out.good_counts.saturating_add(r.count);
                out.falls |= falls;
                for e in edges {
                    evidence.add_edge(e, r.count);
                }
            }
            Way::Entry(b) => {
                let slot = evidence.entries.entry(b).or_default();
                *slot = slot.saturating_add(r.count);
                if let Some(block) = sites.get(&r.from) {
                    out.indirect.push((*block, r.from, r.to, r.count));
                }
            }
            Way::Nothing => {}
            Way::Bad => bad(r, &mut out),
        }
    }
    out
}

/// What a record within a function stands for.
enum Way {
    /// These edges; and whether it runs into the next block.
    Edges(Vec<usize>, bool),
    /// A call or jump to one of its own entries.
    Entry(BlockId),
    Nothing,
    Bad,
}

fn within<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    places: &Places,
    r: &Record,
    from: BlockId,
) -> Way {
    let Some(to) = places.arriving::<I>(program, cfg, r.to) else {
        return if r.from == r.to {
            Way::Nothing
        } else {
            Way::Bad
        };
    };
    let edge = |b: BlockId, to: BlockId| {
        let k = cfg.succs(b).iter().position(|s| *s == to)?;
        Some(cfg.blocks[b as usize].succ as usize + k)
    };
    let falls = |b: BlockId, to: BlockId| {
        matches!(
            cfg.blocks[b as usize].term,
            Term::Fall | Term::Cond { .. } | Term::ShortCond | Term::CondOut { .. }
        ) && cfg.succs(b).last() == Some(&to)
    };
    // The blocks of BOLT's block from here on, each with the way to it.
    let mut way = Vec::new();
    let run = places.blocks.run(places.blocks.of[from as usize]);
    for b in from..=*run.end() {
        if let Some(e) = edge(b, to) {
            let falls = falls(b, to);
            way.push(e);
            return Way::Edges(way, falls);
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
        return Way::Entry(to);
    }
    if r.from == r.to || cfg.succs(from).is_empty() && cfg.succs(*run.end()).is_empty() {
        return Way::Nothing;
    }
    // Over a block that only goes there.
    let last = *run.end();
    for middle in cfg.succs(last) {
        if let [only] = cfg.succs(*middle)
            && *only == to
            && let (Some(a), Some(b)) = (edge(last, *middle), edge(*middle, to))
            && falls(last, *middle)
        {
            return Way::Edges(vec![a, b], true);
        }
    }
    Way::Bad
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
fn samples<I: Isa>(
    program: &Program<'_>,
    analysed: &Analysed<'_>,
    places: &Places,
    records: &[Record],
    weigh: Weigh,
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
            Weigh::ByInstructions => insns.max(1),
            Weigh::ByCalls => calls + 1,
        };
        let count = u128::from(*sum) * 1000 / u128::from(parts);
        evidence.blocks[run.first as usize] = Some(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

/// Numbers of names, for [`Lookup`].
impl super::lookup::Key for NameId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

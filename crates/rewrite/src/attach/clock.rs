//! Counts from samples that come at points in time.
//!
//! # The problem
//!
//! A clock's samples are proportional to how long code takes. Most of those of a server are at a few instructions
//! that wait for memory; a block of one or two instructions next to them may have none, however often it runs. What
//! differs least from such numbers ([`postlink_flow::infer`]) takes waiting for running.
//!
//! # The idea
//!
//! The likeliest counts ([`postlink_flow::likely`]) by what branches mostly do ([`crate::analyse::predict`]) and by
//! samples of each instruction. On the programs of `bench/samples.md` the logarithm of a block's samples for each
//! instruction that it executed has a standard deviation of 0.7 (sqlite) to 1.8 (redis): a few instructions wait, and
//! processors retire several at once, of which the first has the samples of all. So instructions are asked one by one,
//! each of them with little to say, and not for the sum of a block's.
//!
//! What a function calls tells of its blocks as well, by samples of the called functions: [`super::sampled`].
//!
//! What instructions can say at most ([`TIME`]) and how far branches are from what is expected of them ([`DOUBT`]) were
//! chosen on sqlite, bash and perl alone, for taken branches; [`INSTRUCTIONS`] on all, of samples that were drawn, and
//! moved on a little.
//!
//! # Invariants
//!
//! * Blocks that no sample is near get counts all the same: above 0 only if that makes a thousandth of a sample.
//! * Where the graph is too large, evidence is what it was for samples of other kinds: counts of blocks.

use postlink_flow::likely::{Called, Counts, OUTSIDE, Observed, Way, likely};
use postlink_isa::Isa;

use crate::analyse::predict::Predictor;
use crate::attach::evidence::Evidence;
use crate::attach::records::Record;
use crate::cfg::{BlockId, Cfg, Term};
use crate::discover::Program;

/// How samples err: what one instruction can say at most ([`Observed`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Error {
    /// For its block having run less often.
    short: f64,
    /// For it having run more often.
    long: f64,
}

/// Samples of a clock, or of cycles.
pub(super) const TIME: Error = Error {
    short: 4.0,
    long: 1.5,
};
/// Samples of executed instructions, which come a little late: an instruction may have those of its neighbours.
pub(super) const INSTRUCTIONS: Error = Error {
    short: 16.0,
    long: 16.0,
};
/// The standard deviation of the logarithm of what branches do by what is expected of them: expectations are poor.
const DOUBT: f64 = 2.0;
/// Counts for each sample by instruction.
const UNIT: f64 = 1000.0;

/// A function with samples, and its likely counts.
pub(super) struct Sampled {
    seen: Vec<(BlockId, Observed)>,
    ways: Vec<Way>,
    /// In samples of an average instruction.
    counts: Counts,
}

impl Sampled {
    /// Of samples of a function's instructions, sorted by address. `None` if there are none, or the graph is too large.
    pub(super) fn of<I: Isa>(
        program: &Program<'_>,
        cfg: &Cfg,
        records: &[Record],
        error: Error,
    ) -> Option<Sampled> {
        let seen: Vec<(BlockId, Observed)> = (0..)
            .zip(&cfg.blocks)
            .filter_map(|(b, block)| {
                let observed = observed::<I>(program, (block.start, block.end), records, error)?;
                Some((b, observed))
            })
            .collect();
        let any = |o: &Observed| o.samples.iter().any(|n| *n > 0.0);
        if !seen.iter().any(|(_, o)| any(o)) {
            return None;
        }
        let ways = ways::<I>(program, cfg);
        let counts = likely(cfg.blocks.len(), &seen, &[], &ways)?;
        Some(Sampled { seen, ways, counts })
    }

    /// Counts that take account of the functions that it calls.
    pub(super) fn again(&self, called: &[Called]) -> Option<Counts> {
        likely(self.counts.blocks.len(), &self.seen, called, &self.ways)
    }

    /// Takes other counts.
    pub(super) fn set(&mut self, counts: Counts) {
        self.counts = counts;
    }

    /// How often a block runs.
    pub(super) fn runs(&self, b: BlockId) -> f64 {
        self.counts.blocks.get(b as usize).copied().unwrap_or(0.0)
    }

    /// How often the function is entered at its beginning.
    pub(super) fn entered(&self) -> f64 {
        let mut ways = self.ways.iter().zip(&self.counts.ways);
        let first = ways.find(|(way, _)| way.from == OUTSIDE && way.to == 0);
        first.map_or(0.0, |(_, count)| *count)
    }

    /// Takes the counts for evidence. They conserve flow but for rounding.
    pub(super) fn tell(&self, cfg: &Cfg, evidence: &mut Evidence) {
        take(cfg, &self.ways, &self.counts, evidence);
    }
}

/// What samples say of the code from one address to another.
fn observed<I: Isa>(
    program: &Program<'_>,
    (from, to): (u64, u64),
    records: &[Record],
    error: Error,
) -> Option<Observed> {
    let code = program.elf.bytes_at(from, to.checked_sub(from)?)?;
    let first = records.partition_point(|r| r.from < from);
    let mut next = records.get(first..)?.iter().peekable();
    // By instruction that does something; samples of one that does nothing are its successor's.
    let mut samples: Vec<f64> = Vec::new();
    let mut waiting = 0.0;
    I::sweep(code, from, |insn| {
        while let Some(r) = next.next_if(|r| r.from < insn.end()) {
            waiting += r.count as f64;
        }
        if !insn.traits.nop {
            samples.push(std::mem::take(&mut waiting));
        }
        true
    });
    Some(Observed {
        samples,
        short: error.short,
        long: error.long,
    })
}

/// The ways of a function with what is expected of them: those within it in the order of [`Cfg::succs`], then those in
/// and out.
fn ways<I: Isa>(program: &Program<'_>, cfg: &Cfg) -> Vec<Way> {
    let predictor = Predictor::new::<I>(program, cfg);
    let mut ways = Vec::with_capacity(cfg.succs.len() + cfg.blocks.len());
    for (b, block) in (0..).zip(&cfg.blocks) {
        let succs = cfg.succs(b);
        let taken = predictor.taken::<I>(program, b);
        for (k, to) in succs.iter().enumerate() {
            let share = match (block.term, taken) {
                (_, Some(taken)) if k == 0 => taken,
                (_, Some(taken)) => 1.0 - taken,
                (Term::CondOut { .. } | Term::ShortCondOut { .. }, _) => 0.7,
                (Term::Dispatch { .. }, _) => 1.0 / succs.len() as f64,
                _ if never_returns(cfg, b) => 0.001,
                _ => 1.0,
            };
            ways.push(Way {
                from: b,
                to: *to,
                share,
                doubt: DOUBT,
            });
        }
    }
    for (b, block) in (0..).zip(&cfg.blocks) {
        let mut push = |from, to, share| {
            ways.push(Way {
                from,
                to,
                share,
                doubt: DOUBT,
            });
        };
        if block.entry {
            push(OUTSIDE, b, if b == 0 { 1.0 } else { 0.05 });
        } else if block.landing_pad || block.returns_twice {
            push(OUTSIDE, b, 0.0005);
        }
        match block.term {
            Term::Return
            | Term::Stop
            | Term::JumpOut { .. }
            | Term::IndirectOut
            | Term::FallBack => push(b, OUTSIDE, 1.0),
            Term::Dispatch { leaves: true, .. } => push(b, OUTSIDE, 0.2),
            Term::CondOut { .. } | Term::ShortCondOut { .. } => push(b, OUTSIDE, 0.3),
            _ if block.nonlocal_exits => push(b, OUTSIDE, 0.0005),
            _ => {}
        }
    }
    ways
}

/// Whether a block ends in a call that never comes back.
fn never_returns(cfg: &Cfg, b: BlockId) -> bool {
    let block = &cfg.blocks[b as usize];
    block.nonlocal_exits && block.unlikely && block.term == Term::Fall
}

/// Takes likely counts for evidence.
fn take(cfg: &Cfg, ways: &[Way], counts: &Counts, evidence: &mut Evidence) {
    let whole = |count: f64| (count * UNIT) as u64;
    for (slot, count) in evidence.blocks.iter_mut().zip(&counts.blocks) {
        *slot = Some(whole(*count));
    }
    for (slot, count) in evidence.edges.iter_mut().zip(&counts.ways) {
        *slot = Some(whole(*count));
    }
    let others = ways.iter().zip(&counts.ways).skip(cfg.succs.len());
    for (way, count) in others {
        let block = |b: BlockId| cfg.blocks.get(b as usize);
        if way.from == OUTSIDE {
            if block(way.to).is_some_and(|b| b.entry) {
                evidence.entries.insert(way.to, whole(*count));
            }
        } else if let Some(Term::CondOut { .. } | Term::ShortCondOut { .. }) =
            block(way.from).map(|b| b.term)
        {
            evidence.out.insert(way.from, whole(*count));
        }
    }
}

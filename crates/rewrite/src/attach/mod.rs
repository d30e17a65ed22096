//! A profile attached to a program: counts for the blocks and edges of every function that ran.

use postlink_isa::Isa;
use postlink_profile::Profile;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::cfg::{BlockId, Term, Use};
use crate::counters::Counts;
use crate::discover::Program;
use crate::leaks::Leaks;
use crate::prepare::{self, Analysed, CounterMap, Scratch};

/// A function that ran, with its counts.
pub struct Counted<'d> {
    /// Index of the function.
    pub function: u32,
    /// Control flow, counters, unwind tables.
    pub analysed: Analysed<'d>,
    /// Counts.
    pub counts: Counts,
    /// How often it was entered.
    pub entries: u64,
}

/// A call from one function to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Calling function.
    pub caller: u32,
    /// Block of the call.
    pub block: BlockId,
    /// Input address of the call instruction (of its address field for direct calls).
    pub at: u64,
    /// Called function.
    pub callee: u32,
    /// Which of its entries.
    pub target: u64,
    /// How often.
    pub count: u64,
}

/// Checks that a profile belongs to a program's counters.
pub fn check(map: &CounterMap, profile: &Profile) -> Result<(), Error> {
    if let Some((what, ours, theirs)) = map.subject.difference(profile.subject()) {
        return Err(Error::Profile(format!(
            "the profile does not belong to this binary: {what} is {theirs} in the profile and {ours} in the binary; instrument this very file with this version of postlink"
        )));
    }
    if profile.is_empty() {
        return Err(Error::Profile(
            "the profile is empty: no instrumented code has run, or it ran with another profile file (POSTLINK_PROFILE)".into(),
        ));
    }
    Ok(())
}

/// Solves for every function that ran, in the order of functions.
pub fn attach<'d, I: Isa>(
    program: &Program<'d>,
    leaks: &Leaks,
    map: &CounterMap,
    profile: &Profile,
) -> Vec<Counted<'d>> {
    (0..program.functions.len())
        .into_par_iter()
        .map_init(Scratch::default, |scratch, f| {
            let share = &map.shares[f];
            let from = map.bases[f].0 as usize;
            let counters = profile
                .counters()
                .get(from..from + share.counters as usize)?;
            if counters.iter().all(|c| *c == 0) {
                return None;
            }
            let analysed = prepare::analyse::<I>(program, leaks, f, scratch).ok()?;
            let counts = analysed
                .placement
                .solve(&analysed.cfg, counters, &mut scratch.counters);
            let entries = analysed
                .cfg
                .blocks
                .iter()
                .enumerate()
                .filter(|(_, b)| b.entry)
                .map(|(b, _)| entered(&analysed, &counts, b as BlockId))
                .fold(0u64, u64::saturating_add);
            Some(Counted {
                function: f as u32,
                analysed,
                counts,
                entries,
            })
        })
        .flatten()
        .collect()
}

/// How often an entry block was entered from outside: what ran less what came from inside.
pub fn entered(a: &Analysed<'_>, counts: &Counts, b: BlockId) -> u64 {
    let inside: u64 = a
        .cfg
        .succs
        .iter()
        .zip(&counts.succs)
        .filter(|(s, _)| **s == b)
        .map(|x| *x.1)
        .fold(0, u64::saturating_add);
    counts.blocks[b as usize].saturating_sub(inside)
}

/// All calls with a count, direct and recorded, in a fixed order.
pub fn calls(
    program: &Program<'_>,
    map: &CounterMap,
    profile: &Profile,
    counted: &[Counted<'_>],
) -> Vec<Call> {
    let start_of: FxHashMap<u64, u32> = program
        .functions
        .iter()
        .enumerate()
        .flat_map(|(i, f)| {
            std::iter::once(program.pieces[f.pieces[0] as usize].start)
                .chain(f.entries.iter().copied())
                .map(move |a| (a, i as u32))
        })
        .collect();
    counted
        .par_iter()
        .flat_map_iter(|c| {
            let cfg = &c.analysed.cfg;
            let mut out = Vec::new();
            let mut push = |block: BlockId, at: u64, target: u64, count: u64| {
                if count > 0
                    && let Some(callee) = start_of.get(&target)
                {
                    out.push(Call {
                        caller: c.function,
                        block,
                        at,
                        callee: *callee,
                        target,
                        count,
                    });
                }
            };
            for b in 0..cfg.blocks.len() as BlockId {
                let n = c.counts.blocks[b as usize];
                if n == 0 {
                    continue;
                }
                for f in cfg.fields(b).iter().filter(|f| f.role == Use::Call) {
                    push(b, f.at, f.target, n);
                }
                let block = &cfg.blocks[b as usize];
                match block.term {
                    Term::JumpOut { target } => push(b, block.term_at, target, n),
                    Term::CondOut { target, .. } | Term::ShortCondOut { target } => {
                        push(
                            b,
                            block.term_at,
                            target,
                            c.counts.out.get(&b).copied().unwrap_or(0),
                        );
                    }
                    _ => {}
                }
            }
            for (k, s) in cfg.sites.iter().enumerate() {
                if let Some(site) = profile.site(map.bases[c.function as usize].1 + k as u64) {
                    for (target, count) in site.targets() {
                        push(s.block, s.at, *target, *count);
                    }
                }
            }
            out
        })
        .collect()
}

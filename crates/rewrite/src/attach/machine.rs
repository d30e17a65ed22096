//! A machine profile (`.mip`) attached to a program: what ran, in place of how often.
//!
//! A function that ran has counts, one that did not has none. Calls are known where they were counted, blocks
//! where block coverage was recorded; what is missing is made up from the shape of the code (how many loops
//! are around a block), which is good enough for the order of blocks. A block that never ran is cold for
//! certain.
//!
//! A profile of this very build (same build id) is matched by address. One of another build, as when the
//! instrumented program was compiled apart, is matched by names, and of its blocks only what fits: all
//! offsets must be starts of blocks here.

use postlink_isa::Isa;
use postlink_mip::{self as mip, Types};
use rustc_hash::FxHashMap;

use crate::analyse::counters::{Counts, estimate};
use crate::analyse::coverage_blocks::heads;
use crate::analyse::{Scratch, prepare};
use crate::attach::account::Account;
use crate::attach::lookup::{Index, Lookup, function_at};
use crate::attach::{Attached, Call, Counted, direct_calls, starts};
use crate::cfg::{BlockId, Cfg};
use crate::discover::{NonlocalExits, Program};
use crate::pin::Pin;

/// Counts that are made up stay below that, so that sums do.
const MOST: u64 = 1 << 40;

/// What becomes of one function.
enum Outcome<'d> {
    Counted(Box<Counted<'d>>),
    Pinned(u32, Pin),
}

/// Attaches a profile.
pub fn attach<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    profile: &mip::Profile,
) -> Attached<'d> {
    let elf = program.elf;
    let own = elf.build_id.map_or(0, mip::create::identity);
    let same_build = own != 0 && own == profile.identity;
    let base = elf
        .section(mip::create::RAW_SECTION)
        .map_or(0, |(_, section)| section.addr);
    let ran = || {
        let all = profile.functions.iter().enumerate();
        all.filter(|(_, f)| f.is_covered())
    };
    let mut account = Account::default();
    let lookup = (!same_build)
        .then(|| Lookup::of_names(program, ran().map(|(i, f)| (Index(i), f.name.as_slice()))));
    if let Some(lookup) = &lookup {
        account.unknown_names = lookup.unknown.len() as u64;
        account.examples = lookup.examples();
        account.renamed = lookup.similar;
    }
    // Function of the program to functions of the profile; same-named ones are added up.
    let mut found: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
    for (i, function) in ran() {
        account.records += 1;
        account.counts = account.counts.saturating_add(function.call_count.max(1));
        let address = match &lookup {
            Some(lookup) => lookup.address(Index(i)),
            None => Some(base.wrapping_add_signed(function.address)),
        };
        let here = address
            .and_then(|a| function_at(program, a).filter(|f| program.start(*f as usize) == a));
        match here {
            Some(f) => found.entry(f).or_default().push(i),
            None => {
                account.lost_records += 1;
                account.lost_counts = account
                    .lost_counts
                    .saturating_add(function.call_count.max(1));
            }
        }
    }
    account.functions = found.len() as u64;
    let mut list: Vec<(u32, Vec<usize>)> = found.into_iter().collect();
    list.sort_unstable();
    let done: Vec<Outcome<'d>> =
        postlink_parallel::map_with(&list, Scratch::default, |scratch, (f, of)| {
            match prepare::analyse::<I>(program, nonlocal_exits, *f as usize, scratch) {
                Err(pin) => Outcome::Pinned(*f, pin),
                Ok(analysed) => {
                    let entries = of
                        .iter()
                        .map(|i| profile.functions[*i].call_count.max(1))
                        .fold(0u64, u64::saturating_add);
                    let blocks = of.iter().map(|i| &profile.functions[*i]);
                    let start = program.start(*f as usize);
                    let counts = counts(&analysed.cfg, start, entries, blocks, profile.types);
                    Outcome::Counted(Box::new(Counted {
                        function: *f,
                        analysed,
                        counts,
                        entries,
                    }))
                }
            }
        });
    let mut counted = Vec::new();
    let mut pins = Vec::new();
    for outcome in done {
        match outcome {
            Outcome::Counted(one) => counted.push(*one),
            Outcome::Pinned(f, pin) => pins.push((f, pin)),
        }
    }
    account.attached = counted.len() as u64;
    account.pinned = pins.len() as u64;
    let calls = calls(program, profile, base, same_build, &counted);
    Attached {
        counted,
        calls,
        pins,
        account: Some(account),
    }
}

/// Counts of a function that was called `entries` times.
fn counts<'f>(
    cfg: &Cfg,
    start: u64,
    entries: u64,
    functions: impl Iterator<Item = &'f mip::Function>,
    types: Types,
) -> Counts {
    let mut covered: Option<Vec<bool>> = None;
    if types.has(Types::BLOCK_COVERAGE) {
        let index: FxHashMap<u64, BlockId> = (0u32..)
            .zip(&cfg.blocks)
            .map(|(b, block)| (block.start, b))
            .collect();
        for function in functions {
            let blocks = function.all_blocks();
            let at: Option<Vec<BlockId>> = blocks
                .iter()
                // A block in another piece has an offset that wraps.
                .map(|b| {
                    let plain = start.wrapping_add(b.offset.into());
                    let wrapped = start.wrapping_add_signed((b.offset as i32).into());
                    index.get(&plain).or_else(|| index.get(&wrapped)).copied()
                })
                .collect();
            let Some(at) = at else { continue };
            let flags = covered.get_or_insert_with(|| vec![false; cfg.blocks.len()]);
            for (b, block) in at.iter().zip(&blocks) {
                flags[*b as usize] |= block.covered;
            }
        }
        // What follows a call in a block has no flag of its own.
        if let Some(flags) = &mut covered {
            for (b, &head) in heads(cfg).iter().enumerate() {
                flags[b] = flags[head as usize];
            }
        }
    }
    let shape = estimate(cfg);
    let first = shape.first().copied().unwrap_or(1.0).max(f32::MIN_POSITIVE);
    let blocks: Vec<u64> = cfg
        .blocks
        .iter()
        .enumerate()
        .map(|(b, block)| {
            let ran = match &covered {
                Some(flags) => flags[b],
                // What the compiler split off is cold until something is known.
                None => block.piece == 0,
            };
            // Rounded; at least once if it ran.
            let times = (entries as f64 * f64::from(shape[b] / first)) as u64;
            if ran { times.clamp(1, MOST) } else { 0 }
        })
        .collect();
    let mut counts = Counts {
        succs: vec![0; cfg.succs.len()],
        blocks,
        ..Counts::default()
    };
    for b in 0..cfg.blocks.len() as BlockId {
        let own = counts.blocks[b as usize];
        let from = cfg.blocks[b as usize].succ as usize;
        let successors = cfg.succs(b);
        let of = |s: &BlockId| u128::from(counts.blocks[*s as usize]);
        let total: u128 = successors.iter().map(of).sum();
        for (k, s) in successors.iter().enumerate() {
            let share = (u128::from(own) * of(s)).checked_div(total).unwrap_or(0);
            counts.succs[from + k] = u64::try_from(share).unwrap_or(u64::MAX);
        }
    }
    counts
}

/// Calls: those that were sampled, or else those that the instructions of what ran make.
fn calls(
    program: &Program<'_>,
    profile: &mip::Profile,
    base: u64,
    same_build: bool,
    counted: &[Counted<'_>],
) -> Vec<Call> {
    let start_of = starts(program);
    if !same_build || profile.functions.iter().all(|f| f.edges.is_empty()) {
        return direct_calls(counted, &start_of);
    }
    let mut calls = Vec::new();
    for function in &profile.functions {
        let target = base.wrapping_add_signed(function.address);
        let Some(&callee) = start_of.get(&target) else {
            continue;
        };
        for edge in &function.edges {
            // The return address is after the call.
            let at = base.wrapping_add_signed(edge.source).wrapping_sub(1);
            let caller = function_at(program, at)
                .and_then(|f| counted.binary_search_by_key(&f, |c| c.function).ok())
                .map(|i| &counted[i]);
            let Some(caller) = caller else { continue };
            let inside = caller
                .analysed
                .cfg
                .blocks
                .iter()
                .position(|b| (b.start..b.end).contains(&at));
            if let Some(block) = inside {
                calls.push(Call {
                    caller: caller.function,
                    block: block as BlockId,
                    at,
                    callee,
                    target,
                    count: edge.weight,
                });
            }
        }
    }
    calls.sort_unstable_by_key(|c| (c.caller, c.at, c.callee));
    calls
}

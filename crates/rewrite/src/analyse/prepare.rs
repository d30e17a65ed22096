//! What both halves of the job need: every function analysed, and the map of counters.
//!
//! The map (which counter of the program counts what) follows from the input binary alone. Instrumenting and reading a
//! profile both build it, and its digest in the profile's header makes sure that they built the same one. The digest
//! covers, in this order, all numbers little-endian:
//!
//! | bytes | |
//! |--:|---|
//! | 20 | `postlink counter map` |
//! | 1 | what references are known by: 0 the linker's relocations, 1 dynamic ones, 2 none |
//! | 4 | the version of where counters are ([`counters::VERSION`]) |
//! | 8, 4, 4 | of each function with counters or sites, ascending: first address, number of counters, of sites |
//!
//! With the binary, which the header names as well, and the version, these numbers say what every counter counts.

use std::cell::OnceCell;

use postlink_isa::Isa;
use postlink_profile::{Digest, Subject};
use xxhash_rust::xxh3::Xxh3;

use super::counters::{self, Placement};
use super::entry::{EntryPatch, SecondaryEntry, entry_patch, secondary_entries};
use super::unwind::{FunctionUnwind, Rows};
use crate::cfg::{self, Cfg};
use crate::discover::{Basis, NonlocalExits, Program, identity, linker_veneers};
use crate::phases;
use crate::pin::Pin;

/// Reusable space for one thread.
#[derive(Default)]
pub struct Scratch {
    /// For [`cfg::build`].
    pub cfg: cfg::Scratch,
    /// For [`counters::place`].
    pub counters: counters::Scratch,
    /// What becomes of rows: for who carries a function's over at once, they are kept.
    pub rows: Rows,
}

/// A function that can be moved.
pub struct Analysed<'d> {
    /// Control flow.
    pub cfg: Cfg,
    /// Counters.
    pub placement: Placement,
    /// Unwind tables.
    pub unwind: Option<FunctionUnwind<'d>>,
    /// The old entry, and where a jump to the new place goes.
    pub entry_patch: Option<EntryPatch>,
    /// Further entries with space for such a jump.
    pub secondary_entries: Vec<SecondaryEntry>,
}

/// Analyses a function, or says why it stays.
pub fn analyse<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    function: usize,
    scratch: &mut Scratch,
) -> Result<Analysed<'d>, Pin> {
    let mut analysed = analyse_for_now::<I>(program, nonlocal_exits, function, scratch)?;
    analysed.cfg.shrink();
    Ok(analysed)
}

/// The same, of a function that is not kept for long: its graph has more space than it needs.
pub fn analyse_for_now<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    function: usize,
    scratch: &mut Scratch,
) -> Result<Analysed<'d>, Pin> {
    let mut analysed = analyse_flow::<I>(program, nonlocal_exits, function, scratch)?;
    analysed.placement = counters::place(&analysed.cfg, &mut scratch.counters)?;
    Ok(analysed)
}

/// The same without counters. That there are any is not said: see [`counters::count`].
pub(crate) fn analyse_flow<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    function: usize,
    scratch: &mut Scratch,
) -> Result<Analysed<'d>, Pin> {
    if linker_veneers::behind(program, program.start(function)).is_some() {
        return Err(Pin::Veneer);
    }
    let cfg = cfg::build_for_now::<I>(program, nonlocal_exits, function, &mut scratch.cfg)?;
    let unwind = FunctionUnwind::read(program, function, scratch.rows)?;
    let start = program.start(function);
    // Jumps from where tables count from the old code must reach.
    if cfg
        .anchored_targets
        .iter()
        .any(|a| program.is_far::<I>(a.0))
    {
        return Err(Pin::OutOfReach);
    }
    let targets = OnceCell::new();
    let entry_patch = match entry_patch::<I>(program, &cfg, start, &targets) {
        Some(patch) => Some(patch),
        // Without a pointer to it, it is only called by instructions that are seen and updated.
        None if !program.functions[function].address_taken => None,
        // Pointers stay, and control that enters through one runs the old body.
        None if !program.refs.kept => None,
        None => return Err(Pin::NoRoomAtEntry),
    };
    let secondary_entries = secondary_entries::<I>(program, &cfg, function, &targets);
    Ok(Analysed {
        cfg,
        placement: Placement::default(),
        unwind,
        entry_patch,
        secondary_entries,
    })
}

/// A function's part of the map of counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionCounters {
    /// Counters.
    pub counters: u32,
    /// Sites.
    pub sites: u32,
    /// Why the function stays, if it does.
    pub pin: Option<Pin>,
}

impl FunctionCounters {
    /// Of an analysed function.
    pub fn of(analysed: &Result<Analysed<'_>, Pin>) -> FunctionCounters {
        match analysed {
            Err(pin) => FunctionCounters::none(*pin),
            Ok(a) => FunctionCounters {
                counters: a.placement.counted.len() as u32,
                sites: a.cfg.recorded().count() as u32,
                pin: None,
            },
        }
    }

    /// Of a function that stays.
    pub(crate) fn none(pin: Pin) -> FunctionCounters {
        FunctionCounters {
            pin: Some(pin),
            ..FunctionCounters::default()
        }
    }

    /// Counts those of a function that was analysed without them.
    pub(crate) fn count(cfg: &Cfg, scratch: &mut Scratch) -> Result<FunctionCounters, Pin> {
        Ok(FunctionCounters {
            counters: counters::count(cfg, &mut scratch.counters)?,
            sites: cfg.recorded().count() as u32,
            pin: None,
        })
    }
}

/// The whole map.
pub struct CounterMap {
    /// By function.
    pub shares: Vec<FunctionCounters>,
    /// By function: its first counter and first site.
    pub bases: Vec<(u64, u64)>,
    /// What a profile of this binary must say of itself.
    pub subject: Subject,
}

impl CounterMap {
    /// Adds up the shares.
    pub fn new(program: &Program<'_>, shares: Vec<FunctionCounters>) -> CounterMap {
        let mut bases = Vec::with_capacity(shares.len());
        let (mut counters, mut sites) = (0u64, 0u64);
        let mut hash = Xxh3::new();
        hash.update(b"postlink counter map");
        hash.update(&[match program.refs.basis() {
            Basis::Kept => 0,
            Basis::Dynamic => 1,
            Basis::None => 2,
        }]);
        hash.update(&counters::VERSION.to_le_bytes());
        for (f, s) in shares.iter().enumerate() {
            bases.push((counters, sites));
            counters += u64::from(s.counters);
            sites += u64::from(s.sites);
            if (s.counters, s.sites) != (0, 0) {
                hash.update(&program.start(f).to_le_bytes());
                hash.update(&s.counters.to_le_bytes());
                hash.update(&s.sites.to_le_bytes());
            }
        }
        let subject = Subject {
            identity: identity(program.elf),
            digest: Digest(hash.digest()),
            counters,
            sites,
        };
        CounterMap {
            shares,
            bases,
            subject,
        }
    }

    /// Builds the map by analysing every function, each a piece of work of the phase.
    pub fn build<I: Isa>(program: &Program<'_>, nonlocal_exits: &NonlocalExits) -> CounterMap {
        let shares = postlink_parallel::map_range_with(
            program.functions.len(),
            Scratch::default,
            |scratch, f| {
                phases::did();
                analyse_flow::<I>(program, nonlocal_exits, f, scratch)
                    .and_then(|a| FunctionCounters::count(&a.cfg, scratch))
                    .unwrap_or_else(FunctionCounters::none)
            },
        );
        CounterMap::new(program, shares)
    }
}

/// Reasons and how often each occurs, the most frequent first.
pub fn count_pins(shares: &[FunctionCounters]) -> Vec<(Pin, usize)> {
    let mut counts: std::collections::BTreeMap<Pin, usize> = std::collections::BTreeMap::new();
    for p in shares.iter().filter_map(|s| s.pin) {
        *counts.entry(p).or_default() += 1;
    }
    let mut list: Vec<_> = counts.into_iter().collect();
    list.sort_by_key(|x| std::cmp::Reverse(x.1));
    list
}

//! What both halves of the job need: every function analysed, and the map of counters.
//!
//! The map (which counter of the program counts what) follows from the input binary alone. Instrumenting and reading a
//! profile both build it, and its digest in the profile's header makes sure that they built the same one.

use postlink_image::elf::Elf;
use postlink_isa::Isa;
use postlink_profile::{Digest, Identity, Subject};
use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use crate::Error;
use crate::cfg::{self, BlockId, Cfg};
use crate::counters::{self, Placement};
use crate::discover::Program;
use crate::leaks::Leaks;
use crate::link::{Second, entry_patch};
use crate::pin::Pin;
use crate::unwind::FunctionUnwind;
use crate::veneers;

/// Reusable room for one thread.
#[derive(Default)]
pub struct Scratch {
    /// For [`cfg::build`].
    pub cfg: cfg::Scratch,
    /// For [`counters::place`].
    pub counters: counters::Scratch,
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
    pub entry_patch: Option<(u64, u64)>,
    /// Further entries with room for such a jump.
    pub second: Vec<Second>,
}

/// Analyses a function, or says why it stays.
pub fn analyse<'d, I: Isa>(
    program: &Program<'d>,
    leaks: &Leaks,
    function: usize,
    scratch: &mut Scratch,
) -> Result<Analysed<'d>, Pin> {
    if veneers::behind(program, program.start(function)).is_some() {
        return Err(Pin::Veneer);
    }
    let cfg = cfg::build::<I>(program, leaks, function, &mut scratch.cfg)?;
    let unwind = FunctionUnwind::read(program, function)?;
    let start = program.start(function);
    // Jumps from where tables count from the old code must reach.
    if cfg.arrivals.iter().any(|a| program.is_far::<I>(a.0)) {
        return Err(Pin::OutOfReach);
    }
    let entry_patch = match entry_patch::<I>(program, &cfg, start) {
        Some(at) => Some((start, at)),
        // Without a pointer to it, it is only called by instructions that are seen and updated.
        None if !program.functions[function].address_taken => None,
        None => return Err(Pin::NoRoomAtEntry),
    };
    let second = second_entries::<I>(program, &cfg, function);
    let placement = counters::place(&cfg, &mut scratch.counters)?;
    Ok(Analysed {
        cfg,
        placement,
        unwind,
        entry_patch,
        second,
    })
}

/// Entries of a function beside its first where a jump to the new code fits. Pointers to them are not followed; where there is no jump, who comes by one runs the
/// old body up to its next table or call, as it always was.
fn second_entries<I: Isa>(program: &Program<'_>, cfg: &Cfg, function: usize) -> Vec<Second> {
    let f = &program.functions[function];
    let start = program.start(function);
    let jump = |entry: &u64| {
        let entry = *entry;
        let led = |list: &[(u64, BlockId)]| list.iter().any(|m| m.0 == entry);
        if entry == start || led(&cfg.arrivals) || program.is_far::<I>(entry) {
            return None;
        }
        let at = cfg.marks.binary_search_by_key(&entry, |m| m.0).ok()?;
        Some(Second {
            entry,
            at: entry_patch::<I>(program, cfg, entry)?,
            block: cfg.marks[at].1,
        })
    };
    f.entries.iter().filter_map(jump).collect()
}

/// A function's part of the map of counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// Counters.
    pub counters: u32,
    /// Sites.
    pub sites: u32,
    /// Digest of what they mean.
    pub digest: u64,
    /// Why the function stays, if it does.
    pub pin: Option<Pin>,
}

impl Share {
    /// Of an analysed function.
    pub fn of(
        program: &Program<'_>,
        function: usize,
        analysed: &Result<Analysed<'_>, Pin>,
    ) -> Share {
        match analysed {
            Err(pin) => Share {
                pin: Some(*pin),
                ..Share::default()
            },
            Ok(a) => {
                let mut hash = Xxh3::new();
                let sites = a.cfg.recorded().count();
                a.placement
                    .digest(program.start(function), sites, &mut hash);
                Share {
                    counters: a.placement.counted.len() as u32,
                    sites: sites as u32,
                    digest: hash.digest(),
                    pin: None,
                }
            }
        }
    }
}

/// The whole map.
pub struct CounterMap {
    /// By function.
    pub shares: Vec<Share>,
    /// By function: its first counter and first site.
    pub bases: Vec<(u64, u64)>,
    /// What a profile of this binary must say of itself.
    pub subject: Subject,
}

impl CounterMap {
    /// Adds up the shares.
    pub fn new(elf: &Elf<'_>, shares: Vec<Share>) -> CounterMap {
        let mut bases = Vec::with_capacity(shares.len());
        let (mut counters, mut sites) = (0u64, 0u64);
        let mut hash = Xxh3::new();
        hash.update(b"postlink counter map 2");
        for s in &shares {
            bases.push((counters, sites));
            counters += u64::from(s.counters);
            sites += u64::from(s.sites);
            hash.update(&s.digest.to_le_bytes());
        }
        let subject = Subject {
            identity: identity(elf),
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

    /// Builds the map by analysing every function.
    pub fn build<I: Isa>(program: &Program<'_>, leaks: &Leaks) -> CounterMap {
        let shares = (0..program.functions.len())
            .into_par_iter()
            .map_init(Scratch::default, |scratch, f| {
                Share::of(program, f, &analyse::<I>(program, leaks, f, scratch))
            })
            .collect();
        CounterMap::new(program.elf, shares)
    }
}

/// Identity of a file: its build-id, or a hash of its contents.
pub fn identity(elf: &Elf<'_>) -> Identity {
    elf.build_id
        .and_then(Identity::from_build_id)
        .unwrap_or_else(|| Identity::of_contents(elf.data))
}

/// Refuses files that postlink wrote, and machines that it does not know.
pub fn check_input(elf: &Elf<'_>) -> Result<Machine, Error> {
    let machine = match elf.machine {
        62 => Machine::X86_64,
        183 => Machine::AArch64,
        other => {
            return Err(Error::Unsupported(format!(
                "machine {other} (e_machine) is not supported; x86-64 is 62, AArch64 is 183"
            )));
        }
    };
    if elf.section(".note.postlink").is_some() {
        return Err(Error::Unsupported(
            "this file was written by postlink already: start from the binary that the linker made (it keeps its relocations)".into(),
        ));
    }
    if elf.sections.is_empty() {
        return Err(Error::Unsupported(
            "the file has no section headers: functions cannot be found without them".into(),
        ));
    }
    if let Some(why) = crate::runtimes::refusal(elf) {
        return Err(Error::Unsupported(why));
    }
    Ok(machine)
}

/// Machines whose files can be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// AArch64.
    AArch64,
}

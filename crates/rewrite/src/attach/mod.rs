//! A profile attached to a program: counts for the blocks and edges of every function that ran.
//!
//! | profile | how | where |
//! |---|---|---|
//! | counters of this very file | solved exactly | [`exact`] |
//! | samples of this very file | branches and runs become counts of edges ([`records`]), balanced; of instructions alone the likeliest counts ([`clock`], [`sampled`]) | [`addresses`] |
//! | by names: fdata, aggregated samples | likewise, once names are addresses | [`named`] |
//! | machine profiles: what ran | counts made up to suit | [`machine`] |
//! | none | each function that an option is about is taken for called once | [`unprofiled`] |
//! | by blocks: BOLT's YAML, also of older builds | blocks found again by their hashes, the rest inferred | [`blocks`] |
//!
//! Whatever comes in, [`Attached`] goes out: counts that conserve flow, and the calls between functions.

pub mod account;
pub mod addresses;
pub mod blocks;
mod clock;
pub mod evidence;
pub(crate) mod exact;
pub mod lookup;
pub mod machine;
mod matching;
pub mod named;
pub(crate) mod pseudo_probes;
mod records;
mod renamed;
mod sampled;
pub mod unprofiled;

use postlink_isa::Isa;
use postlink_profile::Profile;
use postlink_profile::bolt_yaml::BoltYaml;
use postlink_profile::symbolic::SymbolicProfile;
use rustc_hash::FxHashMap;

use crate::analyse::counters::{Counts, Placement};
use crate::analyse::{Analysed, CounterMap, FunctionCounters, Scratch, prepare};
use crate::cfg::{BlockId, Callee, Term, Use};
use crate::discover::{NonlocalExits, Program, linker_veneers};
use crate::error::Error;
use crate::phases;
use crate::pin::Pin;

pub use account::Account;
pub use addresses::Samples;
pub use unprofiled::Moving;

/// A profile of any kind.
#[derive(Clone, Copy, Debug)]
pub enum Source<'p> {
    /// Counters of the very file.
    Exact(&'p Profile),
    /// Samples of the very file.
    Addresses(Samples<'p>),
    /// Counts between places in functions.
    Named(&'p SymbolicProfile),
    /// Counts of blocks and edges, with hashes.
    Blocks(&'p BoltYaml),
    /// What ran: a machine profile.
    Machine(&'p postlink_mip::Profile),
    /// None: functions that other options are about.
    Unprofiled(Moving<'p>),
}

impl<'p> From<&'p postlink_mip::Profile> for Source<'p> {
    fn from(profile: &'p postlink_mip::Profile) -> Self {
        Source::Machine(profile)
    }
}

impl<'p> From<&'p Profile> for Source<'p> {
    fn from(profile: &'p Profile) -> Self {
        Source::Exact(profile)
    }
}

impl<'p> From<&'p SymbolicProfile> for Source<'p> {
    fn from(profile: &'p SymbolicProfile) -> Self {
        Source::Named(profile)
    }
}

impl<'p> From<&'p BoltYaml> for Source<'p> {
    fn from(profile: &'p BoltYaml) -> Self {
        Source::Blocks(profile)
    }
}

/// A program's counts.
pub struct Attached<'d> {
    /// Functions that ran, ascending.
    pub counted: Vec<Counted<'d>>,
    /// Calls between functions.
    pub calls: Vec<Call>,
    /// Functions that the profile has counts for and that stay, with the reason.
    pub pins: Vec<(u32, Pin)>,
    /// How much of the profile was found again; exact counters always fit.
    pub account: Option<Account>,
}

/// What came of one function whose counts were not exact.
#[derive(Default)]
struct Outcome<'d> {
    counted: Option<Counted<'d>>,
    /// Calls and jumps through registers and memory: (block, instruction, target, count).
    calls: Vec<(BlockId, u64, u64, u64)>,
    pin: Option<(u32, Pin)>,
    account: Account,
}

impl<'d> Attached<'d> {
    /// Puts together what came of the functions of a profile, in their order; `account` holds what was said
    /// of the profile before.
    fn gather(program: &Program<'_>, outcomes: Vec<Outcome<'d>>, mut account: Account) -> Self {
        let starts = starts(program);
        let (mut counted, mut indirect, mut pins) = (Vec::new(), Vec::new(), Vec::new());
        for outcome in outcomes {
            account.add(&outcome.account);
            pins.extend(outcome.pin);
            let Some(c) = outcome.counted else { continue };
            for (block, at, target, count) in outcome.calls {
                if let Some(callee) = starts.get(&target) {
                    indirect.push(Call {
                        caller: c.function,
                        block,
                        at,
                        callee: *callee,
                        target,
                        count,
                    });
                }
            }
            counted.push(c);
        }
        let mut calls = direct_calls(&counted, &starts);
        calls.append(&mut indirect);
        Attached {
            counted,
            calls,
            pins,
            account: Some(account),
        }
    }
}

/// Attaches a profile of any kind; and says for every function why it stays, as far as was looked at.
pub fn attach_any<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    source: Source<'_>,
) -> Result<(Attached<'d>, Vec<FunctionCounters>), Error> {
    let attached = match source {
        Source::Exact(profile) => {
            let ((map, counted), start_of) = postlink_parallel::join(
                || exact::attach::<I>(program, nonlocal_exits, profile),
                || starts(program),
            );
            check(&map, profile)?;
            let calls = calls_to(&start_of, &map, profile, &counted);
            let attached = Attached {
                counted,
                calls,
                pins: Vec::new(),
                account: None,
            };
            return Ok((attached, map.shares));
        }
        Source::Named(profile) => {
            if profile.is_empty() {
                return Err(Error::Profile(
                    "the profile is empty: it has no records".into(),
                ));
            }
            named::attach::<I>(program, nonlocal_exits, profile)
        }
        Source::Addresses(samples) => {
            if samples.profile.is_empty() {
                return Err(Error::Profile(
                    "the profile is empty: it has no samples".into(),
                ));
            }
            addresses::attach::<I>(program, nonlocal_exits, &samples)
        }
        Source::Blocks(profile) => {
            if profile.functions.is_empty() {
                return Err(Error::Profile(
                    "the profile is empty: it has no functions".into(),
                ));
            }
            blocks::attach::<I>(program, nonlocal_exits, profile)
        }
        Source::Machine(profile) => {
            if profile.functions.iter().all(|f| !f.is_covered()) {
                return Err(Error::Profile(
                    "the profile is empty: nothing has run in it (`postlink mip merge` adds runs)"
                        .into(),
                ));
            }
            machine::attach::<I>(program, nonlocal_exits, profile)
        }
        Source::Unprofiled(moving) => unprofiled::attach::<I>(program, nonlocal_exits, moving),
    };
    let account = attached.account.clone().unwrap_or_default();
    if attached.counted.is_empty() && account.pinned == 0 {
        return Err(Error::Profile(nothing_fits(&account)));
    }
    let mut shares: Vec<FunctionCounters> = program
        .functions
        .iter()
        .map(|f| FunctionCounters {
            pin: f.pin,
            ..FunctionCounters::default()
        })
        .collect();
    for (function, pin) in &attached.pins {
        shares[*function as usize].pin = Some(*pin);
    }
    Ok((attached, shares))
}

/// Why nothing came of a profile.
fn nothing_fits(account: &Account) -> String {
    if account.functions == 0 && account.unknown_names == 0 {
        return "the profile does not belong to this binary: nothing in it is in a function of the binary".into();
    }
    if account.functions == 0 {
        let examples = if account.examples.is_empty() {
            String::new()
        } else {
            format!(" (it speaks of {})", account.examples.join(", "))
        };
        return format!(
            "the profile does not belong to this binary: of {} names of functions in it the binary has none{examples}",
            account.unknown_names
        );
    }
    format!(
        "the profile does not fit this binary: of {} functions that both have, {} are of other code and none could be matched",
        account.functions, account.stale
    )
}

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
            "the profile does not belong to this binary: {what} {theirs} in the profile and {ours} in the binary; instrument this very file with this version of postlink, or turn the profile into one by blocks with the binary it was taken of (postlink convert PROFILE --binary OLD -o old.yaml), which may be older"
        )));
    }
    if profile.is_empty() {
        return Err(Error::Profile(
            "the profile is empty: no instrumented code has run, or it ran with another profile file (POSTLINK_PROFILE)".into(),
        ));
    }
    Ok(())
}

/// Solves for every function that ran, in the order of functions. Every function is a piece of work of the phase.
pub fn attach<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    map: &CounterMap,
    profile: &Profile,
) -> Vec<Counted<'d>> {
    let counted = postlink_parallel::map_range_with(
        program.functions.len(),
        Scratch::default,
        |scratch, f| {
            phases::did();
            let share = &map.shares[f];
            let from = map.bases[f].0 as usize;
            let counters = profile
                .counters()
                .get(from..from + share.counters as usize)?;
            if counters.iter().all(|c| *c == 0) {
                return None;
            }
            let analysed = prepare::analyse::<I>(program, nonlocal_exits, f, scratch).ok()?;
            Some(solve(f as u32, analysed, counters, scratch))
        },
    );
    counted.into_iter().flatten().collect()
}

/// Solves for a function that ran.
fn solve<'d>(
    function: u32,
    mut analysed: Analysed<'d>,
    counters: &[u64],
    scratch: &mut Scratch,
) -> Counted<'d> {
    let counts = analysed
        .placement
        .solve(&analysed.cfg, counters, &mut scratch.counters);
    // Not needed any more, and large.
    analysed.placement = Placement::default();
    Counted::new(function, analysed, counts)
}

impl<'d> Counted<'d> {
    /// A function with its counts, which say how often it is entered.
    pub(crate) fn new(function: u32, analysed: Analysed<'d>, counts: Counts) -> Self {
        let blocks = (0..).zip(&analysed.cfg.blocks);
        let entries = blocks
            .filter(|(_, block)| block.entry)
            .map(|(b, _)| entered(&analysed, &counts, b))
            .fold(0u64, u64::saturating_add);
        Counted {
            function,
            analysed,
            counts,
            entries,
        }
    }
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

/// Functions by the addresses at which they are entered.
pub fn starts(program: &Program<'_>) -> FxHashMap<u64, u32> {
    let of_functions = program.functions.iter().enumerate().flat_map(|(i, f)| {
        std::iter::once(program.pieces[f.pieces[0] as usize].start)
            .chain(f.entries.iter().copied())
            .map(move |a| (a, i as u32))
    });
    let mut starts: FxHashMap<u64, u32> = FxHashMap::default();
    starts.reserve(program.functions.len());
    starts.extend(of_functions);
    // A call of a linker's veneer is a call of the veneer's target.
    for f in 0..program.functions.len() {
        let veneer = program.start(f);
        let callee =
            linker_veneers::behind(program, veneer).and_then(|to| starts.get(&to).copied());
        if let Some(callee) = callee {
            starts.insert(veneer, callee);
        }
    }
    starts
}

/// All calls with a count, direct and recorded, in a fixed order.
pub fn calls(
    program: &Program<'_>,
    map: &CounterMap,
    profile: &Profile,
    counted: &[Counted<'_>],
) -> Vec<Call> {
    calls_to(&starts(program), map, profile, counted)
}

/// The same, with the [starts] of functions.
fn calls_to(
    start_of: &FxHashMap<u64, u32>,
    map: &CounterMap,
    profile: &Profile,
    counted: &[Counted<'_>],
) -> Vec<Call> {
    let mut calls = direct_calls(counted, start_of);
    calls.extend(postlink_parallel::flat_map(counted, |c| {
        let mut out = Vec::new();
        for (k, s) in c.analysed.cfg.recorded().enumerate() {
            if let Some(site) = profile.site(map.bases[c.function as usize].1 + k as u64) {
                for (target, count) in site.targets() {
                    if let Some(callee) = start_of.get(target).filter(|_| *count > 0) {
                        out.push(Call {
                            caller: c.function,
                            block: s.block,
                            at: s.at,
                            callee: *callee,
                            target: *target,
                            count: *count,
                        });
                    }
                }
            }
        }
        out
    }));
    // There are hundreds of thousands, and they are kept for long.
    calls.shrink_to_fit();
    calls
}

/// Calls and jumps to other functions that instructions or [constant
/// slots](crate::discover::Refs::constant_slot) say, as often as their blocks ran.
pub fn direct_calls(counted: &[Counted<'_>], start_of: &FxHashMap<u64, u32>) -> Vec<Call> {
    postlink_parallel::flat_map(counted, |c| {
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
        for s in &cfg.sites {
            if let Callee::Function(target) = s.callee {
                push(s.block, s.at, target, c.counts.blocks[s.block as usize]);
            }
        }
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
        out
    })
}

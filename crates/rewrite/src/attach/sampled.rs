//! Functions with samples of instructions, and what calls say of them.
//!
//! # The problem
//!
//! Samples of a clock say little of a few instructions ([`clock`](super::clock)), and programs consist of small
//! functions. Which of a branch's two sides runs, neither with a sample, may show elsewhere: one of them calls a
//! function that has many samples, or one that has none.
//!
//! # The idea
//!
//! First each function is estimated alone, in the unit of samples of an average instruction, so that counts of
//! different functions can be compared. Then once more, with what its direct calls and tail calls say: a function that
//! is called is entered as often as its own samples say, and that is the sum over all places that call it, of which the
//! others run as often as they were estimated ([`Called`]). A called function without samples says that by the
//! instructions from its entry to its first branch, each of which has none.
//!
//! | what is called | evidence |
//! |---|---|
//! | a function with samples | how often it is entered, as up to [`MOST`] instructions |
//! | one without | that it is not, likewise |
//! | one with samples that cannot be analysed | none |
//! | a function of another file, through a stub or a slot; what a register says | none |
//! | the function itself | none |
//!
//! What is called through pointers as well may be entered by these instead ([`POINTERS`]).
//!
//! # Invariants
//!
//! * Same samples, same counts, with any number of threads: each function is estimated from what the round before left
//!   of all, and sums are in the order of functions.
//! * Samples of executed instructions are good enough without: there calls say nothing.
//!
//! What was tried beside that is in `bench/samples.md`: a second round; evidence of how often a function is entered by
//! how often its callers run.

use postlink_flow::infer::{Inference, Prices};
use postlink_flow::likely::{Called, Counts};
use postlink_isa::{Flow, Isa};
use rustc_hash::FxHashMap;

use crate::analyse::{Analysed, Scratch, prepare};
use crate::attach::account::Account;
use crate::attach::clock::{INSTRUCTIONS, Sampled, TIME};
use crate::attach::evidence::Evidence;
use crate::attach::records::{CountWeight, Places, Record, Run, samples};
use crate::attach::{Outcome, starts};
use crate::cfg::{BlockId, Callee, Cfg, Term, Use};
use crate::discover::{NonlocalExits, Program};

/// As how many instructions a called function counts at most: they are wrong together.
const MOST: usize = 8;
/// What instructions of a called function can say at most for its callers running less often, and more often.
const SHORT: f64 = 4.0;
const LONG: f64 = 1.5;
/// Which part of its entries a function has through pointers, if its address is taken.
const POINTERS: f64 = 0.5;

/// A function with samples that was analysed.
struct Looked<'d, 'r> {
    function: u32,
    records: &'r [Record],
    analysed: Analysed<'d>,
    account: Account,
    /// Blocks with functions that they call at the beginning, by number.
    calls: Vec<(BlockId, u32)>,
    /// `None` where the graph is too large.
    sampled: Option<Sampled>,
}

/// Finds counts for all functions that have samples, which are sorted by function.
pub(super) fn attach_all<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    groups: &[(u32, (&[Record], &[Run]))],
    weigh: CountWeight,
) -> Vec<Outcome<'d>> {
    let starts = starts(program);
    let looked = postlink_parallel::map_with(groups, Scratch::default, |scratch, group| {
        let (function, (records, _)) = *group;
        look::<I>(
            program,
            nonlocal_exits,
            &starts,
            function,
            records,
            weigh,
            scratch,
        )
    });
    let mut looked: Vec<Result<Looked<'d, '_>, Box<Outcome<'d>>>> = looked;
    if matches!(weigh, CountWeight::Time) {
        let again = again::<I>(program, groups, &looked);
        for (looked, counts) in looked.iter_mut().zip(again) {
            if let (
                Ok(Looked {
                    sampled: Some(sampled),
                    ..
                }),
                Some(counts),
            ) = (looked, counts)
            {
                sampled.set(counts);
            }
        }
    }
    postlink_parallel::map_owned(looked, |looked| match looked {
        Ok(looked) => solve::<I>(program, looked, weigh),
        Err(outcome) => *outcome,
    })
}

/// Estimates one function by itself.
fn look<'d, 'r, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    starts: &FxHashMap<u64, u32>,
    function: u32,
    records: &'r [Record],
    weigh: CountWeight,
    scratch: &mut Scratch,
) -> Result<Looked<'d, 'r>, Box<Outcome<'d>>> {
    let mut account = Account {
        records: records.len() as u64,
        counts: records.iter().map(|r| r.count).fold(0, u64::saturating_add),
        ..Account::default()
    };
    let analysed = prepare::analyse::<I>(program, nonlocal_exits, function as usize, scratch);
    let analysed = match analysed {
        Ok(analysed) => analysed,
        Err(pin) => {
            account.pinned += 1;
            return Err(Box::new(Outcome {
                pin: Some((function, pin)),
                account,
                ..Outcome::default()
            }));
        }
    };
    let error = match weigh {
        CountWeight::Instructions => INSTRUCTIONS,
        CountWeight::Time | CountWeight::Calls => TIME,
    };
    Ok(Looked {
        function,
        records,
        calls: calls(program, starts, function, &analysed.cfg),
        sampled: Sampled::of::<I>(program, &analysed.cfg, records, error),
        analysed,
        account,
    })
}

/// Blocks with the other functions that they call or jump to at the beginning, each time that they run.
fn calls(
    program: &Program<'_>,
    starts: &FxHashMap<u64, u32>,
    function: u32,
    cfg: &Cfg,
) -> Vec<(BlockId, u32)> {
    let mut calls = Vec::new();
    let mut push = |block: BlockId, target: u64| {
        if let Some(callee) = starts.get(&target)
            && *callee != function
            && program.start(*callee as usize) == target
        {
            calls.push((block, *callee));
        }
    };
    for site in &cfg.sites {
        if let Callee::Function(target) = site.callee {
            push(site.block, target);
        }
    }
    for (b, block) in (0..).zip(&cfg.blocks) {
        for field in cfg.fields(b).iter().filter(|f| f.role == Use::Call) {
            push(b, field.target);
        }
        if let Term::JumpOut { target } = block.term {
            push(b, target);
        }
    }
    calls
}

/// What is known of a function that others call.
#[derive(Clone, Copy)]
struct Entries {
    /// How often all places that are known call it.
    calls: f64,
    /// How often it is entered; `None` if nothing is known of that.
    entered: Option<f64>,
    /// As how many instructions that counts.
    weight: f64,
}

/// Counts of each function that take account of what it calls; `None` where there is nothing to say.
fn again<I: Isa>(
    program: &Program<'_>,
    groups: &[(u32, (&[Record], &[Run]))],
    looked: &[Result<Looked<'_, '_>, Box<Outcome<'_>>>],
) -> Vec<Option<Counts>> {
    let known = |callee: u32| {
        let place = groups.binary_search_by_key(&callee, |group| group.0);
        let entered = match place.map(|place| &looked[place]) {
            Err(_) => Some(0.0),
            Ok(Ok(looked)) => looked.sampled.as_ref().map(Sampled::entered),
            Ok(Err(_)) => None,
        };
        Entries {
            calls: 0.0,
            entered,
            weight: first_instructions::<I>(program, callee) as f64,
        }
    };
    let mut callees: FxHashMap<u32, Entries> = FxHashMap::default();
    for caller in looked.iter().flatten() {
        let Some(sampled) = &caller.sampled else {
            continue;
        };
        for (block, callee) in &caller.calls {
            let callee = callees.entry(*callee).or_insert_with(|| known(*callee));
            callee.calls += sampled.runs(*block);
        }
    }
    postlink_parallel::map(looked, |caller| {
        let caller = caller.as_ref().ok()?;
        let sampled = caller.sampled.as_ref()?;
        let called = caller.calls.iter().filter_map(|&(block, callee)| {
            let of = callees.get(&callee)?;
            let entered = of.entered?;
            let pointers = if program.functions[callee as usize].address_taken {
                POINTERS * entered
            } else {
                0.0
            };
            (of.weight > 0.0).then(|| Called {
                block,
                entered,
                others: (of.calls - sampled.runs(block)).max(0.0) + pointers,
                weight: of.weight,
                short: SHORT,
                long: LONG,
            })
        });
        let called: Vec<Called> = called.collect();
        if called.is_empty() {
            return None;
        }
        sampled.again(&called)
    })
}

/// How many instructions a function executes whenever it is entered, at least: those up to its first branch, but not
/// more than [`MOST`].
fn first_instructions<I: Isa>(program: &Program<'_>, function: u32) -> usize {
    let start = program.start(function as usize);
    let code = program
        .piece_at(start)
        .and_then(|piece| program.elf.bytes_at(start, piece.end - start));
    let mut number = 0;
    I::sweep(code.unwrap_or_default(), start, |insn| {
        number += usize::from(!insn.traits.nop);
        let goes_on = matches!(
            insn.flow,
            Flow::Next | Flow::Call { .. } | Flow::IndirectCall
        );
        goes_on && number < MOST
    });
    number
}

/// Counts that conserve flow.
fn solve<'d, I: Isa>(
    program: &Program<'d>,
    looked: Looked<'d, '_>,
    weigh: CountWeight,
) -> Outcome<'d> {
    let (analysed, mut account) = (looked.analysed, looked.account);
    let mut evidence = Evidence::new(&analysed.cfg, Prices::BLOCKS);
    match &looked.sampled {
        Some(sampled) => sampled.tell(&analysed.cfg, &mut evidence),
        None => {
            let places = Places::new(&analysed.cfg);
            samples::<I>(
                program,
                &analysed,
                &places,
                looked.records,
                weigh,
                &mut evidence,
            );
        }
    }
    let counted = evidence.solve(looked.function, analysed, &mut Inference::default());
    let ran = counted.counts.blocks.iter().any(|c| *c > 0);
    account.attached += u64::from(ran);
    Outcome {
        counted: ran.then_some(counted),
        account,
        ..Outcome::default()
    }
}

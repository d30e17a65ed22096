//! A program without a profile.
//!
//! llvm-bolt takes a run without a profile and rewrites what its other options ask for: an order of functions
//! by a list, calls of imported functions. Here, too. The functions concerned have no counts; so that they are
//! laid out at all, each is taken for called once and each of its blocks for as frequent as the shape of the code says.
//! No decision but "this function moves" may rest on that: the caller turns off what orders blocks or splits functions.

use postlink_isa::Isa;

use crate::analyse::counters::{Counts, estimate};
use crate::analyse::{Scratch, prepare};
use crate::attach::account::Account;
use crate::attach::lookup::{Index, Lookup, function_at};
use crate::attach::{Attached, Counted, direct_calls, starts};
use crate::cfg::Cfg;
use crate::discover::{NonlocalExits, Program};

/// Counts that are made up stay below that.
const MOST: f32 = 1e6;

/// The functions that move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving<'p> {
    /// All that can be moved.
    All,
    /// Those with these names.
    Named(&'p [String]),
}

/// Gives functions counts that say nothing.
pub fn attach<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    moving: Moving<'_>,
) -> Attached<'d> {
    let (list, account) = wanted(program, moving);
    let done: Vec<Result<Counted<'d>, _>> =
        postlink_parallel::map_with(&list, Scratch::default, |scratch, &function| {
            prepare::analyse::<I>(program, nonlocal_exits, function as usize, scratch)
                .map(|analysed| {
                    let counts = counts(&analysed.cfg);
                    Counted {
                        function,
                        analysed,
                        counts,
                        entries: 1,
                    }
                })
                .map_err(|pin| (function, pin))
        });
    let (mut counted, mut pins) = (Vec::new(), Vec::new());
    for outcome in done {
        match outcome {
            Ok(one) => counted.push(one),
            Err(pin) => pins.push(pin),
        }
    }
    let account = Account {
        attached: counted.len() as u64,
        pinned: pins.len() as u64,
        ..account
    };
    let calls = direct_calls(&counted, &starts(program));
    Attached {
        counted,
        calls,
        pins,
        account: Some(account),
    }
}

/// Functions that move, ascending; and which names no function has.
fn wanted(program: &Program<'_>, moving: Moving<'_>) -> (Vec<u32>, Account) {
    let all = 0..program.functions.len() as u32;
    let Moving::Named(names) = moving else {
        let account = Account {
            functions: all.len() as u64,
            ..Account::default()
        };
        return (all.collect(), account);
    };
    let keyed = || {
        let all = names.iter().enumerate();
        all.map(|(i, name)| (Index(i), name.as_bytes()))
    };
    let lookup = Lookup::of_names(program, keyed());
    let mut list: Vec<u32> = keyed()
        .filter_map(|(key, _)| lookup.address(key))
        .filter_map(|address| function_at(program, address))
        .collect();
    list.sort_unstable();
    list.dedup();
    let account = Account {
        functions: list.len() as u64,
        records: names.len() as u64,
        unknown_names: lookup.unknown.len() as u64,
        renamed: lookup.similar,
        examples: lookup.examples(),
        ..Account::default()
    };
    (list, account)
}

/// Counts of a function that was called once.
fn counts(cfg: &Cfg) -> Counts {
    let shape = estimate(cfg);
    let first = shape.first().copied().unwrap_or(1.0).max(f32::MIN_POSITIVE);
    Counts {
        blocks: shape
            .iter()
            .map(|s| (s / first).clamp(1.0, MOST) as u64)
            .collect(),
        succs: vec![1; cfg.succs.len()],
        ..Counts::default()
    }
}

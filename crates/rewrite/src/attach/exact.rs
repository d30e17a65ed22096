//! Counters of the very file: the map of counters and the counts of functions, by analysing each function once at most.
//!
//! Which counters are a function's is known when all functions in front of it have been analysed: a profile is a list
//! without an index. Functions are therefore taken a part at a time, in their order, and a part that is analysed waits
//! until all in front of it are, which others work on at that moment. Then those of its functions that did not run are
//! dropped; the others' counters are placed, and solved. Where the counters of a function that did not run are does
//! not matter, only how many they are, and for most functions that is known without analysing them
//! ([`crate::analyse::number`]).
//!
//! That needs the memory of a few parts. Where a thread is kept from its part for long, what waits behind it would
//! grow: then functions are dropped and analysed again when it is their turn.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use postlink_isa::Isa;
use postlink_profile::Profile;

use super::{Counted, solve};
use crate::analyse::{Analysed, CounterMap, FunctionCounters, Scratch, counters, number, prepare};
use crate::discover::{NonlocalExits, Program};
use crate::phases;

/// Functions of a part: the graphs of so many are near the processor.
const PART: usize = 32;
/// So many parts may wait for one in front of them.
const WAITING: usize = 64;

/// Functions of a part that were analysed and can be moved.
type Functions<'d> = Vec<(u32, Analysed<'d>)>;

/// A part that is analysed.
struct Part<'d> {
    shares: Vec<FunctionCounters>,
    /// Nothing if too many were waiting.
    functions: Option<Functions<'d>>,
}

/// Whose turn it is.
#[derive(Default)]
struct Turn<'d> {
    /// The first part that has not been solved or is not being solved.
    part: usize,
    /// The number of its first counter.
    base: u64,
    /// Parts behind it that have been analysed.
    waiting: BTreeMap<usize, Part<'d>>,
}

impl<'d> Turn<'d> {
    /// A part was analysed, of which no more than `most` may wait. Gives those that can be solved now, each with its
    /// number and its first counter.
    fn analysed(
        &mut self,
        (number, mut part): (usize, Part<'d>),
        most: usize,
    ) -> Vec<(usize, u64, Part<'d>)> {
        if self.waiting.len() >= most {
            part.functions = None;
        }
        self.waiting.insert(number, part);
        let mut ready = Vec::new();
        while let Some(part) = self.waiting.remove(&self.part) {
            let counters: u64 = part.shares.iter().map(|s| u64::from(s.counters)).sum();
            ready.push((self.part, self.base, part));
            self.part += 1;
            self.base += counters;
        }
        ready
    }
}

/// A part that is solved.
struct Solved<'d> {
    number: usize,
    shares: Vec<FunctionCounters>,
    counted: Vec<Counted<'d>>,
}

/// The map of counters, and the functions that ran with their counts, in their order, if the profile is one of that
/// map. Every function is a piece of work of the phase.
pub(super) fn attach<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    profile: &Profile,
) -> (CounterMap, Vec<Counted<'d>>) {
    attach_by::<I>(program, nonlocal_exits, profile, (PART, WAITING))
}

/// The same, with so many functions in a part, and so many parts that may wait.
pub(crate) fn attach_by<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    profile: &Profile,
    (size, most): (usize, usize),
) -> (CounterMap, Vec<Counted<'d>>) {
    let count = program.functions.len();
    phases::expect(count);
    let turn = Mutex::new(Turn::default());
    let unused: Mutex<Vec<Scratch>> = Mutex::default();
    let solved = postlink_parallel::map_in_turn(count.div_ceil(size), |number| {
        let known = unused.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = known.unwrap_or_default();
        let range = number * size..count.min((number + 1) * size);
        let part = analyse::<I>(program, nonlocal_exits, range, &mut scratch);
        let mut turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = turn.analysed((number, part), most);
        drop(turn);
        let solve = |(number, base, part): (usize, u64, Part<'d>)| {
            let counters = profile.counters().get(base as usize..).unwrap_or(&[]);
            let first = number * size;
            let counted = solve_part::<I>(
                (program, nonlocal_exits),
                (first, part.functions, &part.shares),
                counters,
                &mut scratch,
            );
            Solved {
                number,
                shares: part.shares,
                counted,
            }
        };
        let solved: Vec<Solved<'d>> = ready.into_iter().map(solve).collect();
        let mut unused = unused.lock().unwrap_or_else(PoisonError::into_inner);
        unused.push(scratch);
        solved
    });
    let mut solved: Vec<Solved<'d>> = solved.into_iter().flatten().collect();
    solved.sort_unstable_by_key(|part| part.number);
    let ran = solved.iter().map(|part| part.counted.len()).sum();
    let (mut shares, mut counted) = (Vec::with_capacity(count), Vec::with_capacity(ran));
    for part in solved {
        shares.extend(part.shares);
        counted.extend(part.counted);
    }
    (CounterMap::new(program, shares), counted)
}

/// Counts the counters of the functions of a part: those of plain functions by what discovering them has shown, of
/// others by analysing them.
fn analyse<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    range: Range<usize>,
    scratch: &mut Scratch,
) -> Part<'d> {
    let mut shares = Vec::with_capacity(range.len());
    let mut functions = Vec::with_capacity(range.len());
    for f in range {
        phases::did();
        if let Some(share) = number::of_plain::<I>(program, nonlocal_exits, f) {
            shares.push(share);
            continue;
        }
        let share = prepare::analyse_flow::<I>(program, nonlocal_exits, f, scratch).and_then(|a| {
            let share = FunctionCounters::count(&a.cfg, scratch)?;
            functions.push((f as u32, a));
            Ok(share)
        });
        shares.push(share.unwrap_or_else(FunctionCounters::none));
    }
    Part {
        shares,
        functions: Some(functions),
    }
}

/// Places the counters of those functions of a part that ran, and solves for them. `counts` begin with those of the
/// part.
fn solve_part<'d, I: Isa>(
    (program, nonlocal_exits): (&Program<'d>, &NonlocalExits),
    (first, functions, shares): (usize, Option<Functions<'d>>, &[FunctionCounters]),
    counts: &[u64],
    scratch: &mut Scratch,
) -> Vec<Counted<'d>> {
    let mut counted = Vec::new();
    let mut functions = functions.map(|list| list.into_iter().peekable());
    let mut from = 0;
    for (f, share) in (first as u32..).zip(shares) {
        let known = functions
            .as_mut()
            .and_then(|list| list.next_if(|(function, _)| *function == f));
        let own = counts.get(from..from + share.counters as usize);
        from += share.counters as usize;
        let Some(own) = own.filter(|own| own.iter().any(|c| *c != 0)) else {
            continue;
        };
        let analysed = match known {
            Some((_, analysed)) => Some(analysed),
            None => prepare::analyse_flow::<I>(program, nonlocal_exits, f as usize, scratch).ok(),
        };
        let placed = analysed.and_then(|mut analysed| {
            analysed.placement = counters::place(&analysed.cfg, &mut scratch.counters).ok()?;
            Some(analysed)
        });
        if let Some(mut analysed) = placed {
            analysed.cfg.shrink();
            counted.push(solve(f, analysed, own, scratch));
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(counters: u32) -> Part<'static> {
        let share = FunctionCounters {
            counters,
            ..FunctionCounters::default()
        };
        Part {
            shares: vec![share],
            functions: Some(Vec::new()),
        }
    }

    #[test]
    fn parts_wait_for_those_in_front_of_them() {
        let mut turn = Turn::default();
        assert!(turn.analysed((1, part(5)), 8).is_empty());
        assert!(turn.analysed((2, part(7)), 8).is_empty());
        let ready = turn.analysed((0, part(3)), 8);
        let bases: Vec<(usize, u64)> = ready.iter().map(|p| (p.0, p.1)).collect();
        assert_eq!(bases, [(0, 0), (1, 3), (2, 8)]);
        assert_eq!(turn.analysed((3, part(1)), 8)[0].1, 15);
    }

    #[test]
    fn of_too_many_that_wait_the_functions_are_dropped() {
        let mut turn = Turn::default();
        for number in [3, 1, 2] {
            assert!(turn.analysed((number, part(1)), 2).is_empty());
        }
        turn.waiting.remove(&3);
        let ready = turn.analysed((0, part(1)), 9);
        let kept: Vec<bool> = ready.iter().map(|p| p.2.functions.is_some()).collect();
        assert_eq!(kept, [true, true, false]);
    }
}

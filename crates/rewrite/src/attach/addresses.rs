//! Samples of this very file attached to a program: by address, without names.
//!
//! A name would lead back to the same address, if it is the only one of that name. A branch is evidence of
//! the functions at its two ends; what comes from a return instruction says nothing of edges and is left out.
//! A run between two branches must stay in one part of a function.

use postlink_isa::{Flow, Isa};
use postlink_profile::address::{AddressProfile, Origin, Place};
use rayon::prelude::*;

use crate::attach::Attached;
use crate::attach::account::Account;
use crate::attach::records::{
    CountWeight, Made, Record, Run, attach_all, push_branch, push_sample,
};
use crate::discover::{NonlocalExits, Program};

/// Samples, and where they are in the program.
#[derive(Clone, Copy)]
pub struct Samples<'p> {
    /// The samples.
    pub profile: &'p AddressProfile,
    /// The link-time address of a place; `None` outside of the program.
    pub address: &'p (dyn Fn(Place) -> Option<u64> + Sync),
    /// They are known to be of this very file: what does not fit is no sign of other code.
    pub same_code: bool,
}

impl std::fmt::Debug for Samples<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samples")
            .field("profile", &self.profile)
            .field("same_code", &self.same_code)
            .finish_non_exhaustive()
    }
}

/// Traces that one thread looks at at a time.
const PART: usize = 1 << 15;

/// Attaches samples.
pub(super) fn attach<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    samples: &Samples<'_>,
) -> Attached<'d> {
    let profile = samples.profile;
    let parts: Vec<(Vec<Record>, Vec<Run>)> =
        postlink_parallel::map_owned(profile.traces().parts(PART), |part| {
            let (mut records, mut runs) = (Vec::new(), Vec::new());
            // Traces are sorted by where they come from.
            let mut source: Option<(Place, Source)> = None;
            for (trace, counts) in part {
                let start = (samples.address)(trace.start);
                let from = match trace.origin {
                    Origin::Branch(place) | Origin::Return(place) => Some(match source {
                        Some((known, from)) if known == place => from,
                        _ => {
                            source
                                .insert((place, Source::of::<I>(program, samples, place)))
                                .1
                        }
                    }),
                    Origin::Unknown | Origin::External | Origin::ExternalReturn => None,
                };
                if let Some(from) = from.filter(|from| !from.returns) {
                    push_branch(program, from.address, start, counts.count, &mut records);
                }
                let end = trace.end.and_then(|address| {
                    (samples.address)(Place {
                        address,
                        ..trace.start
                    })
                });
                if let (Some(start), Some(end)) = (start, end)
                    && let Some(part) = program.piece_at(start)
                    && end >= start
                    && end < part.end
                {
                    let comes_from = from.and_then(|from| from.address);
                    let inside = comes_from.is_some_and(|a| a >= part.start && a < part.end);
                    runs.push(Run {
                        function: part.function,
                        from: start,
                        to: end,
                        foreign: !inside && trace.origin != Origin::Unknown,
                        count: counts.count,
                    });
                }
            }
            add_up_all(&mut records, &mut runs);
            (records, runs)
        });
    let (mut records, mut runs) = (Vec::new(), Vec::new());
    for (mut more, mut more_runs) in parts {
        records.append(&mut more);
        runs.append(&mut more_runs);
    }
    let by_samples = profile.traces().is_empty() && !profile.samples().is_empty();
    if by_samples {
        for &(place, count) in profile.samples() {
            push_sample(program, (samples.address)(place), count, &mut records);
        }
    }
    add_up_all(&mut records, &mut runs);
    let made = Made {
        weigh: by_samples.then(|| CountWeight::of(&profile.events)),
        same_code: samples.same_code,
    };
    attach_all::<I>(
        program,
        nonlocal_exits,
        records,
        &runs,
        made,
        Account::default(),
    )
}

/// Where a branch is.
#[derive(Clone, Copy)]
struct Source {
    /// `None` outside of the program.
    address: Option<u64>,
    /// It is a return.
    returns: bool,
}

impl Source {
    fn of<I: Isa>(program: &Program<'_>, samples: &Samples<'_>, place: Place) -> Source {
        let address = (samples.address)(place);
        let insn = address.and_then(|at| {
            let left = program.piece_at(at)?.end - at;
            I::decode(program.elf.bytes_at(at, left.min(16))?, at)
        });
        Source {
            address,
            returns: insn.is_some_and(|insn| insn.flow == Flow::Return),
        }
    }
}

/// Sorts records and runs, and adds up equal ones.
fn add_up_all(records: &mut Vec<Record>, runs: &mut Vec<Run>) {
    add_up(
        records,
        |r| (r.function, r.from, r.to, r.leaves, r.enters),
        |r| &mut r.count,
    );
    add_up(
        runs,
        |r| (r.function, r.from, r.to, r.foreign),
        |r| &mut r.count,
    );
}

/// Sorts a list and adds up elements with the same key.
fn add_up<T: Ord + Send, K: PartialEq>(
    list: &mut Vec<T>,
    key: impl Fn(&T) -> K,
    count: impl Fn(&mut T) -> &mut u64,
) {
    list.par_sort_unstable();
    list.dedup_by(|next, kept| {
        let same = key(next) == key(kept);
        if same {
            let more = *count(next);
            let sum = count(kept);
            *sum = sum.saturating_add(more);
        }
        same
    });
}

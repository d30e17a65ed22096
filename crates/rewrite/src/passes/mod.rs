//! Changes of instructions, each of which the checker can prove.
//!
//! A pass looks at the graphs and counts of the functions that move, and says which instructions other code stands in
//! for. It changes nothing by itself: what comes out is a list of [`Change`]s for each function, which
//! [`crate::emit`] puts in while it copies the blocks. So everything that is not in a list is still copied byte for
//! byte, and layout, unwind rows, call sites, debug information and address translation tables go by the instruction
//! that a change corresponds to, as they do for instructions that are re-encoded for reasons of reach.
//!
//! | file | pass | option |
//! |---|---|---|
//! | [`plt`] | calls through the procedure linkage table go through the slot itself | `--plt` |
//! | [`rodata`] | loads of constants become immediates | `--simplify-rodata-loads` |
//! | [`promotion`] | indirect calls are compared with functions, which are called directly | `--indirect-call-promotion` |
//! | [`inlining`] | tiny functions in place of calls of them | `--inline-small-functions` |
//! | [`folding`] | the new code of one function stands for identical ones | `--icf` |
//! | [`threading`] | branches to jumps go to where those lead | `--peepholes`, `--simplify-conditional-tail-calls` |
//!
//! The last two are exceptions: they leave all instructions as they are. Folding comes first and takes functions out of
//! the list of those that move; threading changes where branches go, in the graph itself, before blocks are ordered.
//!
//! No pass is on unless it is asked for: the presets `safe`, `fast` and `size` only place code. Each kind of change has
//! a rule in the checker (`verify/walk/changes`), which accepts it by what both files hold; it does not know
//! which options were given. What it cannot show is taken back with its function.

mod folding;
mod inlining;
mod plt;
mod promotion;
mod rodata;
mod threading;

use postlink_isa::{Code, Isa};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::analyse::Target;
use crate::attach::{Call, Counted};
use crate::cfg::BlockId;
use crate::discover::Program;

pub use folding::{Folded, Folding, FoldingReport, Folds, called, fold};
pub use inlining::{Bodies, Inlining};
pub use plt::Plt;
pub use promotion::Promotion;
pub use threading::{Threaded, Threading};

/// Which passes run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// Calls through the procedure linkage table.
    pub plt: Plt,
    /// Loads of constants.
    pub simplify_rodata_loads: bool,
    /// Indirect calls.
    pub promotion: Promotion,
    /// Calls of tiny functions.
    pub inlining: Inlining,
    /// Jumps to jumps.
    pub threading: Threading,
    /// Identical functions.
    pub folding: Folding,
}

impl PassOptions {
    /// What `--preset max` turns on.
    pub const MAX: PassOptions = PassOptions {
        plt: Plt::Hot,
        simplify_rodata_loads: false,
        promotion: Promotion::OFF,
        inlining: Inlining {
            bytes: Inlining::MOST_BYTES,
        },
        threading: Threading {
            double_jumps: true,
            tail_calls: true,
        },
        folding: Folding::None,
    };

    /// Whether code is only placed.
    pub fn is_placement_only(self) -> bool {
        self.plt == Plt::None
            && !self.promotion.calls
            && !self.simplify_rodata_loads
            && self.inlining.bytes == 0
            && self.threading == Threading::default()
            && self.folding == Folding::None
    }
}

/// Code that replaces one instruction of the input.
#[derive(Clone, Debug)]
pub struct Change {
    /// The block that the instruction is in.
    pub block: BlockId,
    /// Its address. If it is the block's terminator the new code ends the block: there is no other way out.
    pub at: u64,
    /// Its length in bytes.
    pub len: u8,
    /// What is there instead. Addresses in it are of the input ([`Target::Code`], [`Target::Same`]).
    pub code: Code<Target>,
}

/// The changes of one function.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Ascending by block and address; no two of the same instruction.
    list: Vec<Change>,
}

impl Changes {
    /// Those in a block, ascending.
    pub fn of(&self, block: BlockId) -> &[Change] {
        let from = self.list.partition_point(|c| c.block < block);
        let to = self.list.partition_point(|c| c.block <= block);
        &self.list[from..to]
    }

    /// Whether the instruction that ends a block, at `term_at`, is changed.
    pub fn ends(&self, block: BlockId, term_at: u64) -> bool {
        self.of(block).last().is_some_and(|c| c.at >= term_at)
    }

    /// Adds what a pass found, ascending. Where an earlier pass has changed an instruction that stays.
    fn add(&mut self, found: Vec<Change>) -> Vec<bool> {
        let key = |c: &Change| (c.block, c.at);
        let place = |list: &[Change], c: &Change| list.binary_search_by_key(&key(c), key);
        let mut added = Vec::with_capacity(found.len());
        for change in found {
            match place(&self.list, &change) {
                Ok(_) => added.push(false),
                Err(at) => {
                    self.list.insert(at, change);
                    added.push(true);
                }
            }
        }
        added
    }
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PassReport {
    /// Its option's name.
    pub pass: &'static str,
    /// What it changes, for people.
    pub what: &'static str,
    /// Instructions that it could change if all code moved by its rule.
    pub sites: u64,
    /// Those that it changed, in functions that moved in the end.
    pub changed: u64,
    /// How often the changed ones ran, by the profile.
    pub executions: u64,
}

/// What a pass did in one function, or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    /// Instructions of its kind; for a pass that changes all of them it may be 0.
    sites: u64,
    changed: u64,
    executions: u64,
}

impl Sum {
    /// One more instruction was changed.
    fn add(&mut self, executions: u64) {
        self.changed += 1;
        self.executions = self.executions.saturating_add(executions);
    }

    fn join(self, other: Sum) -> Sum {
        Sum {
            sites: self.sites + other.sites,
            changed: self.changed + other.changed,
            executions: self.executions.saturating_add(other.executions),
        }
    }
}

/// A pass that ran. What it did is kept by function: some may stay where they are in the end, with their instructions.
#[derive(Clone, Debug)]
pub struct Ran {
    pass: &'static str,
    what: &'static str,
    /// By position in `counted`, ascending; functions without its instructions are left out.
    sums: Vec<(usize, Sum)>,
}

impl Ran {
    fn new(pass: &'static str, what: &'static str, sums: impl IntoIterator<Item = Sum>) -> Ran {
        let sums = sums.into_iter().enumerate();
        Ran {
            pass,
            what,
            sums: sums.filter(|(_, sum)| *sum != Sum::default()).collect(),
        }
    }

    /// What it did, if only the functions at these positions move.
    pub fn report(&self, moves: impl Fn(usize) -> bool) -> PassReport {
        let (mut all, mut moved) = (Sum::default(), Sum::default());
        for (position, sum) in &self.sums {
            all = all.join(*sum);
            if moves(*position) {
                moved = moved.join(*sum);
            }
        }
        PassReport {
            pass: self.pass,
            what: self.what,
            sites: all.sites.max(all.changed),
            changed: moved.changed,
            executions: moved.executions,
        }
    }
}

/// What a pass found in one function.
#[derive(Debug, Default)]
struct Found {
    /// Instructions of its kind.
    sites: u64,
    /// What it changes of them.
    changes: Vec<Change>,
}

/// What calls can be replaced with, if they are to be, and the functions all move.
pub fn bodies<I: Isa>(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    folds: &Folds,
    options: PassOptions,
) -> Bodies {
    if options.inlining.bytes == 0 {
        return Bodies::default();
    }
    Bodies::new::<I>(program, counted, folds, options.inlining)
}

/// Runs all passes that are on, on the functions that folding left. Gives the changes by position in `counted`, and
/// what each pass did. `bodies`: those of functions that move.
pub fn run<I: Isa>(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    calls: &[Call],
    bodies: &Bodies,
    options: PassOptions,
) -> (Vec<Changes>, Vec<Ran>) {
    let mut changes = vec![Changes::default(); counted.len()];
    let mut ran = Vec::new();
    if options.plt != Plt::None {
        let stubs = plt::Stubs::new::<I>(program);
        let found = |c: &Counted<'_>| plt::find::<I>(program, &stubs, c, options.plt);
        let names = ("plt", "calls through the procedure linkage table");
        ran.push(apply(counted, &mut changes, names, found));
    }
    if options.simplify_rodata_loads {
        let constants = rodata::Constants::new(program);
        let found = |c: &Counted<'_>| rodata::find::<I>(program, &constants, c);
        let names = ("simplify-rodata-loads", "loads of constants");
        ran.push(apply(counted, &mut changes, names, found));
    }
    if options.promotion.calls {
        let targets = promotion::Targets::new(counted, calls, options.promotion);
        let find = |c: &Counted<'_>| promotion::find::<I>(program, &targets, c, options.promotion);
        let names = ("indirect-call-promotion", "indirect calls that ran");
        ran.push(apply(counted, &mut changes, names, find));
    }
    if options.inlining.bytes > 0 {
        let names = ("inline-small-functions", "calls of tiny functions");
        let find = |c: &Counted<'_>| inlining::find::<I>(program, bodies, c);
        ran.push(apply(counted, &mut changes, names, find));
    }
    (changes, ran)
}

/// Leads branches past jumps in the graphs of all functions. Gives what graphs were, where they were changed.
pub fn thread<I: Isa>(
    program: &Program<'_>,
    counted: &mut [Counted<'_>],
    calls: &mut Vec<Call>,
    options: PassOptions,
) -> (Vec<Option<Threaded>>, Vec<Ran>) {
    let which = options.threading;
    if which == Threading::default() {
        return (counted.iter().map(|_| None).collect(), Vec::new());
    }
    let all = postlink_parallel::map_mut(counted, |_, c| threading::thread::<I>(program, c, which));
    let (threaded, sums): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    if which.tail_calls {
        let mut of_caller: FxHashMap<u32, Vec<Call>> = FxHashMap::default();
        let threaded: FxHashMap<u32, &Threaded> = (counted.iter().zip(&threaded))
            .filter_map(|(c, t)| Some((c.function, t.as_ref()?)))
            .collect();
        calls.retain(|call| {
            let changes = threaded.contains_key(&call.caller);
            if changes {
                of_caller.entry(call.caller).or_default().push(*call);
            }
            !changes
        });
        let mut callers: Vec<_> = of_caller.into_iter().collect();
        callers.sort_unstable_by_key(|c| c.0);
        for (caller, mut own) in callers {
            threaded[&caller].move_calls(&mut own);
            calls.append(&mut own);
        }
    }
    let ran = |k: usize, pass, what| Ran::new(pass, what, sums.iter().map(|s| s[k]));
    let mut passes = Vec::new();
    if which.double_jumps {
        passes.push(ran(0, "peepholes=double-jumps", "branches to jumps"));
    }
    if which.tail_calls {
        let what = "conditional branches to tail calls";
        passes.push(ran(1, "simplify-conditional-tail-calls", what));
    }
    (threaded, passes)
}

/// Runs one pass on all functions.
fn apply<'d>(
    counted: &[Counted<'d>],
    changes: &mut [Changes],
    (pass, what): (&'static str, &'static str),
    find: impl Fn(&Counted<'d>) -> Found + Sync,
) -> Ran {
    let sums = postlink_parallel::map_mut(changes, |i, changes| {
        let c = &counted[i];
        let found = find(c);
        let runs: Vec<u64> = (found.changes.iter())
            .map(|change| c.counts.blocks[change.block as usize])
            .collect();
        let added = changes.add(found.changes);
        let executions = runs.iter().zip(&added).filter(|(_, added)| **added);
        Sum {
            sites: found.sites,
            changed: added.iter().filter(|added| **added).count() as u64,
            executions: executions.fold(0u64, |sum, (runs, _)| sum.saturating_add(*runs)),
        }
    });
    Ran::new(pass, what, sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(block: BlockId, at: u64) -> Change {
        Change {
            block,
            at,
            len: 5,
            code: Code::default(),
        }
    }

    #[test]
    fn the_first_change_of_an_instruction_stays() {
        let mut changes = Changes::default();
        assert_eq!(changes.add(vec![change(0, 8), change(2, 40)]), [true, true]);
        assert_eq!(
            changes.add(vec![change(1, 20), change(2, 40)]),
            [true, false]
        );
        let at = |b| changes.of(b).iter().map(|c| c.at).collect::<Vec<_>>();
        assert_eq!(
            [at(0), at(1), at(2), at(3)],
            [vec![8], vec![20], vec![40], vec![]]
        );
        assert!(changes.ends(2, 40) && !changes.ends(2, 41) && !changes.ends(3, 0));
    }

    #[test]
    fn what_was_done_in_functions_that_stay_is_not_counted() {
        let sum = |sites, changed, executions| Sum {
            sites,
            changed,
            executions,
        };
        let sums = [sum(3, 2, 10), Sum::default(), sum(0, 4, u64::MAX)];
        let ran = Ran::new("plt", "calls", sums);
        assert_eq!(ran.sums.len(), 2);
        let counts = |r: PassReport| (r.sites, r.changed, r.executions);
        assert_eq!(counts(ran.report(|_| true)), (6, 6, u64::MAX));
        assert_eq!(counts(ran.report(|at| at == 0)), (6, 2, 10));
        assert_eq!(counts(ran.report(|_| false)), (6, 0, 0));
    }
}

//! Functions that stay because they are entered by old entries more often than their new layout saves branches.
//!
//! Where the linker kept no relocations, pointers to functions and the procedure linkage tables of other files lead to
//! old entries, and each such call takes one jump more. A short function that is mostly called so is slower after it
//! has moved. If it stays, its own direct calls go by old entries: code that stays is not changed. So what counts is
//! the sum over all functions of
//!
//! * the branches that are taken in it, in the input's order if it stays and in the new one if it moves,
//! * if it stays: how often calls of it run that would be inlined, which only those of functions that move are,
//! * if it moves: how often it is entered other than by direct calls from functions that move.
//!
//! Where counts are estimates, of samples, entries and calls disagree by chance: a quarter of a function's entries is
//! taken for direct calls that were not seen.
//!
//! The search begins with all functions moving and leaves out those by which the sum gets smaller, until there is none.
//! Each that stays makes it worse for those it calls and better for none, so the order in which they are looked
//! at does not matter much; it is that of the file.

use rustc_hash::{FxHashMap, FxHashSet};

use super::layout::{Chosen, original};
use crate::attach::Counted;
use crate::cfg::{BlockId, Term, Use};
use crate::discover::Program;

/// Starts of functions that cost less where they are. `inlined`: by start, how often calls run that are inlined if it
/// moves. `exact`: counts are.
pub(super) fn cheaper_where_they_are(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    chosen: &[Chosen],
    inlined: &FxHashMap<u64, u64>,
    exact: bool,
) -> FxHashSet<u64> {
    if program.refs.kept {
        return FxHashSet::default();
    }
    let saved = counted.iter().zip(chosen).map(|(c, order)| {
        let before = taken(c, &original(c));
        let calls = inlined.get(&program.start(c.function as usize));
        before
            .saturating_sub(taken(c, &order.fragments))
            .saturating_add(number(calls.copied().unwrap_or(0)))
    });
    let mut choice = Choice::new(
        saved.collect(),
        counted.iter().map(|c| entries(c, exact)).collect(),
    );
    let index: FxHashMap<u64, u32> = counted
        .iter()
        .zip(0..)
        .map(|(c, i)| (program.start(c.function as usize), i))
        .collect();
    for (c, caller) in counted.iter().zip(0..) {
        direct_calls(c, &mut |target, count| {
            if let Some(callee) = index.get(&target) {
                choice.call(caller, *callee, number(count));
            }
        });
    }
    let stays = choice.stays();
    let starts = counted.iter().map(|c| program.start(c.function as usize));
    starts.zip(stays).filter(|s| s.1).map(|s| s.0).collect()
}

/// How often a function was entered, at least.
fn entries(c: &Counted<'_>, exact: bool) -> i64 {
    let entries = number(c.entries);
    if exact {
        entries
    } else {
        entries - entries / 4
    }
}

fn number(count: u64) -> i64 {
    // Sums of many do not overflow.
    i64::try_from(count).unwrap_or(i64::MAX).min(1 << 50)
}

/// Branches that are taken between blocks in an order. Those of jump tables are in all orders the same.
fn taken(c: &Counted<'_>, order: &[Vec<BlockId>; 2]) -> i64 {
    let cfg = &c.analysed.cfg;
    let mut sum = 0i64;
    for fragment in order {
        let next = fragment.iter().skip(1).map(Some).chain([None]);
        for (b, next) in fragment.iter().zip(next) {
            let block = &cfg.blocks[*b as usize];
            if matches!(block.term, Term::Dispatch { .. }) {
                continue;
            }
            for (way, to) in cfg.succs(*b).iter().enumerate() {
                if Some(to) != next {
                    let count = c.counts.succs[block.succ as usize + way];
                    sum = sum.saturating_add(number(count));
                }
            }
        }
    }
    sum
}

/// Calls and jumps to other functions whose targets instructions say.
fn direct_calls(c: &Counted<'_>, call: &mut dyn FnMut(u64, u64)) {
    let cfg = &c.analysed.cfg;
    for (block, b) in cfg.blocks.iter().zip(0..) {
        let runs = c.counts.blocks[b as usize];
        for field in cfg.fields(b).iter().filter(|f| f.role == Use::Call) {
            call(field.target, runs);
        }
        match block.term {
            Term::JumpOut { target } => call(target, runs),
            Term::CondOut { target, .. } | Term::ShortCondOut { target } => {
                call(target, c.counts.out.get(&b).copied().unwrap_or(0));
            }
            _ => {}
        }
    }
}

/// Which functions stay.
struct Choice {
    /// Branches that the new layout saves.
    saved: Vec<i64>,
    /// Entries by old entries, if it moves.
    entered: Vec<i64>,
    /// Direct calls of others: callee and number.
    calls: Vec<Vec<(u32, i64)>>,
}

impl Choice {
    /// `entries`: how often each is entered, in whatever way.
    fn new(saved: Vec<i64>, entries: Vec<i64>) -> Self {
        Choice {
            calls: vec![Vec::new(); saved.len()],
            saved,
            entered: entries,
        }
    }

    fn call(&mut self, caller: u32, callee: u32, count: i64) {
        // Whether it calls itself directly makes no difference: it stays with itself.
        self.entered[callee as usize] -= count;
        if caller != callee && count > 0 {
            self.calls[caller as usize].push((callee, count));
        }
    }

    fn stays(mut self) -> Vec<bool> {
        let mut stays = vec![false; self.saved.len()];
        loop {
            let mut changed = false;
            for i in 0..stays.len() {
                let moving = self.calls[i].iter().filter(|c| !stays[c.0 as usize]);
                let by_old_entries: i64 = moving.map(|c| c.1).sum();
                // Where counts are estimates, there may be more calls than entries.
                let if_moved = self.entered[i].max(0);
                if stays[i] || if_moved <= self.saved[i].saturating_add(by_old_entries) {
                    continue;
                }
                (stays[i], changed) = (true, true);
                for (callee, count) in &self.calls[i] {
                    self.entered[*callee as usize] += count;
                }
            }
            if !changed {
                return stays;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Choice;

    #[test]
    fn what_is_entered_by_old_entries_more_often_than_it_saves_branches_stays() {
        let stays = |saved: i64| Choice::new(vec![saved], vec![100]).stays();
        assert_eq!(stays(99), [true]);
        assert_eq!(stays(100), [false]);
    }

    #[test]
    fn calls_from_functions_that_move_cost_nothing() {
        let mut choice = Choice::new(vec![10, 0], vec![1, 100]);
        choice.call(0, 1, 100);
        assert_eq!(choice.stays(), [false, false]);
    }

    #[test]
    fn a_function_that_stays_calls_by_old_entries() {
        // The first costs 100 more if it moves, and its 500 calls of the second are worth more.
        let choice = |calls: i64| {
            let mut choice = Choice::new(vec![0, 1000], vec![100, 500]);
            choice.call(0, 1, calls);
            choice.stays()
        };
        assert_eq!(choice(500), [false, false]);
        assert_eq!(choice(50), [true, false]);
        // And the second stays with it if it saves less than it then costs.
        let mut choice = Choice::new(vec![0, 20], vec![100, 50]);
        choice.call(0, 1, 50);
        assert_eq!(choice.stays(), [true, true]);
    }

    #[test]
    fn recursion_is_no_entry_by_an_old_entry() {
        let mut choice = Choice::new(vec![5], vec![100]);
        choice.call(0, 0, 96);
        assert_eq!(choice.stays(), [false]);
    }

    #[test]
    fn estimates_with_more_calls_than_entries_are_no_loss() {
        let mut choice = Choice::new(vec![0, 0], vec![0, 1]);
        choice.call(0, 1, 90);
        assert_eq!(choice.stays(), [false, false]);
    }
}

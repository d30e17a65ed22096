//! Promotion of indirect calls: the functions that a call mostly goes to are compared with its operand, and called
//! directly.
//!
//! What the processor has to guess then is a branch that is taken or not, and where pointers to functions keep their
//! values ([`crate::discover::visible`]) the direct call leads to new code at once, not by the jump at the old
//! entry. What the code looks like is described in the instruction set ([`postlink_isa::Encode::put_promoted_call`]);
//! the checker's rule is in `verify/walk/changes/promotion.rs`.
//!
//! Which functions a call goes to the profile says: recorders count the three most frequent ones of every call exactly,
//! samples of branches are taken as they are. As in llvm-bolt a function is compared if it has enough of
//! the call's executions, and enough of those that are left after the ones before it.
//!
//! The number that is compared is the one that a pointer to the function has: the new entry if pointers follow, else
//! the old one. Should a pointer have the other, the call is made as it was.

use postlink_isa::{Code, Isa};
use rustc_hash::FxHashMap;

use super::{Change, Found};
use crate::analyse::{Target, stub_registers};
use crate::attach::{Call, Counted};
use crate::cfg::{Callee, Site};
use crate::discover::Program;

/// Which calls are compared with which functions. The numbers' names are llvm-bolt's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// Calls are promoted at all.
    pub calls: bool,
    /// At most so many functions at a call (`--indirect-call-promotion-topn`).
    pub most: u32,
    /// Percent of the executions that are left which a function must have (`--icp-calls-remaining-percent-threshold`).
    pub of_remaining: u32,
    /// Percent of all executions of the call which a function must have (`--icp-calls-total-percent-threshold`).
    pub of_total: u32,
    /// Of all indirect calls the hottest, until they have this percentage of the executions (`--icp-top-callsites`);
    /// 0: all of them.
    pub hottest: u32,
}

impl Promotion {
    /// None, with llvm-bolt's numbers.
    pub const OFF: Promotion = Promotion {
        calls: false,
        most: 3,
        of_remaining: 50,
        of_total: 30,
        hottest: 99,
    };
}

impl Default for Promotion {
    fn default() -> Self {
        Promotion::OFF
    }
}

/// The most functions that fit: the jumps over them have a displacement of one byte.
const MOST: usize = 4;

/// Indirect calls by caller and address: the functions that they went to, the most frequent first.
pub(super) struct Targets {
    by_site: FxHashMap<(u32, u64), Vec<(u64, u64)>>,
    /// Calls with fewer executions are left alone.
    least: u64,
}

impl Targets {
    pub(super) fn new(counted: &[Counted<'_>], calls: &[Call], options: Promotion) -> Targets {
        let mut by_site: FxHashMap<(u32, u64), Vec<(u64, u64)>> = FxHashMap::default();
        let mut runs = Vec::new();
        for c in counted {
            for site in candidates(c) {
                by_site.insert((c.function, site.at), Vec::new());
                runs.push(c.counts.blocks[site.block as usize]);
            }
        }
        for call in calls {
            if let Some(list) = by_site.get_mut(&(call.caller, call.at)) {
                match list.iter_mut().find(|t| t.0 == call.target) {
                    Some(known) => known.1 = known.1.saturating_add(call.count),
                    None => list.push((call.target, call.count)),
                }
            }
        }
        for list in by_site.values_mut() {
            list.sort_unstable_by_key(|t| (std::cmp::Reverse(t.1), t.0));
        }
        Targets {
            by_site,
            least: least(runs, options.hottest),
        }
    }
}

/// How often the last of the hottest calls ran that together have a percentage of all executions.
fn least(mut runs: Vec<u64>, percent: u32) -> u64 {
    let all: u128 = runs.iter().map(|n| u128::from(*n)).sum();
    if percent == 0 {
        return 1;
    }
    runs.sort_unstable_by_key(|n| std::cmp::Reverse(*n));
    let mut sum = 0u128;
    for n in runs {
        sum += u128::from(n);
        if sum * 100 >= all * u128::from(percent) {
            return n.max(1);
        }
    }
    1
}

/// Indirect calls whose functions are not known beforehand.
fn candidates<'c>(c: &'c Counted<'_>) -> impl Iterator<Item = &'c Site> {
    let cfg = &c.analysed.cfg;
    // Where instructions that fault raise exceptions the read of an operand would have to be described as well.
    let sites = (!cfg.faults).then_some(&cfg.sites);
    let sites = sites.into_iter().flatten();
    sites.filter(|s| !s.tail && s.callee == Callee::Unknown)
}

/// The indirect calls of a function that are promoted.
pub(super) fn find<I: Isa>(
    program: &Program<'_>,
    targets: &Targets,
    c: &Counted<'_>,
    options: Promotion,
) -> Found {
    let mut found = Found::default();
    let fixed = program.elf.etype == postlink_elf::raw::ET_EXEC;
    for site in candidates(c) {
        let runs = c.counts.blocks[site.block as usize];
        let Some(list) = targets.by_site.get(&(c.function, site.at)) else {
            continue;
        };
        if runs == 0 || list.is_empty() {
            continue;
        }
        found.sites += 1;
        if runs < targets.least {
            continue;
        }
        let functions: Vec<_> = worthwhile(list, runs, options)
            .into_iter()
            .filter(|entry| is_entry(program, *entry))
            .map(|entry| (value(program, entry), Target::Code(entry)))
            .collect();
        let bytes = program.elf.bytes_at(site.at, u64::from(site.len));
        let insn = bytes.and_then(|bytes| Some((bytes, I::decode(bytes, site.at)?)));
        let mut code = Code::default();
        if let Some((bytes, insn)) = insn
            && !functions.is_empty()
            && !stub_registers::are_passed_on::<I>(program, &c.analysed.cfg, site)
            && I::put_promoted_call(&mut code, bytes, &insn, fixed, &functions, Target::Same)
        {
            found.changes.push(Change {
                block: site.block,
                at: site.at,
                len: site.len,
                code,
            });
        }
    }
    found
}

/// The functions that a call is compared with.
fn worthwhile(list: &[(u64, u64)], runs: u64, options: Promotion) -> Vec<u64> {
    let counted: u64 = list.iter().fold(0, |sum, t| sum.saturating_add(t.1));
    let all = u128::from(runs.max(counted));
    let (mut left, mut chosen) = (all, Vec::new());
    for (entry, count) in list.iter().take(MOST.min(options.most as usize)) {
        let hundred = u128::from(*count) * 100;
        if *count == 0
            || hundred < left * u128::from(options.of_remaining)
            || hundred < all * u128::from(options.of_total)
        {
            break;
        }
        chosen.push(*entry);
        left = left.saturating_sub(u128::from(*count));
    }
    chosen
}

/// Whether an address is where a function begins, not one of its further entries.
fn is_entry(program: &Program<'_>, addr: u64) -> bool {
    let piece = program.piece_at(addr);
    piece.is_some_and(|p| program.start(p.function as usize) == addr)
}

/// What a pointer to a function is.
fn value(program: &Program<'_>, entry: u64) -> Target {
    if program.refs.kept && program.may_follow(entry) {
        Target::Code(entry)
    } else {
        Target::Same(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_need_their_share_of_all_calls_and_of_those_left() {
        let options = Promotion::default();
        assert_eq!(worthwhile(&[(1, 90), (2, 10)], 100, options), [1]);
        assert_eq!(worthwhile(&[(1, 50), (2, 50)], 100, options), [1, 2]);
        // More calls than the recorder knows of.
        assert!(worthwhile(&[(1, 40), (2, 30)], 100, options).is_empty());
        let one = Promotion { most: 1, ..options };
        assert_eq!(worthwhile(&[(1, 50), (2, 50)], 100, one), [1]);
    }

    #[test]
    fn the_hottest_calls_have_their_percentage() {
        assert_eq!(least(vec![1, 900, 99], 99), 99);
        assert_eq!(least(vec![1, 900, 99], 0), 1);
        assert_eq!(least(vec![], 99), 1);
    }
}

//! What all instrumented functions share: where counters are, and what all functions together may assume of that
//! memory.

use crate::addr::OutputAddr;
use crate::arch::Arch;
use crate::context::{Context, Counts, Findings, FuncId};
use crate::files::claim::Range;
use crate::machine::Footprint;
use crate::proof::gaps;
use crate::proof::image::Layout;
use crate::report::{Check, Failure};
use crate::routines;
use crate::walk::Walked;
use rustc_hash::FxHashMap;

/// Memory in front of the first thread's counters that belongs to the start-up code.
const PRIVATE: u64 = 0x8000;

/// New memory of an instrumented program.
pub(crate) fn areas(layout: &Layout) -> Counts {
    let mut counts = Counts::default();
    for s in &layout.added {
        let range = Range {
            start: s.addr,
            end: s.end(),
        };
        if s.is_writable() && !s.is_exec() && s.file_size == 0 {
            counts.own = counts.own.max(range.len().saturating_sub(PRIVATE));
            counts.areas.push(range);
        } else if s.is_exec() && !s.is_writable() {
            counts.code.push(Range {
                start: s.addr,
                end: s.file_end(),
            });
        }
    }
    counts
}

/// What must hold for all functions together.
pub(crate) fn judge<A: Arch>(cx: &Context<'_>, walked: &[Walked], found: &mut Findings) {
    let mut all = Footprint::default();
    for w in walked {
        all.join(&w.footprint);
    }
    counters_of_calls(cx, walked, found);
    let mut fail = |text: String| found.file.push(Failure::new(Check::Counting, text));
    if let Some((start, end)) = all.written {
        for c in all
            .constants
            .iter()
            .filter(|c| **c + 8 > start && **c < end)
        {
            fail(format!(
                "the word at {c:#x} is assumed not to change, but is among the counters at {start:#x}..{end:#x}"
            ));
        }
    }
    if all.trusted.len() > 1 {
        fail(format!(
            "the instrumentation calls {} routines that cannot be followed; at most one is expected",
            all.trusted.len()
        ));
    }
    for start in &all.trusted {
        if let Err(why) = routines::keeps::<A>(&|at| cx.unowned(OutputAddr::new(at)), *start) {
            fail(format!(
                "the routine at {start:#x}, which gives a thread its counters, is not shown to keep registers and flags: {why}"
            ));
        }
    }
    let suspects = found.uses_own.as_slice();
    if let Some(at) = all.own.then(|| gaps::uses_own::<A>(cx, suspects)).flatten() {
        let text =
            format!("the program uses the segment of per-thread counters itself, at {at:#x}");
        found.file.push(Failure::new(Check::Counting, text));
    }
}

/// Where calls are counted, each function counts in one counter of its own: that counter's first call is noted, one is
/// added to it, and what is asked is it or the place of its first call.
fn counters_of_calls(cx: &Context<'_>, walked: &[Walked], found: &mut Findings) {
    let of_calls = |w: &Walked| {
        let print = &w.footprint;
        !(print.noted.is_empty() && print.called.is_empty())
    };
    if !walked.iter().any(of_calls) {
        return;
    }
    let mut users: FxHashMap<u64, FuncId> = FxHashMap::default();
    for (id, w) in (0..).zip(walked) {
        let Some(f) = cx.function(id).filter(|_| w.failure.is_none()) else {
            continue;
        };
        let print = &w.footprint;
        let what = match (print.noted.as_slice(), print.called.as_slice()) {
            ([noted], [called]) if noted == called => {
                let is_own = |at: &u64| *at == *noted || *at == noted.wrapping_add(4);
                let other = print.asked.iter().find(|at| !is_own(at));
                let shared = users
                    .insert(*noted, id)
                    .map(|_| "is another function's too");
                match (other, shared) {
                    (Some(at), _) => format!("its counter is at {noted:#x}, and it asks {at:#x}"),
                    (None, Some(shared)) => format!("its counter at {noted:#x} {shared}"),
                    (None, None) => continue,
                }
            }
            ([], []) => "it does not count".to_owned(),
            (noted, called) => {
                format!("it counts at {called:x?}, and first calls are noted at {noted:x?}")
            }
        };
        let text = format!("calls of the function are not counted as they must: {what}");
        let failure = Failure::new(Check::Counting, text).at(f.old_entry, f.new_entry());
        found.functions.push((id, failure));
    }
}

/// What runs before the program does, in the place of something else, does so once, and keeps what it must.
pub(crate) fn check_hooks<A: Arch>(cx: &Context<'_>, found: &mut Findings) {
    let hooks = if cx.counts.is_some() {
        found.hooks.as_slice()
    } else {
        // What asks for huge pages is compared instruction by instruction.
        &[]
    };
    let mut failures = Vec::new();
    for &(old, new) in hooks {
        let entry = cx.old.owner(old).and_then(|id| cx.function(id));
        let entry = entry.filter(|f| f.old_entry == old).map(|f| f.new_entry());
        let goes_on = |at: u64| at == old.get() || entry.is_some_and(|entry| entry.get() == at);
        let next: Option<&dyn Fn(u64) -> bool> = if old.get() == 0 { None } else { Some(&goes_on) };
        if let Err(why) =
            routines::starts_up::<A>(&|at| cx.unowned(OutputAddr::new(at)), next, new.get())
        {
            let text = format!(
                "the start-up routine is not shown to leave registers, flags and stack as they were: {why}"
            );
            failures.push(Failure::new(Check::Dynamic, text).at(old, new));
        }
    }
    found.file.append(&mut failures);
    if found.hooks.len() > 1 {
        let text = format!(
            "{} pointers lead to start-up code; there may be one",
            found.hooks.len()
        );
        found.file.push(Failure::new(Check::Dynamic, text));
    }
}

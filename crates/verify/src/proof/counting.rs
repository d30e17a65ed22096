//! What all instrumented functions share: where counters are, and what all functions together may assume of that
//! memory.

use crate::addr::OutputAddr;
use crate::arch::{Arch, Flow};
use crate::consulted::{self, Consulted};
use crate::context::{Context, Counts, Findings, FuncId};
use crate::files::bytes::Reader;
use crate::files::claim::Range;
use crate::frames::Rows;
use crate::machine::Footprint;
use crate::proof::gaps;
use crate::proof::image::Layout;
use crate::report::{Check, Failure};
use crate::routines::{self, Routine};
use crate::walk::Walked;
use rustc_hash::FxHashMap;

/// Memory in front of the first thread's counters that belongs to the start-up code.
const PRIVATE: u64 = 0x8000;

/// Functions whose footprints one thread joins.
const PART: usize = 1 << 12;

/// Calls are sampled where these bits of their number are zero.
const PERIOD: u64 = 63;
/// The type of the note that says which calls of the output are which of the input.
const CALLERS: u32 = 3;

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

/// What unwinding from recorders gave.
#[derive(Clone, Default)]
pub(crate) struct Unwound {
    /// Routines that they call, and the registers that each may destroy.
    pub routines: Vec<(u64, u32)>,
    /// By function, ascending; without those of which something could not be unwound from.
    pub of: Vec<(FuncId, Recorders)>,
}

/// A function's recorders, all of which can be unwound from.
#[derive(Clone)]
pub(crate) struct Recorders {
    pub at: Box<[OutputAddr]>,
    /// How many instructions they have.
    pub count: u64,
    pub consulted: Consulted,
}

/// What is known of unwinding from recorders of a function, which are at these addresses, if routines destroy these
/// registers.
pub(crate) type Known<'k> =
    &'k (dyn Fn(FuncId, &[OutputAddr], &[(u64, u32)]) -> Option<Recorders> + Sync);

/// What must hold for all functions together. `known`: of a check before.
pub(crate) fn judge<A: Arch>(
    cx: &Context<'_>,
    walked: &[Walked],
    known: Known<'_>,
    found: &mut Findings,
) -> Unwound {
    let parts = postlink_parallel::map_parts(walked.len(), PART, |part| {
        let mut all = Footprint::default();
        for w in walked.get(part).unwrap_or(&[]) {
            all.join_shared(w.footprint());
            all.own |= w.touches_own;
        }
        all
    });
    let mut all = Footprint::default();
    parts.iter().for_each(|part| all.join_shared(part));
    counters_of_calls::<A>(cx, walked, found);
    let unwound = rows_of_routines::<A>(cx, &all, walked, known, found);
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
    unwound
}

/// Unwinds from each instruction of recorders and routines, if either file has unwind entries, and counts them; but not
/// from those of which it is `known` that it would find the same.
fn rows_of_routines<A: Arch>(
    cx: &Context<'_>,
    all: &Footprint,
    walked: &[Walked],
    known: Known<'_>,
    found: &mut Findings,
) -> Unwound {
    let mut unwound = Unwound {
        routines: all.routines.to_vec(),
        of: Vec::new(),
    };
    if cx.old_unwind.fdes.is_empty() && cx.new_unwind.fdes.is_empty() {
        return unwound;
    }
    let code = |at: u64| cx.unowned(OutputAddr::new(at));
    let routine = Routine {
        code: &code,
        goes_on: &|_| false,
    };
    let destroys = |at: u64| all.routines.iter().find(|r| r.0 == at).map(|r| r.1);
    let mut count = 0;
    for (start, lost) in &all.routines {
        let mut rows = Rows::new(&cx.new_unwind);
        match routine.unwinds::<A>(*start, false, *lost, &|_| None, &mut rows) {
            Ok(seen) => count += seen,
            Err(why) => {
                let text = format!("the routine at {start:#x} cannot be unwound from: {why}");
                found.file.push(Failure::new(Check::Unwind, text));
            }
        }
    }
    let ids: Vec<FuncId> = (0..)
        .zip(walked)
        .filter(|(_, w)| !w.recorders.is_empty())
        .map(|(id, _)| id)
        .collect();
    let of_functions = postlink_parallel::map(&ids, |id| {
        let recorders = walked.get(*id as usize).map_or(&[][..], |w| &*w.recorders);
        if let Some(known) = known(*id, recorders, &all.routines) {
            return Ok(known);
        }
        let unwind = || -> Result<u64, (OutputAddr, String)> {
            let mut rows = Rows::new(&cx.new_unwind);
            let routine = Routine {
                code: &|at: u64| cx.unowned(OutputAddr::new(at)),
                goes_on: &|_| false,
            };
            let mut count = 0;
            for start in recorders {
                let scratch = A::STUB_SCRATCH;
                let seen = routine.unwinds::<A>(start.get(), false, scratch, &destroys, &mut rows);
                count += seen.map_err(|why| (*start, why))?;
            }
            Ok(count)
        };
        let (count, consulted) = consulted::noting(cx.output.is_noted, unwind);
        Ok(Recorders {
            at: recorders.into(),
            count: count?,
            consulted,
        })
    });
    for (id, seen) in ids.into_iter().zip(of_functions) {
        match seen {
            Ok(recorders) => {
                count += recorders.count;
                if cx.output.is_noted {
                    unwound.of.push((id, recorders));
                }
            }
            Err((start, why)) => {
                let text = format!("a recorder cannot be unwound from: {why}");
                let old = cx.function(id).map(|f| f.old_entry).unwrap_or_default();
                let failure = Failure::new(Check::Unwind, text).at(old, start);
                found.functions.push((id, failure));
            }
        }
    }
    found.routine_rows += count;
    unwound
}

/// Where calls are counted, each function counts in one counter of its own: that counter's first call is noted, one is
/// added to it, and what is asked is it or the place of its first call. Where it is noted where calls come from, that
/// is the return address of the first and of every 64th, and the output says which call of the input it belongs to.
fn counters_of_calls<A: Arch>(cx: &Context<'_>, walked: &[Walked], found: &mut Findings) {
    let of_calls = |w: &Walked| {
        let print = w.footprint();
        !(print.noted.is_empty() && print.called.is_empty())
    };
    if !walked.iter().any(of_calls) {
        return;
    }
    let mut users: FxHashMap<u64, FuncId> = FxHashMap::default();
    let has_callers = |w: &Walked| !w.footprint().callers.is_empty();
    if walked.iter().any(has_callers) {
        callers::<A>(cx, walked, found);
    }
    for (id, w) in (0..).zip(walked) {
        let Some(f) = cx.function(id).filter(|_| w.failure.is_none()) else {
            continue;
        };
        let print = w.footprint();
        let sampled = match (print.masks.as_slice(), has_callers(w)) {
            ([], false) | ([PERIOD], true) => None,
            (masks, true) => Some(format!(
                "where they come from is sampled by the bits {masks:#x?}, not by {PERIOD:#x}"
            )),
            (masks, false) => Some(format!("its counter is asked by the bits {masks:#x?}")),
        };
        let wrong = w.no_caller.as_deref().map(str::to_owned).or(sampled);
        if let Some(what) = wrong {
            let text = format!("calls of the function are not counted as they must: {what}");
            let failure = Failure::new(Check::Counting, text).at(f.old_entry, f.new_entry());
            found.functions.push((id, failure));
            continue;
        }
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

/// Where it is noted where calls come from, the note of owner `postlink` and type 3 must give every call in new code
/// that is reached the call of the input that it corresponds to:
///
/// | field | encoding |
/// |---|---|
/// | version, 1 | u32 |
/// | number of calls, ascending in the output | uleb |
/// | per call: return address in the output − the one before it | uleb |
/// | return address in the input − the one before it | sleb |
///
/// New addresses are there once, so no call has two meanings. What it says of code that nothing reaches is never read.
fn callers<A: Arch>(cx: &Context<'_>, walked: &[Walked], found: &mut Findings) {
    let mut fail = |text: String| found.file.push(Failure::new(Check::Counting, text));
    let Some(note) = cx.output.note(b"postlink", CALLERS) else {
        return fail(
            "where calls come from is noted, and the output does not say which calls of the input these are".into(),
        );
    };
    let Some(known) = read_callers(note) else {
        return fail("the note of where calls come from cannot be read".into());
    };
    let base = cx.input.extent().0;
    for (id, w) in (0..).zip(walked) {
        let Some(f) = cx.function(id).filter(|_| w.failure.is_none()) else {
            continue;
        };
        for (slot, old) in w.pairs.each(base) {
            let bytes = cx.input.bytes_from(old).unwrap_or(b"");
            let Some(call) = A::decode(bytes, old).filter(|i| is_call(i.flow)) else {
                continue;
            };
            let new = f.address(slot).and_then(|at| {
                let insn = A::decode(cx.output.bytes_from(at.get())?, at.get())?;
                is_call(insn.flow).then(|| at.get() + u64::from(insn.len))
            });
            // Jumps and padding in front of a call are pairs with it, too.
            let Some(new) = new else { continue };
            let back = old + u64::from(call.len);
            let said = known.binary_search_by_key(&new, |known| known.0);
            let said = said.ok().and_then(|i| known.get(i)).map(|known| known.1);
            if said != Some(back) {
                let text = match said {
                    Some(said) => format!(
                        "the call that returns to {new:#x} is that which returns to {back:#x}, and the output says {said:#x}"
                    ),
                    None => format!(
                        "the call that returns to {new:#x} is that which returns to {back:#x}, and the output does not say so"
                    ),
                };
                let failure = Failure::new(Check::Counting, text).at(f.old_entry, f.new_entry());
                found.functions.push((id, failure));
                break;
            }
        }
    }
}

fn is_call(flow: Flow) -> bool {
    matches!(flow, Flow::Call(_) | Flow::IndirectCall)
}

/// Return addresses: of the output, ascending, and of the input.
fn read_callers(note: &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut r = Reader::new(note);
    if r.u32()? != 1 {
        return None;
    }
    let count = r.uleb()?;
    let mut known: Vec<(u64, u64)> = Vec::new();
    let (mut new, mut old) = (0u64, 0u64);
    for _ in 0..count {
        let further = r.uleb()?;
        if further == 0 {
            return None;
        }
        new = new.checked_add(further)?;
        old = old.wrapping_add_signed(r.sleb()?);
        known.push((new, old));
    }
    r.is_empty().then_some(known)
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
        } else if cx.new_unwind.find(new.get()).is_some() {
            // Only one that has a routine with it which inserted code calls has rows.
            let routine = Routine {
                code: &|at: u64| cx.unowned(OutputAddr::new(at)),
                goes_on: next.unwrap_or(&|_| false),
            };
            let free = if A::LINK.is_empty() {
                0
            } else {
                A::STUB_SCRATCH
            };
            let (outermost, start) = (cx.input.entry == old.get(), new.get());
            let mut rows = Rows::new(&cx.new_unwind);
            match routine.unwinds::<A>(start, outermost, free, &|_| None, &mut rows) {
                Ok(seen) => found.routine_rows += seen,
                Err(why) => {
                    let text = format!("the start-up routine cannot be unwound from: {why}");
                    failures.push(Failure::new(Check::Unwind, text).at(old, new));
                }
            }
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

//! Whether code that neither an unwind entry nor a dynamic symbol covers uses the segment of per-thread counters, where
//! no kept relocations were used.
//!
//! There nothing tells of all ways into such code: an instruction may begin at every byte of it. Operands of
//! hand-written functions (`vpshufd $0x65`, displacements) then look like prefixes by chance. So code is followed from
//! where covered code calls it or branches to it: control comes there, and goes on as it decodes (assumption A2).
//! An instruction that was come to so has none within it, but where a branch leads into it.
//!
//! One way counts only if it makes sense as a whole: everything up to its ends decodes, is for programs, and is
//! in code. If not, what it began with may be data, and what it says is forgotten.

use crate::arch::{Arch, Flow};
use crate::context::Context;
use crate::files::claim::Range;
use crate::proof::{gaps, inside};
use rustc_hash::FxHashMap;

/// More bytes than this no instruction has.
const LONGEST: u64 = 15;
const DT_INIT: u64 = 12;
const DT_FINI: u64 = 13;

/// The first instruction that may use the segment.
pub(crate) fn uses_own<A: Arch>(cx: &Context<'_>) -> Option<u64> {
    let covered = inside::covered(cx);
    let suspects: Vec<u64> = inside::uncovered(cx, &covered)
        .into_iter()
        .flat_map(|range| in_range::<A>(cx, range))
        .collect();
    // Few programs have any.
    if suspects.is_empty() {
        return None;
    }
    let known = Known::new::<A>(cx, &covered);
    suspects.into_iter().find(|at| !known.is_within(*at))
}

/// All positions of a range where there may be such an instruction.
fn in_range<A: Arch>(cx: &Context<'_>, range: Range) -> Vec<u64> {
    let bytes = cx.input.bytes(range.start, range.len()).unwrap_or(b"");
    let uses = |at: &usize| {
        let rest = bytes.get(*at..).unwrap_or(b"");
        let insn = A::decode(rest, range.start + *at as u64);
        insn.is_some_and(|insn| {
            let own = rest.get(..usize::from(insn.len)).unwrap_or(rest);
            insn.flow != Flow::Nothing && A::uses_own(own)
        })
    };
    let found = (0..bytes.len()).filter(uses);
    found.map(|at| range.start + at as u64).collect()
}

/// Instructions of uncovered code to which control comes: addresses and lengths.
struct Known {
    all: FxHashMap<u64, u8>,
}

impl Known {
    fn new<A: Arch>(cx: &Context<'_>, covered: &[Range]) -> Known {
        let mut known = Known {
            all: FxHashMap::default(),
        };
        let mut roots: Vec<u64> = postlink_parallel::flat_map(covered, |r| leads_to::<A>(cx, *r));
        roots.push(cx.input.entry);
        roots.extend(
            [DT_INIT, DT_FINI]
                .iter()
                .filter_map(|tag| cx.input.dynamic_value(*tag)),
        );
        roots.sort_unstable();
        roots.dedup();
        let mut merged = covered.to_vec();
        merge(&mut merged);
        let outside = |at: &u64| !gaps::within(&merged, *at);
        for root in roots.into_iter().filter(outside) {
            if let Some(way) = follow::<A>(cx, &known, root, &outside) {
                known.all.extend(way);
            }
        }
        known
    }

    /// Whether an address is inside of one, and none begins there.
    fn is_within(&self, at: u64) -> bool {
        let covers = |back: u64| {
            let len = at.checked_sub(back).and_then(|start| self.all.get(&start));
            len.is_some_and(|len| back < u64::from(*len))
        };
        !self.all.contains_key(&at) && (1..LONGEST).any(covers)
    }
}

/// Where branches and calls of a covered range lead. What does not decode may be data, and so may the rest.
fn leads_to<A: Arch>(cx: &Context<'_>, range: Range) -> Vec<u64> {
    let bytes = cx.input.bytes(range.start, range.len()).unwrap_or(b"");
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(insn) = A::decode(rest, range.start + at as u64) else {
            break;
        };
        if let Flow::Jump(to) | Flow::Branch { target: to, .. } | Flow::Call(to) = insn.flow
            && !range.contains(to)
        {
            found.push(to);
        }
        at += usize::from(insn.len);
    }
    found
}

/// All instructions to which control comes from an address, up to code that is covered or known. `None` if that is not
/// code for certain.
fn follow<A: Arch>(
    cx: &Context<'_>,
    known: &Known,
    root: u64,
    outside: &dyn Fn(&u64) -> bool,
) -> Option<FxHashMap<u64, u8>> {
    let mut way: FxHashMap<u64, u8> = FxHashMap::default();
    let mut work = vec![root];
    while let Some(at) = work.pop() {
        if !outside(&at) || way.contains_key(&at) || known.all.contains_key(&at) {
            continue;
        }
        let bytes = cx.input.bytes_from(at).filter(|_| cx.is_code(at))?;
        let insn = A::decode(bytes, at)?;
        let next = at.checked_add(u64::from(insn.len))?;
        if A::is_privileged(bytes) {
            return None;
        }
        way.insert(at, insn.len);
        match insn.flow {
            Flow::Jump(target) => work.push(target),
            Flow::Branch { target, .. } | Flow::Call(target) => work.extend([target, next]),
            Flow::Next | Flow::Nothing | Flow::IndirectCall | Flow::Trap => work.push(next),
            // A stub whose function has not been looked up yet goes on where its slot says: within itself.
            Flow::IndirectJump { computed: false } => {
                let slot = insn.field.map(|f| f.target);
                let first = slot.and_then(|slot| cx.input.u64_at(slot));
                work.extend(first.filter(|to| cx.is_code(*to)));
            }
            Flow::IndirectJump { .. } | Flow::Stop => {}
        }
    }
    Some(way)
}

/// Ascending ranges, of which some may overlap, as disjoint ones.
fn merge(ranges: &mut Vec<Range>) {
    let mut merged: Vec<Range> = Vec::with_capacity(ranges.len());
    for r in ranges.drain(..) {
        match merged.last_mut() {
            Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
            _ => merged.push(r),
        }
    }
    *ranges = merged;
}

//! Code that belongs to no function: what is in sections of code outside of every symbol with a size and
//! every unwind entry.
//!
//! Mostly it is padding and data: constants, tables, and the names that hand-written assembly carries
//! (`Montgomery Multiplication for x86_64`). Decoded as if it were code, data says anything. It is code where
//! control can come:
//!
//! * at a symbol that is not one of data;
//! * where a branch or call of a function leads, or an address that one forms;
//! * where a pointer in data leads: every relocation's addend, alone and with its symbol, whatever its kind;
//! * after a function whose last instruction continues.
//!
//! From there all ways are followed until they end, also at what cannot be decoded, or would end the program.
//! A data table whose address is formed is taken for code by this. That is a mistake on the safe side.

use crate::addr::InputAddr;
use crate::arch::{Arch, FieldKind, Flow, Insn};
use crate::context::{Context, FuncId};
use crate::files::bytes::u64_in;
use crate::files::claim::Range;
use crate::files::elf::{SHT_CREL, SHT_DYNSYM, SHT_RELA, SHT_SYMTAB};
use crate::proof::uncovered;
use rayon::prelude::*;
use rustc_hash::FxHashSet;

/// An instruction that uses the segment of per-thread counters, if control can reach one at all.
/// `suspects` are all that look like it.
pub(crate) fn uses_own<A: Arch>(cx: &Context<'_>, suspects: &[u64]) -> Option<u64> {
    if suspects.is_empty() && !cx.bare {
        return None;
    }
    let covered = covered(cx);
    let mut used = suspects.iter().copied().find(|at| within(&covered, *at));
    if used.is_none() && cx.bare {
        return uncovered::uses_own::<A>(cx);
    }
    if used.is_none() {
        explore::<A>(cx, &covered, &mut |at, bytes, _| {
            used = used.or(A::uses_own(bytes).then_some(at));
        });
    }
    used
}

/// What leads into a jump at an old entry: function, address, target. Of what is in a function all, of the
/// rest what control can reach.
pub(crate) fn into_jumps<A: Arch>(
    cx: &Context<'_>,
    suspects: Vec<(FuncId, u64, u64)>,
) -> Vec<(FuncId, u64, u64)> {
    // Without kept relocations another analysis says all.
    if suspects.is_empty() || cx.bare {
        return Vec::new();
    }
    let covered = covered(cx);
    let all = suspects.len();
    let mut real: Vec<_> = suspects
        .into_iter()
        .filter(|s| within(&covered, s.1))
        .collect();
    if real.len() < all {
        explore::<A>(cx, &covered, &mut |at, _, insn| {
            let leads = insn.field.filter(|f| f.kind != FieldKind::Accesses);
            let target = leads.map_or(at, |f| f.target);
            real.extend(
                cx.interiors
                    .owner(InputAddr::new(target))
                    .map(|id| (id, at, target)),
            );
        });
    }
    real
}

/// Whether one of some ascending, disjoint ranges has an address.
pub(crate) fn within(ranges: &[Range], addr: u64) -> bool {
    let i = ranges.partition_point(|r| r.start <= addr);
    let last = i.checked_sub(1).and_then(|i| ranges.get(i));
    last.is_some_and(|r| addr < r.end)
}

/// Visits all instructions outside of functions to which the program can come: address, bytes, decoded.
fn explore<A: Arch>(cx: &Context<'_>, covered: &[Range], visit: &mut dyn FnMut(u64, &[u8], &Insn)) {
    let outside = |addr: &u64| cx.is_code(*addr) && !within(covered, *addr);
    let mut work: Vec<u64> = roots::<A>(cx, covered)
        .into_iter()
        .filter(outside)
        .collect();
    let mut seen = FxHashSet::default();
    while let Some(at) = work.pop() {
        if !outside(&at) || !seen.insert(at) {
            continue;
        }
        let Some(bytes) = cx.input.bytes_from(at) else {
            continue;
        };
        let Some(insn) = A::decode(bytes, at) else {
            continue;
        };
        let len = usize::from(insn.len);
        if A::is_privileged(bytes) {
            continue;
        }
        visit(at, bytes.get(..len).unwrap_or(bytes), &insn);
        let next = at.saturating_add(u64::from(insn.len));
        match insn.flow {
            Flow::Jump(target) => work.push(target),
            Flow::Branch { target, .. } | Flow::Call(target) => work.extend([target, next]),
            Flow::Next | Flow::Nothing | Flow::IndirectCall | Flow::Trap => work.push(next),
            Flow::IndirectJump { .. } | Flow::Stop => {}
        }
    }
}

/// What functions have: ascending, disjoint.
fn covered(cx: &Context<'_>) -> Vec<Range> {
    let tables = [SHT_SYMTAB, SHT_DYNSYM];
    let symbols = tables.into_iter().flat_map(|t| cx.input.symbols(t));
    let functions = symbols
        .filter(|s| s.is_function() && s.section != 0 && s.size > 0)
        .map(|s| (s.value, s.value.saturating_add(s.size)));
    let unwound = cx.old_unwind.fdes.iter().map(|f| (f.start, f.end));
    let moved = cx.functions.iter().flat_map(|f| &f.old);
    let mut all: Vec<(u64, u64)> = functions
        .chain(unwound)
        .chain(moved.map(|r| (r.start.get(), r.end.get())))
        .filter(|(start, end)| start < end && cx.is_code(*start))
        .collect();
    all.par_sort_unstable();
    let mut merged: Vec<Range> = Vec::new();
    for (start, end) in all {
        match merged.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => merged.push(Range { start, end }),
        }
    }
    merged
}

/// Addresses where the program may come, among others.
fn roots<A: Arch>(cx: &Context<'_>, covered: &[Range]) -> Vec<u64> {
    const STT_OBJECT: u8 = 1;
    const STT_SECTION: u8 = 3;
    const STT_FILE: u8 = 4;
    const STT_TLS: u8 = 6;
    let of_code = |kind: u8| !matches!(kind, STT_OBJECT | STT_SECTION | STT_FILE | STT_TLS);
    let mut all: Vec<u64> = [SHT_SYMTAB, SHT_DYNSYM]
        .into_iter()
        .flat_map(|t| cx.input.symbols(t))
        .filter(|s| s.section != 0 && of_code(s.kind()))
        .map(|s| s.value)
        .collect();
    all.push(cx.input.entry);
    let values: Vec<u64> = cx
        .input
        .nameless_symbols(SHT_SYMTAB)
        .map(|s| s.value)
        .collect();
    for section in cx
        .input
        .sections
        .iter()
        .filter(|s| matches!(s.kind, SHT_RELA | SHT_CREL))
    {
        let target = cx.input.sections.get(section.info as usize);
        // Instructions say themselves where they lead.
        if !section.is_alloc() && target.is_some_and(|t| cx.is_code(t.addr)) {
            continue;
        }
        for entry in cx.input.relocation_records(section).chunks_exact(24) {
            let (Some(info), Some(addend)) = (u64_in(entry, 8), u64_in(entry, 16)) else {
                continue;
            };
            let symbol = values.get((info >> 32) as usize).copied();
            all.push(addend);
            all.extend(
                symbol
                    .filter(|_| !section.is_alloc())
                    .map(|s| s.wrapping_add(addend)),
            );
        }
    }
    let of_range = |r: &Range| {
        let mut found = Vec::new();
        let bytes = cx.input.bytes(r.start, r.end - r.start).unwrap_or(b"");
        let mut at = 0;
        let mut goes_on = false;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let addr = r.start + at as u64;
            let Some(insn) = A::decode(rest, addr) else {
                at += A::STEP;
                continue;
            };
            let len = usize::from(insn.len);
            let own = rest.get(..len).unwrap_or(rest);
            let absolute = A::absolute_field(own).filter(|_| cx.fixed());
            let fields = [insn.field, absolute].into_iter().flatten();
            let leads = fields.filter(|f| f.kind != FieldKind::Accesses);
            found.extend(leads.map(|f| f.target));
            goes_on = !matches!(
                insn.flow,
                Flow::Jump(_) | Flow::IndirectJump { .. } | Flow::Stop
            );
            at += len;
        }
        found.extend(goes_on.then_some(r.end));
        found
    };
    all.extend(postlink_parallel::flat_map(covered, of_range));
    all
}

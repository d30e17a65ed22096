//! Code that belongs to no function: whether it uses the segment of per-thread counters.
//!
//! The checker asks that of the whole file ([`per_thread`](super::per_thread) of functions alone), and refuses counters
//! in a segment that the program uses: then all code would be made again, with others. What is asked here is
//! the same.
//!
//! * Where the linker kept relocations they tell of all ways into such code, with what instructions lead to and
//!   form. What can be come to is decoded; the rest is data and padding.
//! * Where it kept none, an instruction may begin at every byte, but for the insides of those to which calls and
//!   branches of functions lead. Such a way counts only if it makes sense up to all its ends; else it may
//!   have begun with data.
//!
//! Most files have no byte in such code that looks like it at all, so that is asked first.

use postlink_elf::elf::SymbolTable;
use postlink_elf::raw::PF_X;
use postlink_isa::{FixupKind, Flow, Insn, Isa};
use rustc_hash::FxHashMap;

use crate::discover::{Piece, Pointer, Program, Range, covered, gaps};
use crate::pin::Pin;

/// More bytes than this no instruction has.
const LONGEST: u64 = 15;
const DT_INIT: i64 = 12;
const DT_FINI: i64 = 13;
const STT_OBJECT: u8 = 1;
const STT_SECTION: u8 = 3;
const STT_FILE: u8 = 4;
const STT_TLS: u8 = 6;

/// The first instruction outside of functions that uses the segment, as far as control may come to it.
pub fn uses_segment<I: Isa>(program: &Program<'_>) -> Option<u64> {
    let kept = program.refs.kept;
    let covered = if kept {
        of_functions(program)
    } else {
        covered(program)
    };
    let gaps = gaps(program.elf, &covered);
    let suspects: Vec<u64> = gaps
        .iter()
        .flat_map(|r| in_range::<I>(program, *r))
        .collect();
    if suspects.is_empty() {
        return None;
    }
    let gaps: Vec<Range> = if kept {
        let matter = |r: &Range| {
            let next = suspects.partition_point(|at| *at < r.0);
            let has_suspect = suspects.get(next).is_some_and(|at| *at < r.1);
            (has_suspect || !is_padding::<I>(program, *r)).then_some(*r)
        };
        postlink_parallel::filter_map(&gaps, matter)
    } else {
        gaps
    };
    let gap = |at: u64| {
        let i = gaps.partition_point(|r| r.0 <= at).checked_sub(1)?;
        gaps.get(i).copied().filter(|r| at < r.1)
    };
    let is_in_gap = |at: &u64| gap(*at).is_some();
    let mut roots =
        postlink_parallel::flat_map(&covered, |r| leads_to::<I>(program, *r, kept, &is_in_gap));
    roots.push(program.elf.entry);
    let tags = program.elf.dynamic.iter();
    roots.extend(
        tags.filter(|t| matches!(t.0, DT_INIT | DT_FINI))
            .map(|t| t.1),
    );
    if kept {
        roots.extend(known_by_tables::<I>(program, &is_in_gap));
    }
    roots.retain(is_in_gap);
    roots.sort_unstable();
    roots.dedup();
    let mut reached = FxHashMap::default();
    for root in roots {
        let whole = follow::<I>(program, &gap, root, &mut reached);
        if !whole && !kept {
            // Nothing of it is certain.
            reached.retain(|_, known: &mut Reached| known.by != root);
        }
    }
    let is_insn = |at: &u64| reached.contains_key(at) || !kept && !is_within(&reached, *at);
    suspects.into_iter().find(is_insn)
}

/// An instruction that control comes to.
struct Reached {
    len: u8,
    /// Where the way to it began.
    by: u64,
}

fn is_within(reached: &FxHashMap<u64, Reached>, at: u64) -> bool {
    (1..LONGEST).any(|back| {
        let insn = at.checked_sub(back).and_then(|start| reached.get(&start));
        insn.is_some_and(|insn| back < u64::from(insn.len))
    })
}

/// What is in functions, and what symbols and unwind entries say is in some: ascending, disjoint. Where a symbol
/// without a size ends is not known.
fn of_functions(program: &Program<'_>) -> Vec<Range> {
    let has_end = |p: &&Piece| program.functions[p.function as usize].pin != Some(Pin::NoSize);
    let pieces = program
        .pieces
        .iter()
        .filter(has_end)
        .map(|p| (p.start, p.end));
    let mut all: Vec<Range> = pieces.chain(covered(program)).collect();
    all.sort_unstable();
    let mut merged: Vec<Range> = Vec::with_capacity(all.len());
    for (start, end) in all {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Whether a range is nothing but nops: what comes there goes on behind it.
fn is_padding<I: Isa>(program: &Program<'_>, (start, end): Range) -> bool {
    let bytes = program.elf.bytes_at(start, end - start).unwrap_or_default();
    let mut nops = 0;
    I::sweep(bytes, start, |insn| {
        nops += if insn.traits.nop {
            u64::from(insn.len)
        } else {
            0
        };
        insn.traits.nop
    });
    nops == end - start
}

/// All positions of a range where an instruction that uses the segment may begin.
fn in_range<I: Isa>(program: &Program<'_>, (start, end): Range) -> Vec<u64> {
    let bytes = program.elf.bytes_at(start, end - start).unwrap_or_default();
    let found = (0..bytes.len()).filter(|at| I::uses_thread_segment(&bytes[*at..]));
    found.map(|at| start + at as u64).collect()
}

/// Where a covered range leads out of itself, as far as that matters: by branches and calls, and with `all` also by
/// addresses that it forms, and by what follows its end.
fn leads_to<I: Isa>(
    program: &Program<'_>,
    (start, end): Range,
    all: bool,
    matters: &impl Fn(&u64) -> bool,
) -> Vec<u64> {
    let bytes = program.elf.bytes_at(start, end - start).unwrap_or_default();
    let mut found = Vec::new();
    let mut goes_on = false;
    let mut from = 0;
    loop {
        let stopped = I::sweep(&bytes[from..], start + from as u64, |insn| {
            let to = target(insn).or_else(|| formed(insn).filter(|_| all));
            found.extend(to.filter(|to| (*to < start || *to >= end) && matters(to)));
            goes_on = !ends(insn);
            true
        });
        let Some(stopped) = stopped.filter(|_| all) else {
            break;
        };
        from = (stopped - start) as usize + I::INSTRUCTION_ALIGNMENT as usize;
        if from >= bytes.len() {
            break;
        }
    }
    found.extend((all && goes_on).then_some(end).filter(matters));
    found
}

/// Where a branch or call leads.
fn target(insn: &Insn) -> Option<u64> {
    match insn.flow {
        Flow::Jump { target }
        | Flow::CondJump { target, .. }
        | Flow::ShortCond { target }
        | Flow::Call { target } => Some(target),
        _ => None,
    }
}

fn formed(insn: &Insn) -> Option<u64> {
    insn.field
        .filter(|_| insn.traits.forms_address)
        .map(|f| f.target)
}

/// Whether what follows is not come to.
fn ends(insn: &Insn) -> bool {
    matches!(
        insn.flow,
        Flow::Jump { .. } | Flow::IndirectJump | Flow::Return | Flow::Stop
    )
}

/// What symbols, pointers and absolute operands name, as far as that matters.
fn known_by_tables<I: Isa>(
    program: &Program<'_>,
    matters: &(impl Fn(&u64) -> bool + Sync),
) -> Vec<u64> {
    let (elf, refs) = (program.elf, &program.refs);
    let of_data = |kind: u8| matches!(kind, STT_OBJECT | STT_SECTION | STT_FILE | STT_TLS);
    let mut found = Vec::new();
    for table in [SymbolTable::Static, SymbolTable::Dynamic] {
        let symbols = elf.symbols(table);
        let code = symbols
            .iter()
            .filter(|s| s.section != 0 && !of_data(s.kind));
        found.extend(code.map(|s| s.value).filter(matters));
    }
    let pointers = |p: &Pointer| Some(p.target).filter(matters);
    found.extend(postlink_parallel::filter_map(&refs.pointers, pointers));
    let formed = |f: &(u64, u64)| Some(f.1).filter(matters);
    found.extend(postlink_parallel::filter_map(&refs.formed, formed));
    let field = |(place, kind): &(u64, FixupKind)| {
        let bytes = elf
            .bytes_at(*place, 8)
            .or_else(|| elf.bytes_at(*place, 4))?;
        I::read_field(*kind, bytes, *place).filter(matters)
    };
    let fields = postlink_parallel::filter_map(&refs.absolute_fields, field);
    found.extend(fields);
    found
}

/// Follows all ways through gaps from an address, and adds what instructions there are. Says whether everything
/// is code, as far as that can be seen.
fn follow<I: Isa>(
    program: &Program<'_>,
    gap: &impl Fn(u64) -> Option<Range>,
    root: u64,
    reached: &mut FxHashMap<u64, Reached>,
) -> bool {
    let is_code = |at: u64| {
        let mut loads = program.elf.loads();
        loads.any(|s| s.flags & PF_X != 0 && s.addr <= at && at - s.addr < s.file_size)
    };
    let mut whole = true;
    let mut work = vec![root];
    while let Some(at) = work.pop() {
        let Some((_, end)) = gap(at) else {
            whole &= is_code(at);
            continue;
        };
        if reached.contains_key(&at) {
            continue;
        }
        let bytes = program.elf.bytes_at(at, end - at).unwrap_or_default();
        let Some(insn) = I::decode(bytes, at).filter(|_| !I::is_privileged(bytes)) else {
            whole = false;
            continue;
        };
        let known = Reached {
            len: insn.len,
            by: root,
        };
        reached.insert(at, known);
        work.extend(target(&insn));
        if insn.flow == Flow::IndirectJump
            && let Some(slot) = insn.slot()
            && let Some(word) = program.elf.bytes_at(slot, 8).and_then(|b| b.first_chunk())
        {
            // A stub whose function has not been looked up yet goes on where its slot says: within itself.
            work.extend(Some(u64::from_le_bytes(*word)).filter(|to| gap(*to).is_some()));
        }
        if !ends(&insn) {
            work.push(insn.end());
        }
    }
    whole
}

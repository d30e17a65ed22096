//! Outputs for which the rewriter used no relocations that the linker kept.
//!
//! What then refers to code is not known. So nothing may rest on it: every register and every byte of memory
//! holds what it held, every address that code forms is the old one, and the old image is as it was but for
//! jumps at old entries. What new code does not know it does unchanged, and control then continues in old code,
//! with the state that the old program would have there. The rest of the proof asks [`Context::bare`] where it
//! would allow more. What is shown here:
//!
//! | what | why |
//! |---|---|
//! | the claim fits the input: kept relocations are there if they were used, the type of the file if not | a claim of relocations that are not there would allow what cannot be shown |
//! | a jump is at an old entry if and only if the claim says so | the certificate says what each function rests on |
//! | what is said to continue in old code is an indirect jump that may | such functions may have labels whose addresses are known |
//! | jump tables of new code's own overlap nothing that is claimed | what each holds is shown in the lock step, by the function that reads it |
//! | at a fixed address, words and numbers that could be addresses inside of moved functions | a table may describe the function's code by address |
//! | addresses inside of moved functions that code forms where an instruction could begin, and that stay: there is a jump to new code, and nothing of the function but such an address leads there | it is a further entry, and nothing describes code by it alone |
//! | lists of places that are patched or watched at run time, read in every way | likewise |
//!
//! That nothing leads into the jumps at old entries is shown in [`super::inside`]; that new unwind entries are found,
//! in [`super::headers`].

use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{Arch, Flow};
use crate::context::{Context, Findings, FuncId, PAGE};
use crate::files::bytes::u64_in;
use crate::files::claim::{Basis, Claim, OwnTable, Range};
use crate::files::elf::{
    ET_EXEC, Elf, PT_GNU_RELRO, PT_LOAD, SHF_EXECINSTR, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB,
    Section, Segment, Symbol,
};
use crate::files::unwind::Table;
use crate::proof::image;
use crate::proof::visible::Extents;
use crate::report::{Check, Failure};
use rustc_hash::FxHashSet;

/// Whether the linker kept relocations of code.
fn keeps_relocations(input: &Elf<'_>) -> bool {
    let of_code = |info: u32| {
        let about = input.sections.get(info as usize).filter(|_| info != 0);
        about.is_some_and(Section::is_code)
    };
    let mut sections = input.sections.iter();
    sections.any(|s| s.is_kept_relocations() && s.size > 0 && of_code(s.info))
}

/// Checks that the claim fits the input.
pub(crate) fn check_basis<A: Arch>(input: &Elf<'_>, claim: &Claim<'_>, found: &mut Findings) {
    let mut fail = |text: &str| found.file.push(Failure::new(Check::Claim, text));
    let fixed = input.etype == ET_EXEC;
    match claim.basis {
        None if !keeps_relocations(input) && !claim.functions.is_empty() => {
            fail("the claim rests on relocations that the linker kept, and the input has none");
        }
        None => {}
        Some(Basis::Dynamic) if fixed => {
            fail("the claim rests on dynamic relocations, and the input has a fixed address");
        }
        Some(Basis::Nothing) if !fixed => {
            fail("the claim is for a file at a fixed address, and the input has none");
        }
        Some(_) => {}
    }
}

/// Code that function symbols and unwind entries name: disjoint ranges, ascending.
struct Named(Vec<Range>);

impl Named {
    fn new(input: &Elf<'_>, unwind: &Table<'_>, code: &[Range]) -> Self {
        // A label of no type is a function if it has a size, and is not the file's alone.
        let names = |s: &Symbol<'_>| {
            let sized_label = s.is_visible_label() && s.size > 0;
            s.section != 0 && (s.is_function() || sized_label)
        };
        let symbols = [SHT_SYMTAB, SHT_DYNSYM].map(|table| input.nameless_symbols(table));
        let symbols = symbols.into_iter().flatten().filter(names);
        let symbols = symbols.map(|s| (s.value, s.value.saturating_add(s.size)));
        let unwound = unwind.fdes.iter().map(|fde| (fde.start, fde.end));
        let unwound = unwound.filter(|(start, end)| start < end);
        let mut all: Vec<(u64, u64)> = symbols.chain(unwound).collect();
        all.sort_unstable();
        let mut ranges: Vec<Range> = Vec::with_capacity(all.len());
        let mut all = all.into_iter().peekable();
        while let Some((start, mut end)) = all.next() {
            while let Some(next) = all.next_if(|next| next.0 == start) {
                end = end.max(next.1);
            }
            if let Some(last) = ranges.last_mut().filter(|last| start < last.end) {
                last.end = last.end.max(end);
                continue;
            }
            if end <= start {
                // Without a size it goes on up to what is named next, or to the end of its section.
                let section = code.iter().find(|section| section.contains(start));
                let limit = section.map_or(start, |section| section.end);
                end = all.peek().map_or(limit, |next| next.0.min(limit));
            }
            ranges.push(Range { start, end });
        }
        Named(ranges)
    }

    /// Whether an address is in what is named, and not where that begins.
    fn is_inside(&self, addr: u64) -> bool {
        let next = self.0.partition_point(|r| r.start < addr);
        let before = next.checked_sub(1).and_then(|i| self.0.get(i));
        before.is_some_and(|r| addr < r.end)
    }
}

/// Slots that hold functions once the loader is done with them: places of imports, and, where nothing writes
/// afterwards, of pointers to where a function begins, or to code that nothing names. That is in no function
/// which can move, and compilers address there what has neither a symbol nor an unwind entry, not what is inside of
/// it.
pub(crate) fn slots<A: Arch>(cx: &Context<'_>, begins: &[u64], code: &[Range]) -> FxHashSet<u64> {
    let input = cx.input;
    let named = Named::new(input, &cx.old_unwind, code);
    let lasts = |s: &Segment| match s.kind {
        // Of what is protected the last page is not, if that ends within it.
        PT_GNU_RELRO => Some(s.addr..s.end() & !(PAGE - 1)),
        PT_LOAD if !s.is_writable() => Some(s.addr..s.end()),
        _ => None,
    };
    let lasting: Vec<_> = input.segments.iter().filter_map(lasts).collect();
    let constant = |at: u64| {
        let end = at.saturating_add(8);
        lasting.iter().any(|r| r.start <= at && end <= r.end)
    };
    let moved = |addr: u64| cx.old.owner(InputAddr::new(addr)).is_some();
    let in_code = |addr: u64| code.iter().any(|section| section.contains(addr));
    let is_function = |addr: u64| {
        begins.binary_search(&addr).is_ok()
            || in_code(addr) && !named.is_inside(addr) && !moved(addr)
    };
    let mut slots = FxHashSet::default();
    for table in image::rela_tables(input) {
        let bytes = input.bytes(table.start, table.len()).unwrap_or(b"");
        for entry in bytes.chunks_exact(24) {
            let (Some(place), Some(info), Some(addend)) =
                (u64_in(entry, 0), u64_in(entry, 8), u64_in(entry, 16))
            else {
                continue;
            };
            let kind = info as u32;
            let imports = info >> 32 != 0 && A::IMPORTS.contains(&kind);
            let points = A::RELATIVE.contains(&kind) && is_function(addend);
            let symbol = info >> 32 != 0 && A::ABS_8.contains(&kind);
            if imports || (points || symbol) && constant(place) {
                slots.insert(place);
            }
        }
    }
    if let (Some(at), Some(size)) = (input.dynamic_value(36), input.dynamic_value(35)) {
        let words = image::relr_places(input.bytes(at, size).unwrap_or(b""));
        let points = |place: &u64| input.u64_at(*place).is_some_and(is_function);
        slots.extend(words.into_iter().filter(|w| constant(*w)).filter(points));
    }
    // At a fixed address the linker writes what the loader would.
    let is_got = |s: &&Section<'_>| [&b".got"[..], b".got.plt"].contains(&s.name);
    for s in input.sections.iter().filter(is_got).filter(|_| cx.fixed()) {
        let words = input.section_data(s).chunks_exact(8);
        let words = (s.addr..).step_by(8).zip(words);
        let points = words.filter(|(place, word)| {
            let holds = u64_in(word, 0).is_some_and(is_function);
            holds && constant(*place) && cx.loaded.binary_search(place).is_err()
        });
        slots.extend(points.map(|(place, _)| place));
    }
    slots
}

/// Checks what the claim says of single functions.
pub(crate) fn check_functions<A: Arch>(cx: &Context<'_>, found: &mut Findings) {
    let jumps: FxHashSet<(FuncId, InputAddr)> =
        cx.patches.ranges().map(|(r, id)| (id, r.start)).collect();
    for (id, f) in cx.functions.iter().enumerate() {
        let id = id as FuncId;
        let mut fail = |old: InputAddr, text: &str| {
            let failure = Failure::new(Check::Claim, text).at(old, f.new_entry());
            found.functions.push((id, failure));
        };
        let there = [0, A::LONGEST_PAD].map(|pad| jumps.contains(&(id, f.old_entry + pad)));
        if there.contains(&true) != f.jumps {
            fail(
                f.old_entry,
                "the claim says something else of the jump at the old entry than is there",
            );
        }
        for &at in &f.falls_back {
            let body = f.old.iter().find(|r| r.contains(at));
            let bytes = body.and_then(|r| cx.input.bytes(at.get(), r.end - at));
            let insn = bytes.and_then(|bytes| A::decode(bytes, at.get()));
            if !insn.is_some_and(|insn| cx.falls_back(&insn)) {
                fail(at, "the claim names a jump to old code where there is none");
            }
        }
    }
}

/// Checks that jump tables of new code's own are each by itself.
pub(crate) fn check_tables<A: Arch>(cx: &Context<'_>, found: &mut Findings) {
    let functions = (0..).zip(cx.functions);
    let own = functions.flat_map(|(id, f)| f.tables.iter().map(move |t| (t.range(), id, *t)));
    let mut all: Vec<(Range, FuncId, OwnTable)> = own.collect();
    all.sort_unstable_by_key(|t| (t.0, t.1));
    let unwind = &cx.new_unwind;
    let unwind = Range {
        start: unwind.addr,
        end: unwind.addr.saturating_add(unwind.bytes.len() as u64),
    };
    let mut end = 0;
    let mut last: Option<(Range, FuncId, OwnTable)> = None;
    for (range, id, table) in all {
        let overlaps = |other: Range| range.start < other.end && other.start < range.end;
        let (from, to) = (OutputAddr::new(range.start), OutputAddr::new(range.end));
        // Loads of one function may share a table of labels.
        let shared = |other: &(Range, FuncId, OwnTable)| {
            (A::STEP > 1 || !table.wide)
                && table.base == 0
                && (other.0, other.1, other.2.key()) == (range, id, table.key())
        };
        let what = if range.start < end && !last.as_ref().is_some_and(shared) {
            "the table of another jump"
        } else if !cx.new.is_free(from, to) {
            "new code"
        } else if overlaps(unwind) {
            "the unwind table"
        } else {
            end = end.max(range.end);
            last = Some((range, id, table));
            continue;
        };
        end = end.max(range.end);
        let text = format!(
            "the jump table at {:#x}..{:#x} overlaps {what}",
            range.start, range.end
        );
        let failure = Failure::new(Check::JumpTable, text).at(table.load.0, table.load.1);
        found.functions.push((id, failure));
    }
}

/// Whether a word is in a table of addresses that a function has a copy of: then it is known what reads it.
fn in_own_table(cx: &Context<'_>, id: FuncId, place: u64) -> bool {
    let holds = |t: &OwnTable| {
        let further = place.checked_sub(t.old.get());
        t.wide && further.is_some_and(|d| d.is_multiple_of(8) && d / 8 < t.entries)
    };
    cx.function(id).is_some_and(|f| f.tables.iter().any(holds))
}

/// Whether a pointer inside of a function leads to new code by a jump there, after a landing pad if there is one.
/// Without kept relocations, where a label could be meant by which a table describes the function's code, nothing else
/// may lead there: no branch of the function, and nothing that runs on in front of it, but for a call. It is a further
/// entry.
pub(crate) fn is_further_entry<A: Arch>(cx: &Context<'_>, id: FuncId, at: InputAddr) -> bool {
    let Some(f) = cx.function(id) else {
        return false;
    };
    let step = A::STEP as u64;
    let insn = |at: InputAddr| A::decode(cx.input.bytes_from(at.get())?, at.get());
    let jumps = |at: InputAddr| cx.patches.owner(at) == Some(id);
    let behind_pad = || insn(at).is_some_and(|i| i.landing_pad) && jumps(at + step);
    if !jumps(at) && (A::STEP == 1 || !cx.bare || !behind_pad()) {
        return false;
    }
    if A::STEP == 1 || !cx.bare {
        return true;
    }
    // Behind the landing pad of the entry there is the entry's own jump.
    let before = InputAddr::new(at.get().wrapping_sub(step));
    if before == f.old_entry && insn(before).is_some_and(|i| i.landing_pad) {
        return true;
    }
    let runs_on = insn(before).is_none_or(|i| {
        matches!(
            i.flow,
            Flow::Next | Flow::Nothing | Flow::Branch { .. } | Flow::Trap
        )
    });
    let leads = |r: &Range<InputAddr>| {
        (r.start.get()..r.end.get()).step_by(A::STEP).any(|from| {
            match insn(InputAddr::new(from)).map(|i| i.flow) {
                Some(Flow::Jump(to) | Flow::Branch { target: to, .. }) => to == at.get(),
                _ => false,
            }
        })
    };
    !runs_on && !f.old.iter().any(leads)
}

/// Places that describe code of moved functions, or may.
pub(crate) fn describing(cx: &Context<'_>, extents: &Extents<'_>, found: &mut Findings) {
    const LISTS: [&[u8]; 6] = [
        b"__patchable_function_entries",
        b"xray_instr_map",
        b"__mcount_loc",
        b"__rseq_cs",
        b"__rseq_cs_ptr_array",
        b"__jump_table",
    ];
    let input = cx.input;
    let with_contents = |s: &&crate::files::elf::Section<'_>| {
        s.is_alloc() && s.kind != SHT_NOBITS && s.flags & SHF_EXECINSTR == 0
    };
    for s in input.sections.iter().filter(with_contents) {
        if !LISTS.contains(&s.name) {
            continue;
        }
        for place in (s.addr..s.end()).step_by(4) {
            let word = input.u64_at(place);
            let half = input.u32_at(place).map(|w| w as i32 as u64);
            let counted = [word, half].map(|w| w.map(|w| place.wrapping_add(w)));
            for target in counted.into_iter().chain([word]).flatten() {
                if let Some(id) = cx.old.owner(InputAddr::new(target)) {
                    let text = format!(
                        "the list {} at {place:#x} may name {target:#x}, which is patched or watched while the program runs",
                        String::from_utf8_lossy(s.name)
                    );
                    let failure = Failure::new(Check::Visible, text).at_kept(target);
                    found.functions.push((id, failure));
                }
            }
        }
    }
    if !cx.fixed() {
        return;
    }
    // No relocation says which words are pointers: whatever could be one is.
    let words = input.sections.iter().filter(with_contents).flat_map(|s| {
        let bytes = input.section_data(s);
        postlink_parallel::flat_map_range(bytes.len() / 8, |i| {
            let value = u64_in(bytes, 8 * i)?;
            let at = InputAddr::new(value);
            let id = cx.inside_of(at)?;
            let place = s.addr + 8 * i as u64;
            (!extents.begins(value) && !in_own_table(cx, id, place)).then_some((id, at))
        })
    });
    found.inside.extend(words);
}

/// Compares the jumps to old code that the lock step has found with those that are claimed.
pub(crate) fn unclaimed(f: &crate::files::claim::Moved, came_by: &[InputAddr]) -> Option<Failure> {
    let at = came_by
        .iter()
        .find(|at| f.falls_back.binary_search(at).is_err())?;
    let text = "an indirect jump continues in old code, and the claim does not say so";
    Some(Failure::new(Check::Claim, text).at(*at, f.new_entry()))
}

/// Whether an instruction of this kind may hold a number that is an address.
pub(crate) fn may_hold_number(flow: Flow) -> bool {
    !matches!(flow, Flow::Jump(_) | Flow::Branch { .. } | Flow::Call(_))
}

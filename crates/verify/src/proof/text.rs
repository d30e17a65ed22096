//! Code of the old image: what stays, and what refers to moved functions.
//!
//! The old code is decoded from every start that is known (functions of the symbol table, FDEs, sections, moved
//! functions) to the next. Where the output's bytes differ, they must be the jump at a moved function's old entry, or
//! the address field of an instruction that is retargeted from a moved function's entry to its new one. The sweep
//! also notes which old bodies are still entered from outside, and what starts a table of relative addresses.
//!
//! Where nothing differs, or jumps at old entries alone, most functions have no instruction of which anything is to be
//! said. On x86-64 that is seen without decoding: no bytes that may be an address field, wherever instructions begin,
//! lead to where it would matter ([`Arch::may_have`]). Else a function is decoded up to the last such bytes.
//!
//! Data between instructions can throw the sweep off for a few instructions. A difference there is then not found in
//! an address field and fails: the mistake is on the safe side.

use crate::addr::{InputAddr, OutputAddr};
use crate::arch::graph::Graph;
use crate::arch::{Arch, Field, FieldKind, Flow, Insn, MaybeField};
use crate::consulted::{self, Consulted};
use crate::context::{Context, Findings, FuncId};
use crate::files::bytes::same_insn;
use crate::files::claim::Range;
use crate::files::elf::{Elf, SHT_DYNSYM, SHT_SYMTAB};
use crate::files::unwind::Table;
use crate::proof::data::{KeptRelocs, explain, may_be_pointer};
use crate::proof::data_in_code::is_data;
use crate::proof::staying::Piece;
use crate::report::{Check, Failure};
use rayon::slice::ParallelSliceMut;
use rustc_hash::FxHashMap;

/// Where functions with symbols begin, ascending.
pub(crate) fn symbols(input: &Elf<'_>) -> Vec<u64> {
    let symbols = input
        .nameless_symbols(SHT_SYMTAB)
        .chain(input.nameless_symbols(SHT_DYNSYM))
        .filter(|s| s.is_function() && s.section != 0)
        .map(|s| s.value);
    let mut all: Vec<u64> = symbols.collect();
    all.par_sort_unstable();
    all.dedup();
    all
}

/// Where decoding may start: ascending, within `code`. `symbols`: what [`symbols`] gives.
pub(crate) fn starts(
    symbols: &[u64],
    unwind: &Table<'_>,
    code: &[Range],
    moved: impl Iterator<Item = u64>,
) -> Vec<u64> {
    let in_code = |addr: &u64| {
        let i = code.partition_point(|r| r.start <= *addr);
        i.checked_sub(1)
            .and_then(|i| code.get(i))
            .is_some_and(|r| *addr < r.end)
    };
    let mut all: Vec<u64> = symbols
        .iter()
        .copied()
        .chain(unwind.fdes.iter().map(|f| f.start))
        .chain(code.iter().map(|r| r.start))
        .chain(moved)
        .filter(in_code)
        .collect();
    // Nearly all of it are lists that ascend, and such a sort merges them.
    all.sort();
    all.dedup();
    all
}

/// Functions whose entries one thread looks at.
const PART: usize = 1 << 12;

/// Finds and checks the jumps at the old entries of moved functions.
pub(crate) fn entry_jumps<A: Arch>(cx: &mut Context<'_>, starts: &[u64], found: &mut Findings) {
    let mut patches = Vec::with_capacity(cx.functions.len());
    let mut ranges = Vec::with_capacity(cx.functions.len());
    let parts = postlink_parallel::map_parts(cx.functions.len(), PART, |part| {
        let mut found = Findings::default();
        let (mut patches, mut ranges) = (Vec::new(), Vec::new());
        for (id, f) in part.clone().zip(cx.functions.get(part).unwrap_or(&[])) {
            let id = id as FuncId;
            let first = entry_jump::<A>(cx, starts, id, f.old_entry.get(), &mut found);
            patches.push(first);
            // Others are where the claim says so. A jump that it does not tell of is a change like any other.
            let further = f.labels.iter().map(|l| l.0).filter(|l| *l != f.old_entry);
            let jump = |l: InputAddr| entry_jump::<A>(cx, starts, id, l.get(), &mut found);
            let further = further.filter_map(jump);
            for p in first.into_iter().chain(further) {
                ranges.push((p.of(), id));
            }
        }
        (patches, ranges, found)
    });
    for (of_part, places, findings) in parts {
        patches.extend(of_part);
        ranges.extend(places);
        found.append(findings);
    }
    // Other code in an old body is after the jump at its entry: control that reaches the entry continues in
    // the new code.
    for (range, id) in cx.reused.ranges() {
        let jump = patches.get(id as usize).copied().flatten();
        let begins = cx.function(id).map(|f| f.old_entry).unwrap_or_default();
        let overlaps = |j: Range<OutputAddr>| range.start < j.end && j.start < range.end;
        if jump.is_none_or(|j| overlaps(j.of())) || range.contains(begins.kept()) {
            let text = format!(
                "the new code at {:#x}..{:#x} is where the old entry {begins:#x} must continue",
                range.start, range.end
            );
            found.functions.push((
                id,
                Failure::new(Check::EntryJump, text).at(begins, range.start),
            ));
        }
    }
    // Each is found by where it begins.
    ranges.sort_unstable();
    for w in ranges.windows(2) {
        if let [(a, _), (b, id)] = w
            && a.end > b.start
        {
            let text = format!("the jumps at {:#x} and {:#x} overlap", a.start, b.start);
            let failure = Failure::new(Check::EntryJump, text).at(a.start, b.start.kept());
            found.functions.push((*id, failure));
        }
    }
    let inside = |(p, id): &(Range<InputAddr>, FuncId)| {
        let range = Range {
            start: p.start + 1,
            end: p.end,
        };
        (range, *id)
    };
    let reused = cx.reused.ranges().map(|(r, id)| (r.numbers().of(), id));
    let interiors = ranges.iter().map(inside).chain(reused);
    cx.interiors = crate::context::Index::new(interiors.collect());
    cx.patches = crate::context::Index::new(ranges);
    if cx.bare && A::STEP > 1 {
        cx.arrivals = crate::context::Index::new(arrivals::<A>(cx));
    }
}

/// Instructions of old bodies that differ, but for jumps at entries.
fn arrivals<A: Arch>(cx: &Context<'_>) -> Vec<(Range<InputAddr>, FuncId)> {
    let mut all = Vec::new();
    for (r, id) in cx.old.ranges() {
        let (at, len) = (r.start.get(), r.len());
        let (Some(old), Some(new)) = (cx.input.bytes(at, len), cx.output.bytes(at, len)) else {
            continue;
        };
        let words = old.chunks(A::STEP).zip(new.chunks(A::STEP));
        for ((a, b), at) in words.zip((0..).step_by(A::STEP)) {
            let start = r.start + at;
            if a != b && cx.patches.owner(start).is_none() {
                let end = start + A::STEP as u64;
                all.push((Range { start, end }, id));
            }
        }
    }
    all
}

/// The jump at an old entry, if there is one: the bytes that changed.
fn entry_jump<A: Arch>(
    cx: &Context<'_>,
    starts: &[u64],
    id: FuncId,
    entry: u64,
    found: &mut Findings,
) -> Option<Range> {
    let f = cx.function(id)?;
    let window = 16.min(cx.input.bytes_from(entry).map_or(0, <[u8]>::len) as u64);
    let (old, new) = (
        cx.input.bytes(entry, window)?,
        cx.output.bytes(entry, window)?,
    );
    let (skip, len, target) = A::entry_jump(new, entry).filter(|_| old != new)?;
    let (at, to) = (InputAddr::new(entry), OutputAddr::new(target));
    if old.get(..(skip + len) as usize) == new.get(..(skip + len) as usize) {
        return None;
    }
    // What is before the jump must be what was there, or a landing pad in the place of an instruction that was one too
    // and did more.
    let mut range = Range {
        start: entry + skip,
        end: entry + skip + len,
    };
    let mut lead = old.get(..skip as usize) == new.get(..skip as usize);
    let pad = |bytes| A::decode(bytes, entry).is_some_and(|i| i.landing_pad);
    if !lead && pad(old) && !A::keeps_state(new) {
        (range.start, lead) = (entry, true);
    }
    if cx.guarded && pad(old) && !pad(new) {
        let text = format!("the landing pad at the old entry {entry:#x} is overwritten");
        let failure = Failure::new(Check::EntryJump, text).at(at, to);
        found.functions.push((id, failure.bytes(old, new)));
    }
    if cx.guarded
        && len > A::STEP as u64
        && !cx.output.bytes_from(target).is_some_and(A::lets_calls_in)
    {
        let text = format!("the jump at the old entry {entry:#x} leads to no landing pad");
        let failure = Failure::new(Check::EntryJump, text).at(at, to);
        found.functions.push((id, failure.bytes(old, new)));
    }
    // The jump may run over padding after the function, but not into anything else.
    let own = f.old.iter().find(|r| r.contains(at));
    let end = own.map_or(entry, |r| r.end.get());
    let mut fits = range.start < end || skip == 0;
    if range.end > end {
        let behind = cx.input.bytes(end, range.end - end);
        let next = starts.partition_point(|&s| s <= entry);
        let free = starts.get(next).is_none_or(|&s| s >= range.end)
            && cx.old_unwind.find(range.end - 1).is_none()
            && (end..range.end).all(|a| cx.old.owner(InputAddr::new(a)).is_none());
        // Instructions of padding may continue after the jump; nothing comes there, so they may be cut.
        let padding = cx
            .input
            .bytes_from(end)
            .and_then(|b| b.get(..b.len().min(32)));
        fits &= free
            && behind.is_some()
            && padding.is_some_and(|b| pads::<A>(b, (range.end - end) as usize));
    }
    if !lead || !fits {
        let text = format!("the jump at the old entry {entry:#x} does not fit there");
        let failure = Failure::new(Check::EntryJump, text).at(InputAddr::new(range.start), to);
        found.functions.push((id, failure.bytes(old, new)));
    }
    // Jumping to the new entry again executes its landing pad again, which does nothing. So what the jump leads to must
    // do what is done from the landing pad on, whether a check for the thread's counters is in front of it or not.
    let is_first = (at, to) == (f.old_entry, f.new_entry());
    let again = skip > 0 && range.start > entry && pad(old) && !A::keeps_state(old);
    let from = if again { entry } else { range.start };
    let from = InputAddr::new(from);
    if !is_first && cx.pair_owner(from, to) == Some(id) {
        found.pairs.push((from, to));
    } else if !is_first {
        let text = format!("the jump at the old entry {entry:#x} goes elsewhere");
        let failure = Failure::new(Check::EntryJump, text).at(InputAddr::new(range.start), to);
        let failure = failure.values(f.new_entry(), target);
        found.functions.push((id, failure));
    }
    Some(range)
}

/// Whether padding instructions cover the first `len` bytes; zeros count as padding too.
fn pads<A: Arch>(bytes: &[u8], len: usize) -> bool {
    let mut at = 0;
    while at < len {
        let Some(rest) = bytes.get(at..).filter(|r| !r.is_empty()) else {
            return false;
        };
        match A::padding_len(rest) {
            0 if rest.first() == Some(&0) => at += 1,
            0 => return false,
            n => at += n,
        }
    }
    true
}

/// Bytes of code that are about a part of a sweep.
const PIECE: u64 = 1 << 16;

/// Bytes at the beginning of a function in which a jump at its entry is.
const FIRST: usize = 16;

/// Bytes of the longest instruction.
const LONGEST: usize = 15;

/// A part of the code that was swept: what was found, and what it rests on if that was noted.
#[derive(Clone, Default)]
pub(crate) struct Swept {
    pub found: Findings,
    pub consulted: Consulted,
}

/// Sweeps all code of the input, but for those parts of `known` that are there. Gives all parts; with `literals`
/// they are everything.
pub(crate) fn sweep<A: Arch>(
    cx: &Context<'_>,
    kept: &KeptRelocs<'_>,
    starts: &[u64],
    relative: &[u64],
    known: Option<Vec<Option<Swept>>>,
) -> Vec<Swept> {
    // Pieces that begin at starts.
    let mut pieces: Vec<&[u64]> = Vec::new();
    let mut from = 0usize;
    for (i, &start) in starts.iter().enumerate() {
        if start - starts.get(from).copied().unwrap_or(start) > PIECE {
            pieces.extend(starts.get(from..i));
            from = i;
        }
    }
    pieces.extend(starts.get(from..));
    let ends: Vec<u64> = pieces
        .iter()
        .skip(1)
        .filter_map(|p| p.first().copied())
        .chain([u64::MAX])
        .collect();
    let mut known = known.unwrap_or_default();
    known.resize_with(pieces.len(), || None);
    let one = |((piece, end), known): ((&&[u64], &u64), Option<Swept>)| {
        known.unwrap_or_else(|| {
            let sweep = || sweep_piece::<A>(cx, kept, piece, *end, relative);
            let (found, consulted) = consulted::noting(cx.output.is_noted, sweep);
            // So many bytes of each file.
            cx.maps.read(2 * PIECE as usize);
            Swept { found, consulted }
        })
    };
    let work: Vec<_> = pieces.iter().zip(&ends).zip(known).collect();
    postlink_parallel::map_owned(work, one)
}

/// Words of literal pools that are pointers as they were. (Where instructions hold no absolute addresses,
/// such relocations of code are for those.)
pub(crate) fn literals<A: Arch>(cx: &Context<'_>, kept: &KeptRelocs<'_>, found: &mut Findings) {
    if A::STEP == 1 || !cx.fixed() {
        return;
    }
    for place in kept.places_in_code(cx, A::ABS_8) {
        if let (Some(old), Some(new)) = (cx.input.u64_at(place), cx.output.u64_at(place))
            && old == new
        {
            found.pointer(cx, InputAddr::new(old), OutputAddr::new(new), true);
        }
    }
}

fn sweep_piece<A: Arch>(
    cx: &Context<'_>,
    kept: &KeptRelocs<'_>,
    starts: &[u64],
    end: u64,
    relative: &[u64],
) -> Findings {
    let mut found = Findings::default();
    for (i, &start) in starts.iter().enumerate() {
        let Some(range) = cx.code.iter().find(|r| r.contains(start)) else {
            continue;
        };
        let end = starts.get(i + 1).copied().unwrap_or(end).min(range.end);
        let Some(len) = end.checked_sub(start) else {
            continue;
        };
        let (Some(old), Some(new)) = (cx.input.bytes(start, len), cx.output.bytes(start, len))
        else {
            found.file.push(Failure::new(
                Check::OldCode,
                format!("code at {start:#x} is not loaded from the output"),
            ));
            continue;
        };
        let mut sweeper = Sweeper {
            cx,
            kept,
            relative,
            found: &mut found,
            owner: None,
            pages: Vec::new(),
            piece: (0, 0),
        };
        sweeper.run::<A>(start, old, new);
    }
    found
}

struct Sweeper<'a, 'f> {
    cx: &'a Context<'a>,
    kept: &'a KeptRelocs<'a>,
    relative: &'a [u64],
    found: &'f mut Findings,
    /// Moved function whose old body is being swept.
    owner: Option<FuncId>,
    /// Instructions that were judged together with the page that they use.
    pages: Vec<u64>,
    /// The piece of code that is being swept: its first address and its length.
    piece: (u64, u64),
}

impl Sweeper<'_, '_> {
    fn run<A: Arch>(&mut self, start: u64, old: &[u8], new: &[u8]) {
        let Some(last) = self.last_said::<A>(start, old, new) else {
            return;
        };
        let same = old == new;
        self.piece = (start, old.len() as u64);
        if !same && A::STEP == 4 && !self.cx.bare {
            self.far_pages::<A>(start, old, new);
        }
        let mut graph: Option<Graph<'_>> = None;
        // With what is behind: instructions are decoded sooner where more follows.
        let more = self
            .cx
            .input
            .bytes_near(start, self.piece.1 + 32)
            .unwrap_or(old);
        let mut at = 0usize;
        let mut owned_from = InputAddr::new(start);
        let mut owned_until = owned_from;
        while at <= last
            && let Some(rest) = old.get(at..).filter(|r| !r.is_empty())
        {
            let addr = start + at as u64;
            if InputAddr::new(addr) >= owned_until {
                owned_from = InputAddr::new(addr);
                (self.owner, owned_until) = self.cx.old.owner_from(owned_from);
            }
            let end = usize::try_from(owned_until.get() - start).unwrap_or(usize::MAX);
            let differing = (!same).then(|| new.get(at..).unwrap_or(b""));
            let most = end.min(old.len()) - at;
            let more = more.get(at..).unwrap_or(rest);
            let nothing = self.says_nothing::<A>(addr, more, differing, most);
            if nothing > 0 {
                at += nothing;
                continue;
            }
            // What is cut off by the piece's end is none.
            let fits = |insn: &Insn| usize::from(insn.len) <= rest.len();
            let Some(insn) = A::decode(more, addr).filter(fits) else {
                // Data, or something newer than the decoder. Differences in it are judged as data.
                if !same && old.get(at) != new.get(at) && !self.in_patch(addr) {
                    let next = explain::<A>(self.cx, self.kept, self.relative, addr, self.found);
                    at = at.saturating_add(usize::try_from(next - addr).unwrap_or(1).max(1));
                } else {
                    at += A::STEP;
                }
                continue;
            };
            let len = usize::from(insn.len);
            let a = rest.get(..len).unwrap_or(b"");
            let differs = !same && !same_insn(rest, new.get(at..).unwrap_or(b""), len);
            if let (Flow::IndirectJump { .. }, Some(id)) = (insn.flow, self.owner)
                && self.found.dispatching.last() != Some(&id)
            {
                self.found.dispatching.push(id);
            }
            if self.cx.counts.is_some() && A::uses_own(a) {
                self.found.uses_own.push(addr);
            }
            if let Some(field) = insn.field {
                let target = InputAddr::new(field.target);
                let near = owned_from <= target && target < owned_until;
                if field.kind == FieldKind::Branch && near && !differs {
                    self.branch_within(&insn, target);
                } else if field.kind == FieldKind::Page {
                    // A veneer goes there; the address is not visible to the program.
                    let goes = A::veneer(rest, addr).map(|v| v.0);
                    for (_, target, kind) in A::page_uses(rest, field.target) {
                        let kind = if goes == Some(target) {
                            FieldKind::Branch
                        } else {
                            kind
                        };
                        self.reference::<A>(
                            addr,
                            &insn,
                            &Field {
                                kind,
                                target,
                                ..field
                            },
                            differs,
                        );
                    }
                } else {
                    self.reference::<A>(addr, &insn, &field, differs);
                }
            } else if A::STEP == 4
                && (self.owner.is_some() || self.cx.described)
                && insn.flow == (Flow::IndirectJump { computed: true })
            {
                let graph = graph.get_or_insert_with(|| Graph::new::<A>([(start, old)]));
                if let Some(d) = A::dispatch(addr, graph) {
                    self.found.dispatches.push((d, self.owner));
                }
            } else if self.cx.fixed() && len >= 5 {
                if !self.cx.reused.is_empty()
                    && let Some(field) = A::absolute_field(a)
                {
                    self.registers::<A>(addr, &field);
                }
                if self.owner.is_some() {
                    self.absolute_base::<A>(addr, a);
                }
            }
            if differs {
                let b = new.get(at..at + len).unwrap_or(b"");
                self.difference::<A>(addr, &insn, a, b);
            }
            at += len;
        }
    }

    /// The last place of a piece of code at which decoding could find anything that is to be said, if there is one. Of
    /// most pieces their bytes say that it could not: what is noted of an instruction depends on its address field,
    /// which must lead to certain places, and of the old body of a moved function on a few other things that are rare.
    fn last_said<A: Arch>(&mut self, start: u64, old: &[u8], new: &[u8]) -> Option<usize> {
        let cx = self.cx;
        let anywhere = Some(old.len());
        if A::STEP > 1 || cx.bare || !cx.reused.is_empty() {
            return anywhere;
        }
        let end = start.saturating_add(old.len() as u64);
        let (owner, until) = cx.old.owner_from(InputAddr::new(start));
        // What is behind the code of an owner is mostly padding.
        let own = usize::try_from(until.get() - start).map_or(old.len(), |own| own.min(old.len()));
        let is_padded = || owner.is_some() && self.is_quiet::<A>(start, (old, new), own);
        if own < old.len() && !is_padded() {
            return anywhere;
        }
        if owner.is_none() && (old != new || cx.counts.is_some()) {
            return anywhere;
        }
        self.owner = owner;
        // Jumps at old entries are where functions begin.
        let entry = FIRST.min(old.len());
        let differs = || {
            let rest = InputAddr::new(start.saturating_add(FIRST as u64));
            let (jump, next) = cx.interiors.owner_from(rest);
            let further = jump.is_some() || next.get() < end;
            further
                || old.get(entry..) != new.get(entry..)
                || !self.differs_in_jumps(start, (old, new), entry)
        };
        if owner.is_some() && differs() {
            return anywhere;
        }
        let sweeper = &*self;
        let branches = |target: InputAddr| sweeper.is_branch_noted(target);
        let is_noted = |field: MaybeField| match field {
            MaybeField::Branch(target) => branches(target),
            MaybeField::Operand { target, forms } => sweeper.is_operand_noted(target, forms),
            MaybeField::Loaded(number) => {
                cx.fixed() && number.is_multiple_of(4) && sweeper.is_base(number)
            }
            MaybeField::IndirectJump => true,
            MaybeField::OwnSegment => cx.counts.is_some(),
        };
        // The last instruction of an owner may end behind its code.
        let with_last = old.get(..own.saturating_add(LONGEST)).unwrap_or(old);
        let field = A::may_have(with_last, start, owner.is_some(), is_noted);
        // Shorter branches reach the nearest functions at most, and the jump at the entry from near it.
        let reach = A::SHORT_REACH;
        let near = usize::try_from(reach).unwrap_or(usize::MAX).min(own);
        let is_alone = |start: u64, end: u64| {
            let (owner, until) = cx.old.owner_from(InputAddr::new(start));
            owner.is_none() && until.get() >= end
        };
        let edge = |places| A::may_branch(old, start, places, branches);
        let own_end = start.saturating_add(own as u64);
        let behind = !is_alone(own_end, own_end.saturating_add(reach));
        let last = behind.then(|| edge(own - near..own)).flatten();
        let first = || match owner {
            Some(_) => edge(0..near.saturating_add(entry).min(own)),
            None if is_alone(start.saturating_sub(reach), start) => None,
            None => edge(0..near),
        };
        field.max(last.or_else(first))
    }

    /// Whether nothing is to be said of any instruction that begins behind the first `own` bytes of a piece, which are
    /// all that its owner has of it: nobody has the rest, it is the same in both files, and wherever instructions begin
    /// in it, none has an address or is of a kind that is noted of code without an owner.
    fn is_quiet<A: Arch>(&self, start: u64, (old, new): (&[u8], &[u8]), own: usize) -> bool {
        let at = start.saturating_add(own as u64);
        let (owner, until) = self.cx.old.owner_from(InputAddr::new(at));
        let (Some(rest), Some(other)) = (old.get(own..), new.get(own..)) else {
            return false;
        };
        owner.is_none()
            && until.get() - at >= rest.len() as u64
            && rest == other
            && A::may_have(rest, at, true, |_| true).is_none()
            && A::may_branch(rest, at, 0..rest.len(), |_| true).is_none()
    }

    /// Whether the first so many bytes of a piece differ in the bytes of jumps at old entries alone.
    fn differs_in_jumps(&self, start: u64, (old, new): (&[u8], &[u8]), count: usize) -> bool {
        let pairs = (start..).zip(old.iter().zip(new)).take(count);
        let mut differ = pairs.filter(|(_, (a, b))| a != b);
        differ.all(|(at, _)| self.in_patch(at))
    }

    /// Whether it is noted that code of the owner branches there.
    fn is_branch_noted(&self, target: InputAddr) -> bool {
        let cx = self.cx;
        // At an old entry is what leads to the new code.
        match cx.old.owner(target) {
            Some(id) if Some(id) == self.owner => cx.interiors.owner(target) == Some(id),
            Some(id) => cx.function(id).is_none_or(|f| f.old_entry != target),
            None => false,
        }
    }

    /// The same of an operand of an instruction, which may be a few bytes behind `target`.
    fn is_operand_noted(&self, target: InputAddr, forms: bool) -> bool {
        let (cx, at) = (self.cx, target.get());
        let is_formed = || {
            let owner = cx.old.owner(target);
            let is_others = owner.is_some_and(|id| Some(id) != self.owner);
            is_others && cx.entry_of(target).is_none() || self.is_base(at)
        };
        if self.owner.is_some() {
            return forms && is_formed();
        }
        let (owner, until) = cx.old.owner_from(target);
        let is_others = || cx.is_abandoned(at) || cx.is_registered(at);
        owner.is_some()
            || until.get() - at <= MaybeField::FOLLOWING
            || forms && (is_formed() || is_others() || cx.end_of(target).is_some())
    }

    /// A branch to code of the same owner, or of none as this: what [`Sweeper::reference`] notes of it.
    fn branch_within(&mut self, insn: &Insn, target: InputAddr) {
        let goes = matches!(
            insn.flow,
            Flow::Jump(_) | Flow::Branch { .. } | Flow::Call(_)
        );
        if let Some(id) = self.owner
            && goes
            && self.cx.interiors.owner(target) == Some(id)
        {
            self.found.interior_branches.push(id);
        }
    }

    /// How many bytes from `addr` on are instructions of which nothing is to be said: the same in both files, without
    /// an address, and none that could load a number that is one, or use the segment of counters. `new`: the output's
    /// bytes, where not all of them are the same; `most`: how many bytes are of the piece, and of the same owner.
    fn says_nothing<A: Arch>(
        &self,
        addr: u64,
        old: &[u8],
        new: Option<&[u8]>,
        most: usize,
    ) -> usize {
        let cx = self.cx;
        // Where decoding takes longer, nothing is decoded twice.
        if A::STEP > 1 {
            return 0;
        }
        let counts = cx.counts.is_some();
        let rooms = !cx.reused.is_empty();
        let has_numbers = cx.fixed() && (self.owner.is_some() || rooms);
        let mut at = 0;
        while at < most
            && let Some(rest) = old.get(at..)
            && let Some((len, false)) = A::straight(rest, addr + at as u64)
        {
            let len = usize::from(len);
            let differs = new.is_some_and(|new| {
                let new = new.get(at..).unwrap_or(b"");
                !same_insn(rest, new, len)
            });
            let uses_own = || A::uses_own(rest.get(..len).unwrap_or(rest));
            let cut_off = at + len > most;
            let has_number = || {
                let own = rest.get(..len).unwrap_or(rest);
                has_numbers && (rooms || A::loaded_number(own).is_some())
            };
            if differs || cut_off || len >= 5 && has_number() || counts && uses_own() {
                break;
            }
            at += len;
        }
        at
    }

    /// Whether a byte belongs to an entry jump, or to new code in the old one's space.
    fn in_patch(&self, addr: u64) -> bool {
        if self.cx.reused.owner(OutputAddr::new(addr)).is_some() {
            return true;
        }
        self.cx.patches.owner(InputAddr::new(addr)).is_some()
    }

    /// An instruction whose bytes changed.
    fn difference<A: Arch>(&mut self, addr: u64, insn: &Insn, old: &[u8], new: &[u8]) {
        let changed = || {
            old.iter()
                .zip(new)
                .enumerate()
                .filter(|(_, (a, b))| a != b)
                .map(|(i, _)| i)
        };
        if changed().all(|i| self.in_patch(addr + i as u64)) {
            return;
        }
        if A::STEP > 1 && self.label_jump::<A>(addr, insn, old, new) {
            return;
        }
        // Without kept relocations nothing else may change.
        let may_change = !self.cx.bare;
        if A::STEP > 1
            && may_change
            && (self.pair::<A>(addr, insn).is_some()
                || insn.field.is_some_and(|f| f.kind == FieldKind::Forms)
                    && self.pages.contains(&addr))
        {
            return;
        }
        if let Some(field) = insn
            .field
            .filter(|f| f.kind == FieldKind::Page && may_change)
            && (self.pages.contains(&addr) || self.retarget_page::<A>(addr, &field))
        {
            return;
        }
        if A::page_use(old).is_some() && self.pages.contains(&addr) {
            return;
        }
        // An instruction may have both: `movq $function, pointer(%rip)`.
        let absolute = A::absolute_field(old).filter(|_| self.cx.fixed());
        for field in [insn.field, absolute].into_iter().flatten() {
            let (from, to) = (usize::from(field.at), usize::from(field.at + field.len));
            if changed().all(|i| (from..to).contains(&i)) {
                let new_field = if field.kind == FieldKind::Absolute {
                    A::absolute_field(new)
                } else {
                    A::decode(new, addr).and_then(|i| i.field)
                };
                let same = |n: &Field| {
                    (n.at, n.len, n.kind) == (field.at, field.len, field.kind)
                        && (field.kind == FieldKind::Absolute || A::equal_around(old, new, &field))
                };
                if let Some(now) = new_field.filter(same) {
                    self.retarget::<A>(addr, &field, &now, old, new);
                    return;
                }
            }
        }
        // Data in code: a jump table perhaps.
        let mut at = changed()
            .map(|i| addr + i as u64)
            .find(|&a| !self.in_patch(a));
        let end = addr + old.len() as u64;
        while let Some(place) = at {
            let next = explain::<A>(self.cx, self.kept, self.relative, place, self.found);
            at = changed()
                .map(|i| addr + i as u64)
                .find(|&a| a >= next && a < end && !self.in_patch(a));
        }
    }

    /// A jump in the place of an instruction of an old body, to what the new code has for it. Where all
    /// instructions have the length of a jump this is right at any of them: the new code does what is left to
    /// do. So jump tables stay, and lead to the new code.
    fn label_jump<A: Arch>(&mut self, addr: u64, insn: &Insn, old: &[u8], new: &[u8]) -> bool {
        let Some(id) = self.owner else { return false };
        let Some(Flow::Jump(target)) = A::decode(new, addr).map(|i| i.flow) else {
            return false;
        };
        let pair = (InputAddr::new(addr), OutputAddr::new(target));
        if self.cx.pair_owner(pair.0, pair.1) != Some(id) {
            return false;
        }
        // After a landing pad that stays, the jump may go to the new landing pad, which does nothing once more.
        let before = addr.wrapping_sub(A::STEP as u64);
        let pad = |bytes: Option<&[u8]>| {
            bytes.is_some_and(|b| {
                A::decode(b, 0).is_some_and(|i| i.landing_pad) && !A::keeps_state(b)
            })
        };
        let len = A::STEP as u64;
        let kept = self.cx.input.bytes(before, len);
        // What it overwrites may let branches in as well, but sign the return address: that nothing reaches
        // in another way.
        let signs = || A::keeps_state(old) && self.comes_to::<A>(addr) == Some(false);
        let again = pad(kept)
            && kept == self.cx.output.bytes(before, len)
            && kept == self.cx.output.bytes(target, len)
            && (!insn.landing_pad || signs());
        let addr = if again { before } else { addr };
        if self.cx.guarded && insn.landing_pad && !again {
            let text = format!("the landing pad at {addr:#x} is overwritten");
            self.found.functions.push((
                id,
                Failure::new(Check::OldCode, text)
                    .at(InputAddr::new(addr), OutputAddr::new(target))
                    .bytes(old, new),
            ));
        }
        self.found
            .pairs
            .push((InputAddr::new(addr), OutputAddr::new(target)));
        self.found.pointers += 1;
        true
    }

    /// A nop and an instruction that forms an address, where the output has two that form one by its page:
    /// linkers make the first of the second where that is near enough. Control may not come to the second one
    /// alone.
    fn pair<A: Arch>(&mut self, addr: u64, insn: &Insn) -> Option<()> {
        let step = A::STEP as u64;
        let second = addr.checked_add(step)?;
        if insn.flow != Flow::Nothing || insn.landing_pad {
            return None;
        }
        let old = self.cx.input.bytes(second, step)?;
        let (page, sum) = (
            self.cx.output.bytes(addr, step)?,
            self.cx.output.bytes(second, step)?,
        );
        let forms = |f: &Field| f.kind == FieldKind::Forms;
        let field = A::decode(old, second)?.field.filter(forms)?;
        let formed = A::decode(page, addr)?.field?;
        let register = A::page_register(page)?;
        let then = A::page_use(sum).filter(|u| (u.base, u.dest) == (register, Some(register)))?;
        let only = A::touched(old)?;
        if only.kills != 1 << register || self.comes_to::<A>(second)? {
            return None;
        }
        let now = Field {
            target: formed.target.wrapping_add(then.offset),
            ..field
        };
        self.retarget::<A>(second, &field, &now, old, sum);
        self.pages.push(second);
        Some(())
    }

    /// Whether a branch of the piece being swept, or control that enters a function, comes to an address.
    fn comes_to<A: Arch>(&self, place: u64) -> Option<bool> {
        let code = self.cx.input.bytes(self.piece.0, self.piece.1)?;
        let mut insns = code
            .chunks_exact(A::STEP)
            .zip((self.piece.0..).step_by(A::STEP))
            .filter_map(|(bytes, addr)| A::decode(bytes, addr));
        let comes = insns.any(|insn| match insn.flow {
            Flow::Branch { target, .. } | Flow::Jump(target) | Flow::Call(target) => {
                target == place
            }
            _ => false,
        });
        Some(comes || self.cx.entry_of(InputAddr::new(place)).is_some())
    }

    /// Whether all instructions that use a page are in straight code after it: it is gone when the last of
    /// them is done, or other code could still use it.
    fn straight<A: Arch>(&self, addr: u64, field: &Field) -> bool {
        let Some(old) = self.cx.input.bytes_from(addr) else {
            return false;
        };
        let uses = A::page_uses(old, field.target);
        let gone = uses
            .last()
            .and_then(|u| A::touched(old.get(u.0..)?))
            .zip(A::page_register(old));
        gone.is_some_and(|(t, reg)| t.kills >> reg & 1 != 0)
    }

    /// A page that changed, with all instructions that use it: each must make another address of it that may
    /// be. False: not that.
    fn retarget_page<A: Arch>(&mut self, addr: u64, field: &Field) -> bool {
        let (Some(old), Some(new)) = (
            self.cx.input.bytes_from(addr),
            self.cx.output.bytes_from(addr),
        ) else {
            return false;
        };
        let (Some(a), Some(b)) = (old.get(..A::STEP), new.get(..A::STEP)) else {
            return false;
        };
        let Some(now) = A::decode(b, addr)
            .and_then(|i| i.field)
            .filter(|n| n.kind == field.kind)
        else {
            return false;
        };
        let uses = A::page_uses(old, field.target);
        if !A::equal_around(a, b, field) || !self.straight::<A>(addr, field) {
            return false;
        }
        for &(at, target, kind) in &uses {
            let (Some(x), Some(y)) = (old.get(at..at + A::STEP), new.get(at..at + A::STEP)) else {
                return false;
            };
            let offset = A::page_use(y)
                .map(|u| u.offset)
                .filter(|_| A::equal_but_offset(x, y));
            let Some(offset) = offset else { return false };
            let make = |target| Field {
                kind,
                target,
                ..*field
            };
            self.retarget::<A>(
                addr + at as u64,
                &make(target),
                &make(now.target.wrapping_add(offset)),
                x,
                y,
            );
            self.pages.push(addr + at as u64);
        }
        true
    }

    /// Looks at the pages that changed and whose uses do not all are in straight code. What is in order, or
    /// charged to functions, is noted in `pages` and needs no second look.
    fn far_pages<A: Arch>(&mut self, start: u64, old: &[u8], new: &[u8]) {
        let mut changed: FxHashMap<u64, (u8, u64, u64)> = FxHashMap::default();
        let mut near: Vec<u64> = Vec::new();
        for (i, (a, b)) in old
            .chunks_exact(A::STEP)
            .zip(new.chunks_exact(A::STEP))
            .enumerate()
            .filter(|(_, (a, b))| a != b)
        {
            let addr = start.saturating_add((i * A::STEP) as u64);
            let page = |bytes| {
                A::decode(bytes, addr)
                    .and_then(|insn| insn.field)
                    .filter(|f| f.kind == FieldKind::Page)
            };
            let (Some(field), Some(now), Some(reg)) = (page(a), page(b), A::page_register(a))
            else {
                continue;
            };
            if self.in_patch(addr) || !A::equal_around(a, b, &field) {
                continue;
            }
            changed.insert(addr, (reg, field.target, now.target));
            if self.straight::<A>(addr, &field) {
                near.push(addr);
            }
        }
        if changed.len() == near.len() {
            return;
        }
        let graph = Graph::new::<A>([(start, old)]);
        let piece = Piece {
            start,
            old,
            new,
            graph: &graph,
            pages: &changed,
        };
        let pads = self
            .cx
            .old_unwind
            .fdes
            .iter()
            .any(|f| f.start == start && f.lsda != 0);
        let mut far: Vec<u64> = changed
            .keys()
            .copied()
            .filter(|a| !near.contains(a))
            .collect();
        far.sort_unstable();
        for addr in far {
            let Some(&(reg, from, to)) = changed.get(&addr) else {
                continue;
            };
            self.pages.push(addr);
            if let Some(uses) = piece.uses::<A>(addr).filter(|_| !pads) {
                for u in uses {
                    let at = usize::try_from(u.at - start).unwrap_or(usize::MAX);
                    let (a, b) = (
                        old.get(at..at + A::STEP).unwrap_or(b""),
                        new.get(at..at + A::STEP).unwrap_or(b""),
                    );
                    let field = Field {
                        at: 0,
                        len: A::STEP as u8,
                        kind: u.kind,
                        target: u.old,
                        literal: 0,
                    };
                    if !self.pages.contains(&u.at) {
                        self.retarget::<A>(
                            u.at,
                            &field,
                            &Field {
                                target: u.new,
                                ..field
                            },
                            a,
                            b,
                        );
                        self.pages.push(u.at);
                    }
                }
                continue;
            }
            if !self.charge_page(addr, from, to) {
                self.pages.retain(|p| *p != addr);
                continue;
            }
            let of_it = |w: &[u8]| A::page_use(w).is_some_and(|u| u.base == reg);
            let differ = old
                .chunks_exact(A::STEP)
                .zip(new.chunks_exact(A::STEP))
                .enumerate()
                .filter(|(_, (a, b))| a != b && of_it(a));
            self.pages
                .extend(differ.map(|(i, _)| start.saturating_add((i * A::STEP) as u64)));
        }
    }

    /// A page that changed, used in a way that is not followed: charged to the moved functions whose
    /// addresses may be made of it, which can be put back. False: there are none.
    fn charge_page(&mut self, addr: u64, old: u64, new: u64) -> bool {
        let mut charged = false;
        for (id, f) in self.cx.functions.iter().enumerate() {
            if (f.old_entry.get() & !0xfff, f.new_entry().get() & !0xfff) != (old, new) {
                continue;
            }
            charged = true;
            let text = format!(
                "the instruction at {addr:#x}, which stays, forms another page, and not all of its uses can be followed"
            );
            self.found.functions.push((
                id as FuncId,
                Failure::new(Check::OldCode, text).at(f.old_entry, f.new_entry()),
            ));
        }
        charged
    }

    fn retarget<A: Arch>(&mut self, addr: u64, field: &Field, now: &Field, old: &[u8], new: &[u8]) {
        let cx = self.cx;
        let target = (InputAddr::new(field.target), OutputAddr::new(now.target));
        let owner = cx.pair_owner(target.0, target.1);
        self.found.retargeted += 1;
        let entry = cx
            .entry_of(target.0)
            .filter(|_| field.kind != FieldKind::Accesses);
        // Where no relocations were kept, old code stays as it is.
        let may_change = !cx.bare;
        let allowed = match entry {
            Some(id) if owner == Some(id) => {
                field.kind != FieldKind::Absolute
                    || may_be_pointer(
                        cx,
                        self.kept,
                        addr + u64::from(field.at),
                        [A::ABS_4, A::ABS_8].concat().as_slice(),
                    )
            }
            // A jump to the middle of a moved function: a fragment that stays goes back to its parent.
            None => field.kind == FieldKind::Branch && owner.is_some(),
            _ => false,
        };
        if field.kind == FieldKind::Forms && cx.registers_anew(target.0, target.1) {
            self.found.registers += 1;
            return;
        }
        if allowed && may_change {
            self.found.pairs.push(target);
            if let (Some(id), FieldKind::Forms | FieldKind::Absolute) = (entry, field.kind) {
                self.found.addresses.push((id, true));
            }
            return;
        }
        let mut failure = Failure::new(
            Check::OldCode,
            format!("the instruction at {addr:#x}, which stays, goes to another address"),
        );
        failure = failure.at(target.0, target.1).bytes(old, new);
        self.found.charge(cx, target.0, target.1, failure);
    }

    /// An address in an instruction of the input that may be registered as an unwind table.
    fn registers<A: Arch>(&mut self, addr: u64, field: &Field) {
        let cx = self.cx;
        let target = field.target;
        let is_address = || match field.kind {
            FieldKind::Forms => true,
            // Not all linkers keep the relocation.
            FieldKind::Absolute if cx.is_static() => true,
            FieldKind::Absolute => may_be_pointer(
                cx,
                self.kept,
                addr + u64::from(field.at),
                [A::ABS_4, A::ABS_8].concat().as_slice(),
            ),
            _ => false,
        };
        if cx.hides_rooms(target) && is_address() {
            let text = format!(
                "the instruction at {addr:#x} registers {target:#x}, an unwind table that has entries for old code where new code is"
            );
            self.found.file.push(Failure::new(Check::OldCode, text));
        }
    }

    /// An address in an instruction of the input, which may have changed.
    fn reference<A: Arch>(&mut self, addr: u64, insn: &Insn, field: &Field, changed: bool) {
        let cx = self.cx;
        let target = field.target;
        if matches!(field.kind, FieldKind::Forms) {
            self.base(addr, target, false);
            if self.owner.is_none() && cx.is_abandoned(target) {
                let text = format!(
                    "the instruction at {addr:#x} refers to {target:#x}, whose section was moved"
                );
                self.found.file.push(Failure::new(Check::OldCode, text));
            }
            if self.owner.is_none() && !changed && cx.is_registered(target) {
                let text = format!(
                    "the instruction at {addr:#x} still forms {target:#x}, in an unwind table that was replaced"
                );
                self.found.file.push(Failure::new(Check::OldCode, text));
            }
        }
        self.registers::<A>(addr, field);
        let at = InputAddr::new(target);
        let forms = field.kind == FieldKind::Forms;
        // Where relocations were kept, there is none for data.
        let is_data = || cx.bare && self.owner.is_none() && is_data::<A>(cx, addr);
        if cx.bare
            && forms
            && let Some(id) = cx.inside_of(at)
            && !is_data()
        {
            self.found.inside.push((id, at));
        }
        let Some(id) = cx.old.owner(at) else {
            if forms
                && self.owner.is_none()
                && let Some(id) = cx.end_of(at)
                && !is_data()
            {
                self.found.inside.push((id, at));
            }
            return;
        };
        if field.kind == FieldKind::Accesses {
            if self.owner.is_none() && cx.overwritten(InputAddr::new(target)) == Some(id) {
                let text = format!("the instruction at {addr:#x} reads code that a jump overwrote");
                self.found.functions.push((
                    id,
                    Failure::new(Check::EntryJump, text)
                        .at(InputAddr::new(addr), OutputAddr::new(target)),
                ));
            }
            return;
        }
        let interior = cx.interiors.owner(InputAddr::new(target)) == Some(id);
        if self.owner == Some(id) {
            // From the old body itself, or from another fragment of it: matters if the old body still runs.
            if interior
                && matches!(
                    insn.flow,
                    Flow::Jump(_) | Flow::Branch { .. } | Flow::Call(_)
                )
            {
                self.found.interior_branches.push(id);
            }
            return;
        }
        // Old bodies of other moved functions may be dead, but that is not looked into here.
        if changed {
            return;
        }
        match cx.function(id) {
            Some(f) if f.old_entry == InputAddr::new(target) => {
                if field.kind == FieldKind::Forms && self.owner.is_none() {
                    self.found.addresses.push((id, false));
                }
            }
            _ if interior && self.owner.is_none() => {
                self.found.into_jumps.push((id, addr, target));
            }
            _ => self.found.entrances.push(id),
        }
    }

    /// Notes what may be the start of a table of relative addresses, formed by the instruction at `by`.
    fn base(&mut self, by: u64, addr: u64, number: bool) {
        if self.is_base(addr) {
            self.found.bases.push((addr, self.owner, number));
            self.found.formed.push((addr, by));
        }
    }

    /// Whether a table of relative addresses may begin there that code of the same owner forms the address of.
    fn is_base(&self, addr: u64) -> bool {
        let cx = self.cx;
        let is_others = || {
            let owner = cx.old.owner(InputAddr::new(addr));
            owner.is_none_or(|id| Some(id) != self.owner)
        };
        if cx.is_code(addr) && is_others() {
            return false;
        }
        cx.input.u32_at(addr).is_some_and(|word| {
            word != 0 && cx.is_code(addr.wrapping_add_signed(i64::from(word as i32)))
        })
    }

    /// The same for an address that is loaded as a number: the last four bytes of the instruction. Where the linker
    /// kept relocations and there is none for it, the number is no address.
    fn absolute_base<A: Arch>(&mut self, by: u64, bytes: &[u8]) {
        let Some(addr) = A::loaded_number(bytes).filter(|a| a.is_multiple_of(4)) else {
            return;
        };
        let field = by.wrapping_add(bytes.len() as u64).wrapping_sub(4);
        if self.kept.kind_at(field) != Some(None) {
            self.base(by, addr, true);
        }
    }
}

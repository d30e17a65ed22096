//! That nothing leads into what the jumps at old entries overwrote, where no kept relocations were used.
//!
//! A jump takes the place of some instructions; I is the set of its bytes after the first. All that could be
//! there at run time or be known to the program is looked for in the whole input:
//!
//! | what | where | must not |
//! |---|---|---|
//! | wide branches and calls | at every position of all code, whatever is decoded there | lead to I |
//! | narrow branches | instructions of covered code; every position elsewhere | lead to I |
//! | operands relative to the program counter | likewise | form an address in I; read, from within 64 bytes below, any byte of the jump |
//! | addresses that two instructions form (AArch64) | of each page with code: straight code behind what forms it; all of the range that adds to the same register, where the page may get farther | the same, within 16 bytes |
//! | relocations' values, symbols, tags of the dynamic section, the entry point | their tables | be in I |
//! | landing pads | all exception tables | be in I |
//! | tables that a function with a jump to old code, or a table of its own, may use: at each address that it forms (AArch64: outside of code), entries of each width that the machine's tables have, added to the table's address or to that of code that it forms | 4096 entries, up to the end of a section | lead to I of that function |
//! | at a fixed address, numbers | words of data at multiples of four; the ends of instructions, where immediate operands and displacements are; every position elsewhere in code | be in I |
//!
//! Covered code is what an unwind entry or a dynamic symbol with a size spans. It is decoded from its first byte,
//! and from each place where a direct branch of it leads and that decoding does not reach (assumption A2). Jumps
//! through tables of other functions are assumption A3, reads through pointers A4.
//!
//! On AArch64 instructions are at multiples of four, and a jump is one of them: mostly I has no place where one could
//! begin. Where it has (a landing pad was put in front, or the jump has three instructions), every word of all code is
//! looked at as an instruction, whatever the linear decode says. What else was overwritten (old targets of jump
//! tables) has no inside, but must not be read either.

use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{Arch, FieldKind, Flow, Guess, Insn};
use crate::context::{Context, Findings, FuncId, Numbers};
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::{Moved, Range};
use crate::files::elf::{SHF_EXECINSTR, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB};
use crate::files::lsda::Lsda;
use crate::proof::bare::may_hold_number;
use crate::proof::image;
use crate::report::{Check, Failure};
use rustc_hash::FxHashSet;

/// Bytes of a page that one instruction forms.
const PAGE: u64 = 4096;
/// More entries than this no table has.
const ENTRIES: u64 = 4096;
/// Bytes of code that one task looks at.
const CHUNK: usize = 1 << 18;

/// What was found: function, from where, to where, and how.
type Hits = Vec<(FuncId, u64, u64, &'static str)>;

/// Looks through the whole input.
pub(crate) fn search<A: Arch>(cx: &Context<'_>) -> Found {
    let covered = covered(cx);
    let search = Search { cx };
    let mut all = Found::default();
    for range in &cx.code {
        all.join(search.wide_branches::<A>(*range));
    }
    all.join_all(postlink_parallel::map(&covered, |r| {
        search.decoded::<A>(*r)
    }));
    for range in uncovered(cx, &covered) {
        all.join(search.undecoded::<A>(range));
    }
    all.join(search.tables::<A>());
    if cx.fixed() {
        all.join(search.words());
    }
    let hulls = hulls(cx);
    all.join_all(postlink_parallel::map_range(cx.functions.len(), |id| {
        let hull = hulls.get(id).copied().unwrap_or_default();
        search.own_tables::<A>(id as FuncId, hull)
    }));
    all
}

/// Charges what was found to the functions.
pub(crate) fn judge(mut all: Found, found: &mut Findings) {
    all.hits.sort_unstable();
    all.hits.dedup_by_key(|hit| hit.0);
    for (id, from, to, how) in all.hits {
        let text = format!(
            "{how} at {from:#x} leads to {to:#x}, in what the jump at the old entry overwrote"
        );
        let failure =
            Failure::new(Check::EntryJump, text).at(InputAddr::new(from), OutputAddr::new(to));
        found.functions.push((id, failure));
    }
    if let Some((from, to)) = all.abandoned {
        let text = format!("{from:#x} may refer to {to:#x}, whose section was moved");
        let failure =
            Failure::new(Check::OldCode, text).at(InputAddr::new(from), OutputAddr::new(to));
        found.file.push(failure);
    }
    found.inside.append(&mut all.inside);
}

/// What was found in the whole input.
#[derive(Clone, Default)]
pub(crate) struct Found {
    hits: Hits,
    /// Numbers in instructions that could be addresses inside of moved functions.
    inside: Vec<(FuncId, InputAddr)>,
    /// From where to where something may refer to a section that moved.
    abandoned: Option<(u64, u64)>,
}

impl Found {
    fn join(&mut self, mut other: Found) {
        self.hits.append(&mut other.hits);
        self.inside.append(&mut other.inside);
        self.abandoned = self.abandoned.or(other.abandoned);
    }

    /// Without what leads to functions that are gone, by the others' new numbers.
    pub(crate) fn renumbered(self, numbers: &Numbers) -> Found {
        let hits = self.hits.into_iter();
        let inside = self.inside.into_iter();
        Found {
            hits: hits
                .filter_map(|(id, from, to, how)| Some((numbers.of(id)?, from, to, how)))
                .collect(),
            inside: inside
                .filter_map(|(id, addr)| Some((numbers.of(id)?, addr)))
                .collect(),
            abandoned: self.abandoned,
        }
    }

    fn join_all(&mut self, parts: Vec<Found>) {
        parts.into_iter().for_each(|part| self.join(part));
    }
}

/// Code whose instruction starts are taken to be those of a linear decode.
pub(crate) fn covered(cx: &Context<'_>) -> Vec<Range> {
    let unwound = cx.old_unwind.fdes.iter().map(|f| (f.start, f.end));
    let symbols = cx.input.symbols(SHT_DYNSYM);
    let named = symbols
        .filter(|s| s.is_function() && s.section != 0)
        .map(|s| (s.value, s.value.saturating_add(s.size)));
    let clipped = |(start, end): (u64, u64)| {
        let section = cx.code.iter().find(|r| r.contains(start))?;
        let end = end.min(section.end);
        (start < end).then_some(Range { start, end })
    };
    let mut all: Vec<Range> = unwound.chain(named).filter_map(clipped).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What of the code is in none of some ascending ranges.
pub(crate) fn uncovered(cx: &Context<'_>, covered: &[Range]) -> Vec<Range> {
    let mut rest = Vec::new();
    for section in &cx.code {
        let mut at = section.start;
        for r in covered.iter().filter(|r| section.contains(r.start)) {
            if at < r.start {
                rest.push(Range {
                    start: at,
                    end: r.start,
                });
            }
            at = at.max(r.end);
        }
        if at < section.end {
            rest.push(Range {
                start: at,
                end: section.end,
            });
        }
    }
    rest
}

/// By function: what was overwritten of it is not in front of the first of these addresses, nor behind the second.
fn hulls(cx: &Context<'_>) -> Vec<Range<InputAddr>> {
    let mut hulls: Vec<Range<InputAddr>> = vec![Range::default(); cx.functions.len()];
    for (r, id) in cx.interiors.ranges() {
        if let Some(hull) = hulls.get_mut(id as usize) {
            let is_first = hull.end == InputAddr::default();
            hull.start = if is_first {
                r.start
            } else {
                hull.start.min(r.start)
            };
            hull.end = hull.end.max(r.end);
        }
    }
    hulls
}

struct Search<'c, 'd> {
    cx: &'c Context<'d>,
}

impl Search<'_, '_> {
    /// Control may go to an address, or the program know it.
    fn leads(&self, from: u64, to: u64, how: &'static str, found: &mut Found) {
        if let Some(id) = self.cx.interiors.owner(InputAddr::new(to)) {
            found.hits.push((id, from, to, how));
        }
    }

    /// An address may be read from.
    fn reads<A: Arch>(&self, from: u64, to: u64, found: &mut Found) {
        let (start, end) = (
            InputAddr::new(to),
            InputAddr::new(to.saturating_add(A::WIDEST)),
        );
        for overwritten in [&self.cx.patches, &self.cx.arrivals] {
            if overwritten.is_free(start, end) {
                continue;
            }
            // All of them: one may be gone in the next output.
            for (at, id) in overwritten.within(start, end) {
                found.hits.push((id, from, at.get(), "what may be read"));
            }
        }
    }

    fn refers(&self, from: u64, to: u64, found: &mut Found) {
        if self.cx.is_abandoned(to) {
            found.abandoned.get_or_insert((from, to));
        }
    }

    fn wide_branches<A: Arch>(&self, range: Range) -> Found {
        let bytes = self.cx.input.bytes(range.start, range.len()).unwrap_or(b"");
        let starts: Vec<usize> = (0..bytes.len()).step_by(CHUNK).collect();
        let part = |start: &usize| {
            let mut found = Found::default();
            // A branch may continue in the next part.
            let end = bytes.len().min(start + CHUNK + 8);
            let own = bytes.get(*start..end).unwrap_or(b"");
            let at = range.start + *start as u64;
            A::guesses(own, at, &mut |guess, to| {
                // Where every word can be an instruction, each of them is looked at.
                let branches = guess == Guess::Wide || A::STEP > 1 && guess == Guess::Narrow;
                if branches {
                    self.leads(at, to, "what could be a branch near", &mut found);
                }
            });
            found
        };
        let mut all = Found::default();
        all.join_all(postlink_parallel::map(&starts, part));
        all
    }

    fn decoded<A: Arch>(&self, range: Range) -> Found {
        let mut found = Found::default();
        let Some(bytes) = self.cx.input.bytes(range.start, range.len()) else {
            return found;
        };
        let mut seen: FxHashSet<u64> = FxHashSet::default();
        let mut work = vec![range.start];
        let mut targets = Vec::new();
        loop {
            while let Some(mut at) = work.pop() {
                while at < range.end && seen.insert(at) {
                    let rest = bytes.get((at - range.start) as usize..).unwrap_or(b"");
                    let Some(insn) = A::decode(rest, at) else {
                        let rest = Range {
                            start: at,
                            end: range.end,
                        };
                        found.join(self.undecoded::<A>(rest));
                        break;
                    };
                    let own = rest.get(..usize::from(insn.len)).unwrap_or(rest);
                    self.instruction::<A>(at, &insn, own, &mut found);
                    if let Some(field) = insn.field.filter(|f| f.kind == FieldKind::Branch)
                        && range.contains(field.target)
                    {
                        targets.push(field.target);
                    }
                    at += u64::from(insn.len);
                }
            }
            targets.retain(|t| !seen.contains(t));
            targets.sort_unstable();
            targets.dedup();
            if targets.is_empty() {
                self.pages::<A>(range, bytes, &mut found);
                return found;
            }
            work.append(&mut targets);
        }
    }

    fn instruction<A: Arch>(&self, at: u64, insn: &Insn, own: &[u8], found: &mut Found) {
        if let Some(field) = insn.field {
            match field.kind {
                FieldKind::Branch => self.leads(at, field.target, "the branch", found),
                FieldKind::Accesses => {
                    self.reads::<A>(at, field.target, found);
                    self.refers(at, field.target, found);
                }
                // What is made of it is looked at, not the page itself.
                FieldKind::Page => {}
                FieldKind::Forms | FieldKind::Absolute => {
                    self.leads(at, field.target, "the address formed", found);
                    self.refers(at, field.target, found);
                }
            }
        }
        if !self.cx.fixed() || !may_hold_number(insn.flow) {
            return;
        }
        let distance = insn.field.map_or(usize::MAX, |f| usize::from(f.at));
        for behind in [0, 1, 2, 4] {
            let start = own.len().checked_sub(4 + behind);
            let start = start.filter(|start| *start > 0 && *start != distance);
            if let Some(number) = start.and_then(|start| u32_in(own, start)) {
                let number = u64::from(number);
                self.number(at, number, found);
            }
        }
        if distance.checked_add(4) != Some(own.len())
            && let Some(number) = A::last_number(own)
            && let Some(id) = self.cx.inside_of(InputAddr::new(number))
        {
            found.inside.push((id, InputAddr::new(number)));
        }
        let long = own.len().checked_sub(8).filter(|start| *start > 0);
        if let Some(number) = long.and_then(|start| u64_in(own, start)) {
            self.number(at, number, found);
        }
    }

    fn number(&self, from: u64, number: u64, found: &mut Found) {
        self.leads(from, number, "the number", found);
        self.refers(from, number, found);
    }

    fn undecoded<A: Arch>(&self, range: Range) -> Found {
        let mut found = Found::default();
        let bytes = self.cx.input.bytes(range.start, range.len()).unwrap_or(b"");
        let from = range.start;
        A::guesses(bytes, from, &mut |guess, to| {
            self.leads(from, to, "what could be an instruction after", &mut found);
            if guess == Guess::Relative {
                self.reads::<A>(from, to, &mut found);
            }
            if matches!(guess, Guess::Relative | Guess::Formed) {
                self.refers(from, to, &mut found);
            }
        });
        self.pages::<A>(range, bytes, &mut found);
        if self.cx.fixed() && A::STEP == 1 {
            for at in 0..bytes.len() {
                if let Some(number) = u32_in(bytes, at) {
                    self.number(from + at as u64, u64::from(number), &mut found);
                }
            }
        }
        found
    }

    /// Addresses that several instructions of a range form together, and numbers that they make.
    fn pages<A: Arch>(&self, range: Range, bytes: &[u8], found: &mut Found) {
        if A::STEP == 1 {
            return;
        }
        let wanted = |page: u64| {
            let end = page.saturating_add(PAGE);
            let meets = |r: &Range| r.start < end && page < r.end;
            self.cx.code.iter().any(meets) || self.cx.abandoned.iter().any(meets)
        };
        let mut made = Vec::new();
        addresses_of_pages::<A>(range.start, bytes, &wanted, &mut |at, kind, to| {
            made.push((at, kind, to));
        });
        for (at, kind, to) in made {
            self.refers(at, to, found);
            match kind {
                FieldKind::Accesses => self.reads::<A>(at, to, found),
                _ => self.leads(at, to, "the address formed", found),
            }
        }
        if !self.cx.fixed() {
            return;
        }
        A::numbers(bytes, &mut |at, number| {
            let at = range.start + at as u64;
            self.number(at, number, found);
            if let Some(id) = self.cx.inside_of(InputAddr::new(number)) {
                found.inside.push((id, InputAddr::new(number)));
            }
        });
    }

    /// What the file's tables name.
    fn tables<A: Arch>(&self) -> Found {
        let input = self.cx.input;
        let mut found = Found::default();
        let mut leads = |from: u64, to: u64, how| self.leads(from, to, how, &mut found);
        let dynamic: Vec<u64> = input.symbols(SHT_DYNSYM).map(|s| s.value).collect();
        for symbol in input.symbols(SHT_SYMTAB).chain(input.symbols(SHT_DYNSYM)) {
            if symbol.section != 0 {
                leads(symbol.value, symbol.value, "the symbol");
            }
        }
        for table in image::rela_tables(input) {
            let bytes = input.bytes(table.start, table.len()).unwrap_or(b"");
            for entry in bytes.chunks_exact(24) {
                let (Some(place), Some(info), Some(addend)) =
                    (u64_in(entry, 0), u64_in(entry, 8), u64_in(entry, 16))
                else {
                    continue;
                };
                let symbol = usize::try_from(info >> 32).ok();
                let symbol = symbol.and_then(|i| dynamic.get(i)).copied().unwrap_or(0);
                for to in [addend, symbol.wrapping_add(addend)] {
                    leads(place, to, "the relocation");
                }
            }
        }
        if let (Some(at), Some(size)) = (input.dynamic_value(36), input.dynamic_value(35)) {
            for place in image::relr_places(input.bytes(at, size).unwrap_or(b"")) {
                if let Some(to) = input.u64_at(place) {
                    leads(place, to, "the pointer");
                }
            }
        }
        for tag in &input.dynamic {
            leads(tag.value, tag.value, "the dynamic tag");
        }
        leads(input.entry, input.entry, "the entry point");
        for fde in self.cx.old_unwind.fdes.iter().filter(|f| f.lsda != 0) {
            let area = Lsda::parse(input, fde.lsda, fde.start);
            for pad in area.iter().flat_map(Lsda::pads) {
                leads(fde.lsda, pad, "the landing pad");
            }
        }
        found
    }

    /// Words of data that could be addresses.
    fn words(&self) -> Found {
        let input = self.cx.input;
        let mut found = Found::default();
        let data = input
            .sections
            .iter()
            .filter(|s| s.is_alloc() && s.kind != SHT_NOBITS && s.flags & SHF_EXECINSTR == 0);
        for s in data {
            let bytes = input.section_data(s);
            for at in (0..bytes.len()).step_by(4) {
                if let Some(word) = u64_in(bytes, at) {
                    self.number(s.addr + at as u64, word, &mut found);
                }
            }
        }
        found
    }

    /// Tables that a function may use; `hull`: see [`hulls`]. Nearly all that could be entries lead out of that.
    fn own_tables<A: Arch>(&self, id: FuncId, hull: Range<InputAddr>) -> Found {
        let mut found = Found::default();
        let f = self.cx.function(id);
        let Some(f) = f.filter(|f| !f.falls_back.is_empty() || !f.tables.is_empty()) else {
            return found;
        };
        let interiors = f
            .old
            .iter()
            .flat_map(|r| self.cx.interiors.within(r.start, r.end));
        let begin = |(at, _): (InputAddr, FuncId)| {
            // Within a jump of one instruction none begins.
            let first = at.get().next_multiple_of(A::STEP as u64);
            self.cx.interiors.owner(InputAddr::new(first)) == Some(id)
        };
        if !interiors.into_iter().any(begin) {
            return found;
        }
        let formed = formed_by::<A>(self.cx, f);
        let is_code = |a: &&u64| self.cx.is_code(**a);
        let labels: Vec<u64> = formed.iter().filter(is_code).copied().collect();
        for &table in &formed {
            // Where numbers as small as these are entries, instructions would say anything: such tables are in data.
            if A::STEP > 1 && self.cx.is_code(table) {
                continue;
            }
            // A table is in one section.
            let end = self.cx.input.section_at(table).map(|s| s.end());
            for &(width, shift) in A::ENTRIES {
                let room = end.map_or(ENTRIES, |end| (end - table) / width);
                for i in 0..ENTRIES.min(room) {
                    let place = table.wrapping_add(width * i);
                    let Some(values) = self.cx.input.bytes(place, width).map(entry_values) else {
                        break;
                    };
                    let targets = values.into_iter().flat_map(|value| {
                        let number = value << shift;
                        let bases = bases_into(&labels, hull, number).chain([&table]);
                        bases.map(move |base| base.wrapping_add(number))
                    });
                    for to in targets {
                        let at = InputAddr::new(to);
                        if hull.contains(at) && self.cx.interiors.owner(at) == Some(id) {
                            found.hits.push((id, place, to, "the table's entry"));
                        }
                    }
                }
            }
        }
        found
    }
}

/// The bases, of ascending ones, from which a number leads into a range; the addresses wrap around.
fn bases_into(bases: &[u64], range: Range<InputAddr>, number: u64) -> impl Iterator<Item = &u64> {
    let first = range.start.get().wrapping_sub(number);
    let behind = range.end.get().wrapping_sub(number);
    let (a, b) = (
        bases.partition_point(|base| *base < first),
        bases.partition_point(|base| *base < behind),
    );
    let parts = if first <= behind {
        [bases.get(a..b), None]
    } else {
        [bases.get(..b), bases.get(a..)]
    };
    parts.into_iter().flatten().flatten()
}

/// What an entry of a table may mean: with its sign, and without.
fn entry_values(entry: &[u8]) -> [u64; 2] {
    let number = entry.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    let unused = 64 - 8 * entry.len().clamp(1, 8) as u32;
    [((number << unused) as i64 >> unused) as u64, number]
}

/// Addresses that a function's old code forms; ascending.
fn formed_by<A: Arch>(cx: &Context<'_>, f: &Moved) -> Vec<u64> {
    let mut formed: Vec<u64> = Vec::new();
    for r in &f.old {
        let bytes = cx.input.bytes(r.start.get(), r.len()).unwrap_or(b"");
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let insn = A::decode(rest, (r.start + at as u64).get());
            let field = insn.and_then(|insn| insn.field);
            formed.extend(
                field
                    .filter(|f| f.kind == FieldKind::Forms)
                    .map(|f| f.target),
            );
            at += insn.map_or(A::STEP, |insn| usize::from(insn.len));
        }
        addresses_of_pages::<A>(r.start.get(), bytes, &|_| true, &mut |_, kind, to| {
            if kind == FieldKind::Forms {
                formed.push(to);
            }
        });
    }
    formed.sort_unstable();
    formed.dedup();
    formed
}

/// Visits the addresses that code makes of pages which are wanted: where, how they are used, and which. Straight code
/// behind the instruction that forms the page is followed. Where control may go elsewhere while the page is in its
/// register, or the register is used in other ways, all instructions of the range that use the same register as one
/// with a page may use this one.
fn addresses_of_pages<A: Arch>(
    start: u64,
    bytes: &[u8],
    wanted: &dyn Fn(u64) -> bool,
    visit: &mut dyn FnMut(u64, FieldKind, u64),
) {
    if A::STEP == 1 {
        return;
    }
    let words = || bytes.chunks_exact(A::STEP).zip((start..).step_by(A::STEP));
    let mut escaped: Vec<(u8, u64)> = Vec::new();
    for (i, (word, at)) in words().enumerate() {
        let Some(reg) = A::page_register(word) else {
            continue;
        };
        let page = A::decode(word, at)
            .and_then(|insn| insn.field)
            .map(|f| f.target);
        let Some(page) = page.filter(|page| wanted(*page)) else {
            continue;
        };
        let behind = words().skip(i + 1);
        if !used_straight::<A>(behind, reg, page, visit) {
            escaped.push((reg, page));
        }
    }
    escaped.sort_unstable();
    escaped.dedup();
    if escaped.is_empty() {
        return;
    }
    for (word, at) in words() {
        let Some(used) = A::page_use(word) else {
            continue;
        };
        for (_, page) in escaped.iter().filter(|(reg, _)| *reg == used.base) {
            visit(at, kind_of(used.dest), page.wrapping_add(used.offset));
        }
    }
}

fn kind_of(dest: Option<u8>) -> FieldKind {
    match dest {
        Some(_) => FieldKind::Forms,
        None => FieldKind::Accesses,
    }
}

/// Visits the uses of a page in straight code. False: there may be others.
fn used_straight<'b, A: Arch>(
    words: impl Iterator<Item = (&'b [u8], u64)>,
    reg: u8,
    page: u64,
    visit: &mut dyn FnMut(u64, FieldKind, u64),
) -> bool {
    for (word, at) in words {
        let Some(insn) = A::decode(word, at) else {
            return false;
        };
        match insn.flow {
            Flow::Next | Flow::Nothing => {}
            Flow::Call(_) | Flow::IndirectCall if A::KEPT_BY_CALLS >> reg & 1 != 0 => continue,
            Flow::Call(_) | Flow::IndirectCall => {
                // It may be an argument as it is.
                visit(at, FieldKind::Forms, page);
                return true;
            }
            // A return among them: what an outliner has taken out of a function may leave the page to its caller.
            _ => return false,
        }
        let Some(touched) = A::touched(word) else {
            return false;
        };
        let used = A::page_use(word).filter(|u| u.base == reg);
        let killed = touched.kills >> reg & 1 != 0;
        if let Some(used) = used {
            visit(at, kind_of(used.dest), page.wrapping_add(used.offset));
        }
        // A store of the register itself puts the page elsewhere.
        let stores = used.is_some_and(|u| u.dest.is_none())
            && word.first().is_some_and(|low| low & 31 == reg)
            && !killed;
        if stores || used.is_none() && touched.reads >> reg & 1 != 0 {
            return false;
        }
        if killed {
            return true;
        }
        if touched.writes >> reg & 1 != 0 {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::aarch64::AArch64;

    /// What code at 0x1000 that begins with `adrp x1, 0x2000` makes of the page, in front of a `ldr w0, [x1, #16]` that
    /// control does not come to.
    fn made(words: &[u32]) -> Vec<(FieldKind, u64)> {
        let adrp = 0xb000_0001u32;
        let all = [&[adrp][..], words, &[0xb940_1020]].concat();
        let bytes: Vec<u8> = all.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut made = Vec::new();
        addresses_of_pages::<AArch64>(0x1000, &bytes, &|_| true, &mut |_, kind, to| {
            made.push((kind, to));
        });
        made
    }

    #[test]
    fn bases_from_which_a_number_leads_into_a_range_are_found() {
        let bases = [0, 3, 0x4000, 0x4ff0, 0x5000, u64::MAX - 7, u64::MAX];
        for (start, end) in [(0x5000, 0x5008), (0, 0), (0x4000, 0x6000), (1, 5)] {
            let range = Range {
                start: InputAddr::new(start),
                end: InputAddr::new(end),
            };
            for number in [0, 8, 0x1000, 0x5000, u64::MAX, u64::MAX - 0xfff, 1 << 63] {
                let inside = |base: &u64| (start..end).contains(&base.wrapping_add(number));
                for base in bases {
                    let found = bases_into(&bases, range, number).any(|b| *b == base);
                    assert_eq!(found, inside(&base), "{base:#x} + {number:#x}");
                }
            }
        }
    }

    /// Functions were refused for what is read elsewhere by the same register.
    #[test]
    fn a_page_is_followed_over_conversions_and_no_further_than_a_return() {
        let (forms, accesses) = (FieldKind::Forms, FieldKind::Accesses);
        let (add, add_to_other, ret) = (0x9120_0021, 0x9120_0020, 0xd65f_03c0);
        // scvtf d1, w0; add x1, x1, #0x800
        assert_eq!(made(&[0x1e62_0001, add, ret]), [(forms, 0x2800)]);
        // add x0, x1, #0x800; ret: the caller may have more of the page.
        let escaped = made(&[add_to_other, ret]);
        assert_eq!(escaped.last(), Some(&(accesses, 0x2010)));
        // ucvtf d0, x1: it is calculated with.
        let escaped = made(&[0x9e63_0020, add, ret]);
        assert_eq!(escaped.last(), Some(&(accesses, 0x2010)));
        // b .+8: it may be used there.
        let escaped = made(&[add_to_other, 0x1400_0002]);
        assert_eq!(escaped.last(), Some(&(accesses, 0x2010)));
        // br x30 is a jump.
        let escaped = made(&[add_to_other, 0xd61f_03c0]);
        assert_eq!(escaped.last(), Some(&(accesses, 0x2010)));
    }
}

//! Unwinding through functions whose entries count.
//!
//! A counter in front of its function begins with it in the unwind entry: [`Proof::unwinding`]. Stubs are described
//! by the last entry of the search table, which is replaced by a longer one. [`Proof::frames`] shows of that entry:
//!
//! * It says of its own function what the old one said, with the same exception table, or with one that says the same
//!   of the function, and that exceptions pass what is behind.
//! * At an instruction in a stub it says what the input's entry says where the instruction was; at each instruction of
//!   a counter, what it says at the function's first instruction, for where the stack pointer and the return address
//!   are there. Where the input says nothing of the function, there is no caller, or what holds is what a call leaves,
//!   and likewise at each instruction, and at a jump right behind the counter. Only the personality routine may be
//!   another one: none of the functions whose calls are in stubs has an exception table, nor has the entry, so neither
//!   has anything to say. Where there
//!   is an exception table, or no entry, no call is in a stub, and no instruction but a direct jump if faults may raise
//!   exceptions; there the entry may also say that there is no caller.
//! * From each instruction of the routines that counters call it leads to their callers ([`crate::frames`]).
//! * It covers no code that returns from a signal handler: run-times know that by its bytes if it has no entry.
//!
//! What is between the last function and the stubs has rows without a caller. To run-times they say what a missing
//! entry says.

use super::{Entries, Proof};
use crate::Options;
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{Flow, Insn};
use crate::files::bytes::u32_in;
use crate::files::claim::Range;
use crate::files::elf::{self, Elf};
use crate::files::lsda::{Lsda, Outcome};
use crate::files::unwind::{Fde, Interner, RowId, RowMap, Runner, Span, Table};
use crate::frames::{Rows as RoutineRows, Stand, stands};
use crate::proof::writes;
use crate::report::{Check, Failure};
use crate::routines::Routine;

/// Code in a stub, and the place of the input whose row holds there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Framed {
    at: u64,
    stub: u64,
    len: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum What {
    /// No exception comes from it.
    Counter,
    /// Direct jumps: likewise.
    Quiet,
    Insn,
    Call,
}

impl Framed {
    pub(super) fn counter(at: u64, stub: u64, len: u64) -> Self {
        let what = What::Counter;
        Framed {
            at,
            stub,
            len,
            what,
        }
    }

    pub(super) fn of(at: u64, stub: u64, old: &Insn, new: &Insn) -> Self {
        let what = match old.flow {
            Flow::Call(_) | Flow::IndirectCall => What::Call,
            Flow::Jump(_) => What::Quiet,
            _ => What::Insn,
        };
        let len = u64::from(new.len);
        Framed {
            at,
            stub,
            len,
            what,
        }
    }
}

impl<A: Entries> Proof<'_, A> {
    pub(super) fn is_framed(&self, framed: Framed) {
        if self.is_new(framed.stub) {
            self.framed.borrow_mut().insert(framed);
        }
    }

    /// How many calls are in stubs: what they call may see another return address.
    pub(super) fn calls_in_stubs(&self) -> u64 {
        let framed = self.framed.borrow();
        framed.iter().filter(|f| f.what == What::Call).count() as u64
    }

    /// Unwind entries and the search table; what is judged here is added to `skip`.
    pub(super) fn unwinding(&mut self, skip: &mut Vec<Range>, options: &Options) {
        let fdes = self.unwind.fdes.clone();
        let base = self.unwind.addr;
        for fde in &fdes {
            let at = base + u64::from(fde.offset);
            let size = self.input.u32_at(at).map_or(0, |n| 4 + u64::from(n));
            let (Some(old), Some(new)) = (self.input.bytes(at, size), self.output.bytes(at, size))
            else {
                continue;
            };
            if old == new {
                continue;
            }
            let fails = |what: &str| {
                Failure::new(
                    Check::Unwind,
                    format!("the FDE of the old code at {:#x} {what}", fde.start),
                )
                .bytes(old, new)
            };
            let word = |bytes: &[u8], o| u32_in(bytes, o).unwrap_or(0);
            let by = word(old, 8).wrapping_sub(word(new, 8));
            let mut expected = old.to_vec();
            if let Some(place) = expected.get_mut(8..12) {
                place.copy_from_slice(&word(new, 8).to_le_bytes());
            }
            if let Some(place) = expected.get_mut(12..16) {
                place.copy_from_slice(&word(old, 12).wrapping_add(by).to_le_bytes());
            }
            let from = fde.instructions.0 as usize - fde.offset as usize;
            let first = old
                .iter()
                .skip(from)
                .position(|b| *b != 0)
                .map(|i| from + i);
            if let Some(first) = first {
                let op = expected.get(first).copied().unwrap_or(0);
                let (place, most) = if op & 0xc0 == 0x40 {
                    (first, 0x7f)
                } else {
                    (first + 1, 0xff)
                };
                if op & 0xc0 != 0x40 && op != 2 {
                    self.fail(
                        fails("begins earlier, but its instructions do not begin with an advance"),
                        options,
                    );
                    continue;
                }
                if let Some(byte) = expected.get_mut(place) {
                    match u8::try_from(u32::from(*byte) + by)
                        .ok()
                        .filter(|n| *n <= most)
                    {
                        Some(n) => *byte = n,
                        None => *byte = byte.wrapping_add(1),
                    }
                }
            }
            if expected != new
                || fde.lsda != 0
                || !self.in_front(fde.start, fde.start.wrapping_sub(by.into()))
            {
                self.fail(fails("changed"), options);
            }
            skip.push(Range {
                start: at,
                end: at + size,
            });
        }
        let (Some(a), Some(b)) = (
            self.input.segment(elf::PT_GNU_EH_FRAME).copied(),
            self.output.segment(elf::PT_GNU_EH_FRAME).copied(),
        ) else {
            return;
        };
        let (Some(old), Some(new)) = (
            self.input.bytes(a.addr, a.file_size),
            self.output.bytes(b.addr, b.file_size),
        ) else {
            return;
        };
        if a.addr != b.addr || old.len() != new.len() || old.get(..12) != new.get(..12) {
            self.fail(
                Failure::new(Check::Unwind, "the unwind search table is another one"),
                options,
            );
            return;
        }
        let count = u32_in(old, 8).unwrap_or(0) as usize;
        for (i, (x, y)) in old
            .get(12..)
            .unwrap_or(b"")
            .chunks_exact(8)
            .zip(new.get(12..).unwrap_or(b"").chunks_exact(8))
            .enumerate()
        {
            let word = |bytes: &[u8], o| {
                a.addr
                    .wrapping_add_signed(i64::from(u32_in(bytes, o).unwrap_or(0) as i32))
            };
            let (start, entry) = ((word(x, 0), word(y, 0)), (word(x, 4), word(y, 4)));
            let start_fits = start.0 == start.1
                || self.in_front(start.0, start.1) && self.leads(start.0, start.1);
            let entry_fits = entry.0 == entry.1
                || i + 1 == count && self.is_table(entry.1) && start.0 == start.1;
            if !(start_fits && entry_fits) {
                let text = format!("the unwind search table's entry for {:#x} changed", start.0);
                self.fail(Failure::new(Check::Unwind, text).bytes(x, y), options);
            }
        }
        skip.push(Range {
            start: a.addr,
            end: a.addr + old.len() as u64,
        });
    }

    /// What the unwind entry for stubs says.
    pub(super) fn frames(&mut self, options: &Options) {
        let mut framed: Vec<Framed> = self.framed.borrow().iter().copied().collect();
        framed.sort_unstable();
        let mut checked = Checked::default();
        for failure in self.wrong_frames(&framed, &mut checked) {
            self.fail(failure, options);
        }
        self.checked = checked;
    }

    fn wrong_frames(&self, framed: &[Framed], checked: &mut Checked) -> Vec<Failure> {
        let wrong = |what: String| vec![Failure::new(Check::Unwind, what)];
        let mut old = self.unwind.clone();
        let extended = match self.extended() {
            Ok(extended) => extended,
            Err(what) => return wrong(what),
        };
        let mut rows = Rows::default();
        let mut failures = Vec::new();
        let personality = |table: &Table<'_>, fde| table.cie_of(fde).map(|c| c.personality);
        let own = old.fdes.last().copied();
        let same = match (&own, &extended) {
            (Some(a), Some((new, b))) => {
                (a.start, personality(&old, a)) == (b.start, personality(new, b))
                    && self.is_exception_table(a, b)
            }
            (_, extended) => extended.is_none(),
        };
        if !same {
            return wrong("the unwind entry for stubs is not that of the last function".into());
        }
        if let Some((table, fde)) = &extended {
            let mut table = table.clone();
            table.fdes = vec![*fde];
            let rows = RoutineRows::new(&table).beside_function();
            failures.extend(self.wrong_routines(rows, checked));
        }
        match self.added() {
            Ok(None) => {}
            Ok(Some(mut table)) => {
                let of_routines = RoutineRows::new(&table);
                failures.extend(self.wrong_routines(of_routines, checked));
                blank(&mut table);
                if let Err(what) = rows.added::<A>(&table) {
                    return wrong(what);
                }
            }
            Err(what) => return wrong(what),
        }
        blank(&mut old);
        if let (Some(a), Some((mut new, b))) = (own, extended) {
            blank(&mut new);
            if let Err(what) = rows.extended::<A>((&old, &a), (&new, &b)) {
                return wrong(what);
            }
            failures.extend(self.signal_returns(a.end, b.end));
        }
        let faults = self.asked.iter().any(|asked| asked.of_all);
        // The function and the end of the last counter.
        let mut counted = None;
        for f in framed {
            let begins = counted == Some((f.at, f.stub));
            if f.what == What::Counter {
                counted = Some((f.at, f.stub + f.len));
            }
            let place =
                |failure: Failure| failure.at(InputAddr::new(f.at), OutputAddr::new(f.stub));
            let code = |at: u64| self.output.bytes_from(at).filter(|_| self.is_new(at));
            let stands = match f.what {
                What::Counter => stands::<A>(&code, (f.stub, f.stub + f.len)),
                _ => Ok(Vec::new()),
            };
            let same =
                stands.and_then(|stands| rows.is_same::<A>(&old, f, (&stands, begins), faults));
            match same {
                Ok(true) => checked.moved += rows.moved,
                Ok(false) => failures.push(place(Failure::new(
                    Check::Unwind,
                    "the unwind entry of stubs says something else than the input's where this was",
                ))),
                Err(what) => failures.push(place(Failure::new(Check::Unwind, what))),
            }
        }
        failures
    }

    /// Whether the entry `b` of stubs has the exception table of the last function's entry `a`, or one that says the
    /// same of the function, and that exceptions pass what is behind.
    fn is_exception_table(&self, a: &Fde, b: &Fde) -> bool {
        if a.lsda == b.lsda {
            return true;
        }
        let old = Lsda::parse(self.input, a.lsda, a.start).filter(|_| a.lsda != 0);
        let new = Lsda::parse(self.output, b.lsda, b.start).filter(|_| b.lsda != 0);
        let (Some(old), Some(new)) = (old, new) else {
            return false;
        };
        let (from, to) = old.extent();
        let loaded = writes::places(self.input);
        if loaded.iter().any(|p| *p < to && from < p.saturating_add(8)) {
            return false;
        }
        let (from, to) = new.extent();
        if !self.is_table(from) || !self.is_table(to.saturating_sub(1)) {
            return false;
        }
        let means = |table: &Lsda<'_>, at| {
            Some(match table.outcome(at) {
                Outcome::Pad { pad, action } => {
                    (Outcome::Pad { pad, action: 0 }, table.chain(action)?)
                }
                outcome => (outcome, Default::default()),
            })
        };
        let mut places: Vec<u64> = old.bounds().chain(new.bounds()).collect();
        places.extend([a.start, a.end]);
        places.retain(|at| (b.start..b.end).contains(at));
        places.iter().all(|at| {
            if *at < a.end {
                let was = means(&old, *at);
                was.is_some() && was == means(&new, *at)
            } else {
                new.outcome(*at) == Outcome::Continue
            }
        })
    }

    /// Unwinds from each instruction of the routines that note first calls.
    fn wrong_routines(&self, mut rows: RoutineRows<'_, '_>, checked: &mut Checked) -> Vec<Failure> {
        let code = |at: u64| self.output.bytes_from(at).filter(|_| self.is_new(at));
        let routine = Routine {
            code: &code,
            goes_on: &|_| false,
        };
        let notes = A::NOTES;
        let kept = notes.link.iter().chain(A::LINK);
        let lost = kept.fold(notes.destroys, |all, reg| all & !(1 << reg));
        let mut failures = Vec::new();
        let called = self.memory.slow.each_ref().map(std::cell::Cell::get);
        for to in called.into_iter().flatten() {
            match routine.unwinds::<A>(to, false, lost, &|_| None, &mut rows) {
                Ok(seen) => checked.routines += seen,
                Err(why) => {
                    let text = format!("the routine that notes first calls: {why}");
                    let failure = Failure::new(Check::Unwind, text);
                    failures.push(failure.at(InputAddr::new(0), OutputAddr::new(to)));
                }
            }
        }
        failures
    }

    /// The last entry of the output's search table, if it is another one.
    fn extended(&self) -> Result<Option<(Table<'_>, Fde)>, String> {
        let last = |elf: &Elf<'_>| {
            let table = elf.segment(elf::PT_GNU_EH_FRAME)?;
            let count = u64::from(u32_in(elf.bytes(table.addr, 12)?, 8)?);
            let place = table.addr.checked_add(count.checked_mul(8)?)?;
            let word = u32_in(elf.bytes(place.checked_add(8)?, 4)?, 0)?;
            Some(table.addr.wrapping_add_signed(i64::from(word as i32)))
        };
        let (old, new) = (last(self.input), last(self.output));
        if !self.unwind.searchable || self.unwind.fdes.is_empty() || old == new {
            return Ok(None);
        }
        let entry = new.and_then(|addr| Table::read_entry(self.output, addr));
        let none = || {
            format!("the last entry of the unwind search table leads to {new:#x?}, where no FDE is")
        };
        entry.map(Some).ok_or_else(none)
    }

    /// The output's table, if a program header tells of it where none did in the input. It may say something of new
    /// code alone. There need not be one: not always is there space for a header.
    fn added(&self) -> Result<Option<Table<'_>>, String> {
        let has = |elf: &Elf<'_>| elf.segment(elf::PT_GNU_EH_FRAME).is_some();
        if has(self.input) {
            return Ok(None);
        }
        if !has(self.output) {
            return Ok(None);
        }
        let table = Table::read(self.output)?;
        let is_new =
            |fde: &Fde| fde.start < fde.end && self.is_new(fde.start) && self.is_new(fde.end - 1);
        match table.fdes.iter().find(|fde| !is_new(fde)) {
            Some(fde) => Err(format!(
                "a new unwind entry is for {:#x}..{:#x}, which is not new code",
                fde.start, fde.end
            )),
            None => Ok(Some(table)),
        }
    }

    /// Code in a range that returns from signal handlers, and has no unwind entry.
    fn signal_returns(&self, start: u64, end: u64) -> Option<Failure> {
        let segments = self.input.segments.iter().filter(|s| s.is_exec());
        let found = segments.filter_map(|s| {
            let from = start.clamp(s.addr, s.file_end());
            let bytes = self
                .input
                .bytes(from, end.clamp(from, s.file_end()) - from)?;
            let at = bytes
                .windows(A::SIGNAL_RETURN.len())
                .position(|b| b == A::SIGNAL_RETURN)?;
            Some(from + at as u64)
        });
        let text = |at| {
            format!("code that returns from signal handlers at {at:#x} has an unwind entry now")
        };
        found.min().map(|at| Failure::new(Check::Unwind, text(at)))
    }
}

/// Leaves personality routines out: stubs have no exception tables.
fn blank(table: &mut Table<'_>) {
    let cies = table.cies.iter_mut();
    cies.for_each(|cie| cie.personality = Default::default());
}

/// How many instructions were compared or unwound from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checked {
    /// Of counters that have moved the stack pointer.
    pub(super) moved: u64,
    /// Of the routines that they call.
    pub(super) routines: u64,
}

/// Rows of the input's entries, and of the one that describes stubs.
#[derive(Default)]
struct Rows {
    /// Instructions of the last counter that have moved the stack pointer.
    moved: u64,
    runner: Runner,
    interner: Interner,
    /// Of the entry with this start.
    old: (Option<u64>, RowMap),
    stubs: RowMap,
}

impl Rows {
    /// Reads the entry that was made longer, and compares what it says of its own function.
    fn extended<A: Entries>(
        &mut self,
        (old, a): (&Table<'_>, &Fde),
        (new, b): (&Table<'_>, &Fde),
    ) -> Result<(), String> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        self.runner
            .rows::<A>(old, a, &mut self.interner, &mut before)?;
        self.runner
            .rows::<A>(new, b, &mut self.interner, &mut after)?;
        let own: Vec<Span> = after
            .iter()
            .filter(|s| s.start < a.end)
            .map(|s| Span {
                end: s.end.min(a.end),
                function_end: a.end,
                lsda: a.lsda,
                ..*s
            })
            .collect();
        if own != before {
            return Err(format!(
                "the unwind entry of {:#x} says something else of its own function",
                a.start
            ));
        }
        *self.stubs.clear() = after;
        self.stubs.sort();
        Ok(())
    }

    /// Reads a table for stubs alone.
    fn added<A: Entries>(&mut self, table: &Table<'_>) -> Result<(), String> {
        let spans = self.stubs.clear();
        for fde in &table.fdes {
            self.runner
                .rows::<A>(table, fde, &mut self.interner, spans)?;
        }
        self.stubs.sort();
        Ok(())
    }

    /// Whether what is in a stub has the row that it had. `begins`: it is a function's first instruction, right behind
    /// the counter, so nothing has moved since the call.
    fn is_same<A: Entries>(
        &mut self,
        old: &Table<'_>,
        framed: &Framed,
        (stands, begins): (&[Stand], bool),
        faults: bool,
    ) -> Result<bool, String> {
        self.moved = 0;
        let fde = old.find(framed.at);
        if self.old.0 != fde.map(|f| f.start) {
            self.old.0 = fde.map(|f| f.start);
            let spans = self.old.1.clear();
            if let Some(fde) = fde {
                self.runner.rows::<A>(old, fde, &mut self.interner, spans)?;
            }
        }
        let says = self.old.1.at(framed.at);
        let was = says.filter(|s| !s.is_outermost);
        let is = self.stubs.at(framed.stub);
        let (row, covers) = self.stubs.row(framed.stub, framed.len);
        // An exception may come through it.
        let needed = match framed.what {
            What::Call => true,
            What::Insn => faults,
            What::Quiet | What::Counter => false,
        };
        if framed.what == What::Counter
            && let Some(is) = is.filter(|is| !is.is_outermost)
        {
            let begin = match (was, says) {
                (Some(was), _) => Some(was.row),
                (None, Some(_)) => None,
                (None, None) => Some(is.row).filter(|row| self.interner.is_of_call::<A>(*row)),
            };
            return Ok(begin.is_some_and(|row| self.is_counter::<A>(row, stands)));
        }
        Ok(match (was, is) {
            // Where stubs are described at all, so are counters.
            (Some(_), None) if framed.what == What::Counter => self.stubs.is_empty(),
            (None, None) => covers,
            (None, Some(_)) if begins && !needed && says.is_none() => {
                let is_of_call = covers && self.interner.is_of_call::<A>(row);
                is_of_call || self.has_no_caller(framed.stub, framed.len)
            }
            (None, Some(_)) => self.has_no_caller(framed.stub, framed.len),
            (Some(_), None) => !needed,
            (Some(was), Some(is)) if was.row == row => covers && (is.lsda == 0 || !needed),
            (Some(_), Some(is)) => covers && is.is_outermost && !needed,
        })
    }

    /// Whether all rows of some code say that there is no caller.
    fn has_no_caller(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let mut at = start;
        while at < end {
            match self.stubs.at(at).filter(|span| span.is_outermost) {
                Some(span) => at = span.end,
                None => return false,
            }
        }
        true
    }

    /// Whether each instruction of a counter has the row `was`, for where the stack pointer and the return address are.
    fn is_counter<A: Entries>(&mut self, was: RowId, stands: &[Stand]) -> bool {
        let mut moved = 0;
        let fits = stands.iter().all(|stand| {
            let mut expected = self.interner.lowered::<A>(was, stand.down);
            if let (Some(id), Some(link)) = (expected, stand.call) {
                expected = self.interner.at_call::<A>(id, link);
            }
            let (row, covers) = self.stubs.row(stand.at, stand.len);
            moved += u64::from(stand.down != 0);
            covers && expected == Some(row)
        });
        self.moved = moved;
        fits && !stands.is_empty()
    }
}

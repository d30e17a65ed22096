//! Jump tables of new code's own, where no kept relocations were used.
//!
//! No table of the input changes then ([`crate::proof::bare`]). But a load of a table's entry may have another
//! displacement in new code, and read another table. The claim says where, and nothing of it is believed:
//!
//! | what | is shown |
//! |---|---|
//! | the load | is the old one but for its displacement, which differs by the distance of the two tables |
//! | both tables | are in memory that nobody writes, the new one in new memory, overlapping nothing that is claimed |
//! | each entry | leads where the old one does, or to the pair of it, which becomes a root of the lock step |
//! | the base | is the address that the claim says, in the register in which the load and the addition have it |
//! | the index | is below the number of entries: by comparisons, masks and types, or by a guard in front of the load |
//! | what is loaded, and the sum | are read by the addition and the jump, and by nothing else; where the program has overwritten the low 8 bits, those may be read, and the register may be copied |
//! | a register that is read all the same | is restored: the entry leads to code that gives it what it held, the target's address or the old distance, and jumps to the pair of where the old entry leads |
//! | a guard | lets pass what is below the number of entries, unsigned, of all bits, and leads the rest to the old load |
//!
//! On AArch64 the entries of the input may be too narrow for new code, and no load has a displacement. There all from
//! the load, or what forms an address for it, to the jump is another ([`crate::arch::TableJump`],
//! [`crate::arch::OwnTableJump`]), and compared as a whole:
//!
//! | what | is shown |
//! |---|---|
//! | both | take the same bits of the same register as an index, and jump to what is in the same register |
//! | the new one | goes through the table that is claimed, and overwrites no register that the old one does not |
//! | the old one | goes through the table and from the base that are claimed |
//! | each entry of the old table | leads where the new one's word leads: to the pair of it, never to old code |
//! | the index | is below the number of entries, in so many bits as are taken |
//! | what both overwrite | is read by nothing behind the jump |
//! | instructions behind the first of either | are entered by nobody in new code |
//!
//! Tables of labels are another thing there ([`super::labels`]).
//!
//! Base and index are known by data flow forwards over the function's new code ([`super::values`]), when the lock
//! step is complete. That is a closed world: nobody knows an address of new code but those that are published. Control
//! comes in at the entry, at labels and where other functions lead to, at landing pads, and by returns, which are
//! behind calls; at all but the last nothing is known. So where another function leads to is a root of this one's
//! lock step even if it is a pair already. The new tables' own edges are among those that are followed, so each may
//! rest on the others.
//!
//! Inserted code changes nothing that the program reads, as is shown elsewhere: it is passed over.
//!
//! Four things are assumed. A call at the end of the function does not return (A7). Calls leave the registers alone
//! that the procedure call standard says (A5), and some other functions do not return ([`super::no_return`], A16):
//! either is noted where the proof does not succeed without. Code that only such calls lead to is not looked at under
//! A16. What is loaded, the sum, and flags that the addition or a guard changed, are not read behind the jump after the
//! next call, return or other indirect jump, nor by who handles a breakpoint instruction (A6); up to there that is
//! shown.

use super::changes::Next;
use super::labels::Fallback;
use super::no_return;
use super::pages::Pending;
use super::values::{Fact, Values};
use super::{OldState, State, Step, Walk, fail};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::step::flag;
use crate::arch::{Arch, Flow, Insn, LabelLoad, Leaves, Left, Operand, TableJump, TableLoad};
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::{OwnTable, Range};
use crate::report::{Check, Failure, TableBound, TableReport};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;

/// More entries than this no table has.
const ENTRIES: u64 = 4096;
/// How often news at a place are taken in before it is given up.
const AGAIN: u32 = 32;

/// What the lock step has found of a function's own tables.
#[derive(Debug, Default)]
pub(super) struct OwnTables {
    /// Claimed loads that were reached, by new address, with the number of the table.
    pub loads: FxHashMap<OutputAddr, usize>,
    /// Those of them that are whole jumps, with what they are in the input.
    jumps: FxHashMap<OutputAddr, TableJump>,
    /// By number of the table: where its entries lead in new code.
    pub targets: FxHashMap<usize, Vec<OutputAddr>>,
    /// Loads of labels that are others, claimed ones and those by registers with another address.
    pub labels: FxHashMap<OutputAddr, LabelLoad>,
    /// Where addresses of tables of labels are formed, with the number of the table.
    pub bases: FxHashMap<OutputAddr, usize>,
    /// Tables of labels whose entries were related, and whether registers hold their addresses.
    pub published: Vec<(OwnTable, bool, usize)>,
    /// By number of the table: the registers that code in front of its targets gives what they held.
    restored: FxHashMap<usize, Vec<Restored>>,
    /// Where such code begins.
    added: FxHashSet<OutputAddr>,
    /// What entries of theirs lead to that are of no label.
    pub fallbacks: FxHashMap<usize, Fallback>,
    /// Guards, with their ends.
    guards: FxHashMap<OutputAddr, OutputAddr>,
    /// Inserted code, with its end.
    pub inserted: FxHashMap<OutputAddr, OutputAddr>,
    /// Where control comes from where nothing is known.
    pub entered: Vec<OutputAddr>,
    /// Calls and system calls that the lock step came to, and whether it went on behind them.
    returns: FxHashMap<OutputAddr, bool>,
    /// Calls that were looked at, and whether they are of functions that do not return.
    calls: RefCell<FxHashMap<OutputAddr, bool>>,
}

/// Code that gives registers what a jump through the old table left in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Restored {
    /// The register that gets the target's address.
    target: u8,
    /// The register that gets the distance from the base, if there is one.
    distance: Option<u8>,
}

/// What data flow takes for granted of calls.
#[derive(Clone, Copy, Default)]
struct Assumed {
    /// They leave the registers alone that the procedure call standard says (A5).
    kept: bool,
    /// Those of functions of which that is known do not return (A16).
    no_return: bool,
}

/// What data flow has shown.
#[derive(Default)]
pub(super) struct Shown {
    /// Jumps through tables, new address and number.
    jumps: Vec<(OutputAddr, usize)>,
    /// Tables whose loads were judged.
    pub judged: FxHashSet<usize>,
    /// Fallbacks of tables of labels, with the old jump and their lengths.
    pub fallbacks: Vec<(InputAddr, OutputAddr, u64)>,
    /// Something foreign is left where it is not looked any further (A6).
    left: bool,
    /// A register of linkers' stubs is foreign where old code goes on, which has nothing to do with it (A13).
    pub by_convention: bool,
}

impl OwnTables {
    /// The lock step is at a call or system call, and goes on behind it or not.
    pub(super) fn comes_back(&mut self, call: OutputAddr, goes_on: bool) {
        *self.returns.entry(call).or_insert(false) |= goes_on;
    }

    /// Whether a guard ends there.
    pub(super) fn is_behind_guard(&self, at: OutputAddr) -> bool {
        self.guards.values().any(|end| *end == at)
    }

    /// Whether a call or system call ends a path, at the end of its function (A7): what is behind it in new code is
    /// another block.
    fn ends_path(&self, call: OutputAddr) -> bool {
        self.returns.get(&call) == Some(&false)
    }
}

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// A load of a table's entry that reads another table.
    pub(super) fn own_table(
        &mut self,
        state: &OldState,
        q: OutputAddr,
        new: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        let State::At(p, old) = *state else {
            return Ok(None);
        };
        let Some(number) = self.f.tables.iter().position(|t| t.load == (p, q)) else {
            return self.based_load(p, q, pending);
        };
        let Some(table) = self.f.tables.get(number).copied() else {
            return Ok(None);
        };
        let old_bytes = self.old_bytes(p).unwrap_or(b"");
        if let Some(jump) = A::table_jump(old_bytes, p.get()) {
            return self.own_table_jump(number, &table, &jump, pending);
        }
        let of_words = !table.wide && A::table_load(old_bytes).is_some_and(|load| load.wide);
        if A::STEP > 1 || of_words {
            return self.label_table(number, &table, pending);
        }
        let (new_bytes, slot) = self.new_bytes(q).unwrap_or((b"", 0));
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        let (Some(a), Some(b)) = (A::table_load(old_bytes), A::table_load(new_bytes)) else {
            return wrong("what is claimed to load an entry of a jump table does not");
        };
        let moved = table.new.get().wrapping_sub(table.old.get());
        if (TableLoad { disp: b.disp, ..a }) != b || a.wide != table.wide {
            return wrong("the load of an entry of a jump table changed");
        }
        if b.disp.wrapping_sub(a.disp) != moved {
            return wrong("a load has another displacement than the jump table that is claimed");
        }
        if !self.mark(q, slot, usize::from(new.len), p)? {
            self.meet(p, q, pending)?;
            return Ok(Some(None));
        }
        self.arrive(q, pending);
        self.check_rows(&[p], q, u64::from(new.len))?;
        if self.lsdas {
            self.check_other_site(p, q)?;
        }
        self.own.loads.insert(q, number);
        self.publish(number, &table, None)?;
        let (old_next, new_next) = (p + u64::from(old.len), q + u64::from(new.len));
        Ok(Some(a.to.map(|_| (old_next, new_next))))
    }

    /// A whole jump through a table that goes through another one.
    fn own_table_jump(
        &mut self,
        number: usize,
        table: &OwnTable,
        old: &TableJump,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        let (p, q) = table.load;
        let (new_bytes, slot) = self.new_bytes(q).unwrap_or((b"", 0));
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        let Some(new) = A::own_table_jump(new_bytes, q.get()) else {
            return wrong("what is claimed to jump through a table of new code's own does not");
        };
        if (new.index, new.dest) != (old.index, old.dest) {
            return wrong("a jump through a table has another index, or is to another register");
        }
        if new.writes & !old.writes != 0 {
            return wrong("a jump through a table overwrites a register that it did not");
        }
        if new.table != table.new.get() {
            return wrong("a jump goes through another table than the one that is claimed");
        }
        let formed = old.table.is_none_or(|formed| formed == table.old.get());
        if !formed || old.base.unwrap_or(table.old.get()) != table.base {
            return wrong(
                "a jump went through another table, or from another base, than is claimed",
            );
        }
        if table.wide || table.guarded {
            return wrong("a jump table of words is claimed to be another");
        }
        if !pending.is_empty() {
            return wrong("a register holds another page at a jump through a table");
        }
        if !self.mark(q, slot, A::STEP, p)? {
            self.meet(p, q, pending)?;
            return Ok(Some(None));
        }
        self.mark_inside(p, q, slot, new.len)?;
        self.arrive(q, pending);
        for at in (0..new.len).step_by(A::STEP) {
            self.check_rows(&[p], q + at, A::STEP as u64)?;
        }
        for at in (0..old.len).step_by(A::STEP) {
            self.check_rows(&[p + at], q, A::STEP as u64)?;
        }
        if self.lsdas {
            for at in (0..new.len).step_by(A::STEP) {
                self.check_other_site(p, q + at)?;
            }
            for at in (0..old.len).step_by(A::STEP) {
                self.check_other_site(p + at, q)?;
            }
        }
        self.own.loads.insert(q, number);
        self.own.jumps.insert(q, *old);
        self.publish(number, table, Some(old))?;
        Ok(Some(None))
    }

    /// Relates the entries of a table; `jump` is what went through it, where that is another as a whole.
    fn publish(&mut self, number: usize, table: &OwnTable, jump: Option<&TableJump>) -> Step {
        let (p, q) = table.load;
        let cx = self.cx;
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        if table.entries == 0 || table.entries > ENTRIES {
            return wrong("a jump table has no entries, or more than 4096");
        }
        let to = self.own_entries(table)?;
        let new = table.range();
        let old_width = jump.map_or(table.width(), |jump| jump.width.into());
        let old = Range {
            start: table.old.get(),
            end: table
                .old
                .get()
                .saturating_add(table.entries.saturating_mul(old_width)),
        };
        let Some(from) = cx.input.bytes(old.start, old.len()) else {
            return wrong("a jump table is not in the file");
        };
        if cx.may_be_written(old.start, old.end) {
            return wrong("a jump table can be written to");
        }
        let mut targets = Vec::new();
        for i in 0..table.entries as usize {
            let target = |bytes: &[u8], base: u64| {
                if table.wide {
                    u64_in(bytes, 8 * i)
                } else {
                    let entry = u32_in(bytes, 4 * i)? as i32;
                    Some(base.wrapping_add_signed(entry.into()))
                }
            };
            let (from, to) = match jump {
                None => (target(from, table.base), target(to, table.base)),
                Some(jump) => {
                    let width = usize::from(jump.width);
                    let entry = from.get(i * width..).and_then(|rest| rest.get(..width));
                    let number = |entry: &[u8]| {
                        let bytes = entry.iter().rev();
                        bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
                    };
                    let from = entry.map(|entry| jump.target(table.base, number(entry)));
                    (from, target(to, new.start))
                }
            };
            let (Some(from), Some(to)) = (from, to) else {
                return wrong("a jump table is shorter than it is claimed to be");
            };
            let (from, to) = (InputAddr::new(from), OutputAddr::new(to));
            if from.kept() == to && jump.is_some() {
                return wrong(
                    "an entry of a jump table leads to old code, where registers are others",
                );
            }
            if from.kept() == to {
                if cx.interiors.owner(from).is_some() {
                    return wrong("an entry of a jump table leads to code that was overwritten");
                }
                self.enter_old(from);
            } else if let Some((restored, end, block)) = self.restored(table, from, to) {
                self.lets_jumps_in(from, to)?;
                self.mark_restored(from, to, end)?;
                self.relate(from, block)?;
                self.own.restored.entry(number).or_default().push(restored);
                targets.push(to);
            } else if self.f.in_old(from) && self.f.in_new(to) {
                self.lets_jumps_in(from, to)?;
                self.relate(from, to)?;
                targets.push(to);
            } else {
                let text = format!("entry {i} of a jump table leads elsewhere");
                let failure = Failure::new(Check::JumpTable, text).at(p, q);
                return fail(failure.values(from, to));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        self.own.targets.insert(number, targets);
        Ok(())
    }

    /// The code at `to` as what gives registers what a jump to `from` through the old table left in them, and jumps:
    /// with its end, and where it jumps to.
    fn restored(
        &self,
        table: &OwnTable,
        from: InputAddr,
        to: OutputAddr,
    ) -> Option<(Restored, OutputAddr, OutputAddr)> {
        if A::STEP > 1 || !self.f.in_old(from) || !self.f.in_new(to) {
            return None;
        }
        let step = |at: OutputAddr| {
            let insn = self.insn_at(at).filter(|insn| insn.flow == Flow::Next)?;
            let left = A::leaves(self.new_bytes(at)?.0, at.get()).left?;
            Some((left, at + u64::from(insn.len)))
        };
        let (mut left, mut at) = step(to)?;
        let mut distance = None;
        if let (register, Left::Number(number)) = left {
            let is_entry = !table.wide && table.base.wrapping_add(number) == from.get();
            distance = Some(register).filter(|_| is_entry);
            distance?;
            (left, at) = step(at)?;
        }
        let (target, Left::Address(address)) = left else {
            return None;
        };
        let jump = self.insn_at(at)?;
        let Flow::Jump(block) = jump.flow else {
            return None;
        };
        let end = at + u64::from(jump.len);
        let restored = Restored { target, distance };
        (address == from.get()).then_some((restored, end, OutputAddr::new(block)))
    }

    /// Marks such code, which ends at `end`, and compares what unwinding says of it: it stands for the target. As
    /// it touches no memory, no exception comes from it, whatever call sites cover it.
    fn mark_restored(&mut self, from: InputAddr, to: OutputAddr, end: OutputAddr) -> Step {
        // Several entries may lead to it.
        if !self.own.added.insert(to) {
            return Ok(());
        }
        let slot = self.new_bytes(to).map_or(0, |b| b.1);
        let (mut at, mut count) = (to, 0);
        while at < end {
            let Some(insn) = self.insn_at(at) else {
                break;
            };
            self.check_rows(&[from], at, insn.len.into())?;
            at += u64::from(insn.len);
            count += 1;
        }
        self.take_added(from, to, (slot, end.get() - to.get()), count)
    }

    /// The entries of a table of new code's own.
    pub(super) fn own_entries(&self, table: &OwnTable) -> Result<&'a [u8], Box<Failure>> {
        let cx = self.cx;
        let (p, q) = table.load;
        let new = table.range();
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        let fixed = cx.output.load_at(new.start).is_some_and(|s| {
            !s.is_writable() && new.end <= s.file_end() && cx.input.load_at(new.start).is_none()
        });
        if !fixed {
            return wrong("a jump table of new code's own is not in new memory that is only read");
        }
        match cx.output.bytes(new.start, new.len()) {
            Some(entries) => Ok(entries),
            None => wrong("a jump table is not in the file"),
        }
    }

    /// Where pages are guarded, what a jump may lead to begins as it did.
    pub(super) fn lets_jumps_in(&self, from: InputAddr, to: OutputAddr) -> Step {
        let pad = |bytes: Option<&[u8]>, at: u64| {
            bytes
                .and_then(|bytes| A::decode(bytes, at))
                .is_some_and(|insn| insn.landing_pad)
        };
        let lost = self.cx.guarded
            && pad(self.old_bytes(from), from.get())
            && !pad(self.new_bytes(to).map(|b| b.0), to.get());
        if lost {
            let text = "the landing pad of a jump through a table is missing";
            return fail(Failure::new(Check::JumpTable, text).at(from, to));
        }
        Ok(())
    }

    /// Whether a claimed load of the old side's at `p` is at `at`, or its guard.
    pub(super) fn is_own_load(&self, p: InputAddr, at: OutputAddr) -> bool {
        let mut tables = self.f.tables.iter().filter(|t| t.load.0 == p);
        tables.any(|t| {
            let guard = || {
                if A::STEP > 1 {
                    return self.guard_of_base(p, at);
                }
                let (bytes, _) = self.new_bytes(at)?;
                Some(at + u64::from(A::index_guard(bytes, at.get())?.len))
            };
            t.load.1 == at || t.guarded && guard() == Some(t.load.1)
        }) || self.reads_base(p, at).is_some()
    }

    /// The end of a guard at `at`, if there is one and it is in front of a claimed load of the old side's.
    pub(super) fn guard_of_load(&mut self, state: &OldState, at: OutputAddr) -> Option<OutputAddr> {
        let State::At(p, _) = *state else {
            return None;
        };
        let guarded = |t: &&OwnTable| t.guarded && t.load.0 == p;
        // Most functions have none.
        self.f.tables.iter().find(guarded)?;
        if A::STEP > 1 {
            let end = self.guard_of_base(p, at)?;
            self.enter_old(p);
            self.own.guards.insert(at, end);
            return Some(end);
        }
        let (bytes, _) = self.new_bytes(at)?;
        let guard = A::index_guard(bytes, at.get())?;
        let end = at + u64::from(guard.len);
        let mut tables = self.f.tables.iter().filter(guarded);
        let table = tables.find(|t| t.load.1 == end)?;
        let index = A::table_load(self.old_bytes(p)?)?.index;
        let leads = InputAddr::new(guard.old) == p && self.cx.patches.owner(p).is_none();
        let right = guard.register == index && guard.last.checked_add(1) == Some(table.entries);
        if !leads || !right {
            return None;
        }
        self.enter_old(p);
        self.own.guards.insert(at, end);
        Some(end)
    }

    /// Judges the tables that were reached, when all pairs are known.
    pub(super) fn judge_own_tables(&mut self) -> Step {
        let own = &self.own;
        if own.loads.is_empty() && own.labels.is_empty() && own.bases.is_empty() {
            return Ok(());
        }
        self.enter_what_is_not_followed();
        // What holds without an assumption does not rest on it.
        let (shown, assumed) = match self.data_flow(Assumed::default()) {
            Ok(shown) => (shown, Assumed::default()),
            Err(_) => self.assuming()?,
        };
        self.out.kept_by_calls = assumed.kept;
        self.out.without_return = assumed.no_return;
        self.out.behind_tables = shown.left;
        self.out.by_convention |= shown.by_convention;
        let mut fallbacks = shown.fallbacks;
        fallbacks.sort_unstable();
        fallbacks.dedup();
        for (p, q, len) in fallbacks {
            self.mark_fallback(p, q, len)?;
        }
        for (q, number) in shown.jumps {
            let (Some(p), Some(table)) = (self.old_of(q), self.f.tables.get(number)) else {
                continue;
            };
            // Of a whole jump the first instruction has a pair.
            let behind = self.own.jumps.get(&q).map_or(0, |j| j.len - A::STEP as u64);
            let p = p + behind;
            self.out.falls_back.retain(|at| *at != p);
            self.out.tables.push(TableReport {
                jump: p.get(),
                table: table.old.get(),
                entries: table.entries,
                bound: if table.guarded {
                    TableBound::Guarded
                } else {
                    TableBound::Proved
                },
            });
        }
        self.out.tables.sort_unstable_by_key(|t| (t.jump, t.table));
        Ok(())
    }

    /// Data flow that rests on as little as it can.
    fn assuming(&self) -> Result<(Shown, Assumed), Box<Failure>> {
        let (kept, no_return) = (true, true);
        for assumed in [
            Assumed {
                kept,
                no_return: false,
            },
            Assumed {
                kept: false,
                no_return,
            },
        ] {
            if let Ok(shown) = self.data_flow(assumed) {
                return Ok((shown, assumed));
            }
        }
        let assumed = Assumed { kept, no_return };
        Ok((self.data_flow(assumed)?, assumed))
    }

    /// Whether an instruction of new code calls a function that does not return.
    fn calls_no_return(&self, at: OutputAddr) -> bool {
        *self.own.calls.borrow_mut().entry(at).or_insert_with(|| {
            let old = self.old_of(at).or_else(|| self.slot_call_of(at));
            let old = old.and_then(|p| Some((p, self.old_bytes(p)?)));
            old.is_some_and(|(p, bytes)| no_return::is_called::<A>(self.cx, p, bytes))
        })
    }

    /// The old call that an instruction of new code is the last of, where several go through a stub's slot.
    fn slot_call_of(&self, at: OutputAddr) -> Option<InputAddr> {
        const MOST: usize = 4;
        if A::STEP == 1 {
            return None;
        }
        (1..MOST).find_map(|before| {
            let q = OutputAddr::new(at.get().checked_sub((before * A::STEP) as u64)?);
            let (bytes, _) = self.new_bytes(q)?;
            let through = A::through_slot(bytes, q.get())?;
            let is_last = through.call && q + u64::from(through.len) == at + A::STEP as u64;
            self.old_of(q).filter(|_| is_last)
        })
    }

    /// The old address that an instruction of new code stands for.
    pub(super) fn old_of(&self, q: OutputAddr) -> Option<InputAddr> {
        let (_, slot) = self.new_bytes(q)?;
        let id = self.s.marks.number(slot)?;
        Some(InputAddr::new(self.base + u64::from(id) - 1))
    }

    /// Where straight code begins that can be reached from some places.
    fn leaders(&self, from: &[OutputAddr], seen: &mut FxHashSet<OutputAddr>) -> Vec<OutputAddr> {
        let mut leaders = from.to_vec();
        let mut work = from.to_vec();
        while let Some(mut at) = work.pop() {
            while self.f.in_new(at) && seen.insert(at) {
                if let Some(end) = self.passed_over(at) {
                    at = end;
                    continue;
                }
                let Some(insn) = self.insn_at(at) else { break };
                let next = at + u64::from(insn.len);
                let to = match insn.flow {
                    Flow::Jump(target) => vec![OutputAddr::new(target)],
                    Flow::Branch { target, .. } => vec![OutputAddr::new(target), next],
                    Flow::IndirectJump { .. } => {
                        let all = self.own.targets.values().flatten();
                        all.copied().collect()
                    }
                    _ => Vec::new(),
                };
                let goes_on = !matches!(
                    insn.flow,
                    Flow::Jump(_) | Flow::Stop | Flow::IndirectJump { .. }
                );
                leaders.extend(&to);
                work.extend(&to);
                if !goes_on {
                    break;
                }
                at = next;
            }
        }
        leaders
    }

    /// The end of inserted code, or of a guard.
    pub(super) fn passed_over(&self, at: OutputAddr) -> Option<OutputAddr> {
        let guard = self.own.guards.get(&at);
        guard.or_else(|| self.own.inserted.get(&at)).copied()
    }

    pub(super) fn insn_at(&self, at: OutputAddr) -> Option<Insn> {
        A::decode(self.new_bytes(at)?.0, at.get())
    }

    /// Instructions of new code that stand for old ones and that what is followed here does not come to: nothing is
    /// known there.
    fn enter_what_is_not_followed(&mut self) {
        let mut seen = FxHashSet::default();
        let entered = self.own.entered.clone();
        self.leaders(&entered, &mut seen);
        for k in 0..self.new.len() {
            let Some((range, _, first)) = self.new.get(k).copied() else {
                continue;
            };
            for i in 0..range.len() {
                let at = range.start + i;
                let begins = self.s.marks.number(first + i as usize);
                if begins.is_some() && !seen.contains(&at) {
                    self.own.entered.push(at);
                    self.leaders(&[at], &mut seen);
                }
            }
        }
    }

    /// Data flow, and what is shown by it.
    fn data_flow(&self, assumed: Assumed) -> Result<Shown, Box<Failure>> {
        let mut seen = FxHashSet::default();
        let leaders: FxHashSet<OutputAddr> = self
            .leaders(&self.own.entered, &mut seen)
            .into_iter()
            .collect();
        let mut states: FxHashMap<OutputAddr, (Values, u32)> = FxHashMap::default();
        let mut work = self.own.entered.clone();
        for at in &self.own.entered {
            states.insert(*at, (Values::ENTERED, 0));
        }
        while let Some(from) = work.pop() {
            let Some((values, _)) = states.get(&from) else {
                continue;
            };
            let mut goes = Vec::new();
            self.straight(from, values.clone(), (&leaders, assumed), &mut goes, None)?;
            for (to, values) in goes {
                let Some((known, times)) = states.get_mut(&to) else {
                    states.insert(to, (values, 0));
                    work.push(to);
                    continue;
                };
                if known.join(&values, *times > AGAIN) {
                    *times += 1;
                    work.push(to);
                }
            }
        }
        let mut shown = Shown::default();
        let mut all: Vec<(OutputAddr, Values)> = states
            .into_iter()
            .map(|(at, (values, _))| (at, values))
            .collect();
        all.sort_unstable_by_key(|s| s.0);
        for (at, values) in all {
            self.straight(
                at,
                values,
                (&leaders, assumed),
                &mut Vec::new(),
                Some(&mut shown),
            )?;
        }
        let mut claimed = self.own.loads.iter().chain(&self.own.bases);
        match claimed.find(|l| !shown.judged.contains(l.1)) {
            None => Ok(shown),
            Some((at, _)) => {
                let text = "nothing that is followed leads to a load from a jump table";
                fail(Failure::new(Check::JumpTable, text).at(self.f.old_entry, *at))
            }
        }
    }

    /// Straight code from a leader on: what is known where it leads. With `shown` everything is judged.
    fn straight(
        &self,
        from: OutputAddr,
        mut values: Values,
        (leaders, assumed): (&FxHashSet<OutputAddr>, Assumed),
        goes: &mut Vec<(OutputAddr, Values)>,
        mut shown: Option<&mut Shown>,
    ) -> Step {
        let mut at = from;
        loop {
            if at != from && leaders.contains(&at) {
                goes.push((at, values));
                return Ok(());
            }
            if !self.f.in_new(at) {
                self.bases_stay(at, &values, u32::MAX, shown.is_some())?;
                return self.leave(&values, shown);
            }
            if let Some(end) = self.passed_over(at) {
                if self.own.guards.contains_key(&at) {
                    self.guarded(at, &mut values, shown.as_deref_mut())?;
                }
                at = end;
                continue;
            }
            let (Some((bytes, _)), Some(insn)) = (self.new_bytes(at), self.insn_at(at)) else {
                let text = "an instruction of a function with jump tables is not understood";
                return fail(Failure::new(Check::JumpTable, text).at(self.f.old_entry, at));
            };
            if let Some(jump) = self.own.jumps.get(&at) {
                let Some(number) = self.own.loads.get(&at) else {
                    return Ok(());
                };
                if let Some(shown) = shown {
                    self.judge_jump(at, (*number, jump), &values, shown)?;
                }
                values.lose_foreign(jump.writes);
                let targets = self.own.targets.get(number).into_iter().flatten();
                goes.extend(targets.map(|to| (*to, values.clone())));
                return Ok(());
            }
            if let Some(next) = self.label_step(at, bytes, &mut values, shown.as_deref_mut())? {
                at = next;
                continue;
            }
            if let Some(shown) = shown.as_deref_mut() {
                self.judge(at, &insn, bytes, &values, shown)?;
                self.bases_stay(at, &values, self.seen_by(&insn), true)?;
            }
            let next = at + u64::from(insn.len);
            match insn.flow {
                Flow::Next | Flow::Nothing => self.plain(at, bytes, &mut values),
                Flow::Jump(target) => {
                    let target = OutputAddr::new(target);
                    if self.f.in_new(target) {
                        goes.push((target, values));
                    } else {
                        self.leave(&values, shown)?;
                    }
                    return Ok(());
                }
                Flow::Branch { cond, target, .. } => {
                    values.lose(A::leaves(bytes, at.get()).writes);
                    let target = OutputAddr::new(target);
                    if self.f.in_new(target) {
                        goes.push((target, values.branched(|n| A::most_if(cond, true, n))));
                    } else {
                        self.leave(&values, shown.as_deref_mut())?;
                    }
                    let on = values.branched(|n| A::most_if(cond, false, n));
                    goes.push((next, on));
                    return Ok(());
                }
                Flow::Call(_) | Flow::IndirectCall => {
                    self.leave(&values, shown.as_deref_mut())?;
                    let ends = self.own.ends_path(at);
                    if ends || assumed.no_return && self.calls_no_return(at) {
                        return Ok(());
                    }
                    values.lose(if assumed.kept {
                        !A::KEPT_BY_CALLS
                    } else {
                        u32::MAX
                    });
                    values.lose_flags();
                    values.foreign &= A::KEPT_BY_CALLS;
                    values.bases &= values.foreign;
                    values.foreign_flags = 0;
                }
                Flow::Trap if self.own.ends_path(at) => return self.leave(&values, shown),
                Flow::Trap => {
                    self.leave(&values, shown.as_deref_mut())?;
                    values.lose(u32::MAX);
                    values.lose_flags();
                }
                Flow::Stop => return self.leave(&values, shown),
                Flow::IndirectJump { .. } => {
                    match self.through(at, &insn, bytes, &values) {
                        Some(number) => {
                            self.fall_back(at, number, &values, shown)?;
                            self.plain(at, bytes, &mut values);
                            let targets = self.own.targets.get(&number).into_iter().flatten();
                            goes.extend(targets.map(|to| (*to, values.clone())));
                        }
                        None => {
                            self.bases_stay(at, &values, u32::MAX, shown.is_some())?;
                            self.leave(&values, shown)?;
                        }
                    }
                    return Ok(());
                }
            }
            at = next;
        }
    }

    /// Registers that may be looked at where an instruction leads out of new code.
    fn seen_by(&self, insn: &Insn) -> u32 {
        let out = |target: u64| !self.f.in_new(OutputAddr::new(target));
        match insn.flow {
            Flow::Call(_) | Flow::IndirectCall | Flow::Trap => !A::KEPT_BY_CALLS,
            Flow::Stop => u32::MAX,
            Flow::Jump(target) | Flow::Branch { target, .. } if out(target) => u32::MAX,
            _ => 0,
        }
    }

    /// Control leaves, or it is not looked any further what a call does.
    pub(super) fn leave(&self, values: &Values, shown: Option<&mut Shown>) -> Step {
        if let Some(shown) = shown {
            shown.left |= values.foreign != 0 || values.foreign_flags != 0;
        }
        Ok(())
    }

    /// After a guard.
    fn guarded(&self, at: OutputAddr, values: &mut Values, shown: Option<&mut Shown>) -> Step {
        if A::STEP > 1 {
            return self.guarded_base(at, values, shown);
        }
        let bytes = self.new_bytes(at).map_or(&b""[..], |b| b.0);
        values.lose_flags();
        values.foreign_flags = flag::ALL;
        if let Some(guard) = A::index_guard(bytes, at.get()) {
            values.bound(guard.register, 64, guard.last);
        }
        Ok(())
    }

    /// After an instruction that does not branch.
    fn plain(&self, at: OutputAddr, bytes: &[u8], values: &mut Values) {
        let effects = A::effects(bytes);
        let sum = self.summed(bytes, values);
        let leaves = A::leaves(bytes, at.get());
        let copied = copied(&leaves, effects.reads, values);
        values.after(&leaves);
        values.foreign &= !effects.kills;
        values.bases &= values.foreign;
        values.low = (values.low | leaves.low) & values.foreign;
        values.foreign |= copied;
        values.low |= copied;
        values.foreign_flags &= !effects.flag_kills;
        if let Some(number) = self.own.loads.get(&at)
            && let Some(to) = A::table_load(bytes).and_then(|load| load.to)
        {
            values.put_foreign(to, Fact::Entry(*number));
        }
        if let Some((to, number)) = sum {
            values.put_foreign(to, Fact::Target(number));
            values.foreign_flags = flag::ALL;
        }
    }

    /// The table whose base is added to an entry of it, and the register that the sum is in.
    fn summed(&self, bytes: &[u8], values: &Values) -> Option<(u8, usize)> {
        let (to, from) = A::sum(bytes)?;
        let (number, base) = match (values.fact(to), values.fact(from)) {
            (Some(Fact::Entry(number)), base) | (base, Some(Fact::Entry(number))) => (number, base),
            _ => return None,
        };
        let table = self.f.tables.get(number).filter(|t| !t.wide)?;
        (self.address(base?) == Some(table.base)).then_some((to, number))
    }

    /// A link-time address: a number is one where the program is at a fixed address.
    pub(super) fn address(&self, fact: Fact) -> Option<u64> {
        match fact {
            Fact::Address(a) => Some(a),
            Fact::Number(a) if self.cx.fixed() => Some(a),
            _ => None,
        }
    }

    /// The table that an indirect jump goes through.
    fn through(&self, at: OutputAddr, insn: &Insn, bytes: &[u8], values: &Values) -> Option<usize> {
        if let Some(number) = self.own.loads.get(&at) {
            return Some(*number);
        }
        let own = bytes.get(..usize::from(insn.len))?;
        let (Operand::Register(register), _) = A::operand(own, at.get())? else {
            return None;
        };
        match values.fact(register)? {
            Fact::Target(number) => Some(number),
            Fact::Entry(number) => {
                let table = self.f.tables.get(number).filter(|t| t.wide);
                table.map(|_| number)
            }
            _ => None,
        }
    }

    /// Whether the jump at `at` goes to what is in the register that gets the target's address, and the distance was
    /// loaded into the other one.
    fn is_restored_right(
        &self,
        restored: Restored,
        (at, number): (OutputAddr, usize),
        bytes: &[u8],
        values: &Values,
    ) -> bool {
        let own = self.insn_at(at);
        let own = own.and_then(|insn| bytes.get(..usize::from(insn.len)));
        let operand = own.and_then(|own| A::operand(own, at.get()));
        let jumps = operand.is_some_and(|o| o.0 == Operand::Register(restored.target));
        let loaded = |to: u8| to != restored.target && values.fact(to) == Some(Fact::Entry(number));
        jumps && restored.distance.is_none_or(loaded)
    }

    /// Judges a whole jump through a table by what is known before it.
    fn judge_jump(
        &self,
        at: OutputAddr,
        (number, jump): (usize, &TableJump),
        values: &Values,
        shown: &mut Shown,
    ) -> Step {
        let p = self.old_of(at).unwrap_or(self.f.old_entry);
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, at));
        shown.judged.insert(number);
        let Some(table) = self.f.tables.get(number) else {
            return wrong("a claimed jump through a table is none");
        };
        let own = |register: u8| values.foreign >> register & 1 == 0;
        let in_register = || {
            let held = values.fact(jump.register).and_then(|f| self.address(f));
            own(jump.register) && held == Some(table.old.get())
        };
        if jump.table.is_none() && !in_register() {
            return wrong("the address of a jump table is not known where it is loaded from");
        }
        let most = values.most_of(jump.index.0, jump.bits);
        if !own(jump.index.0) || most >= table.entries {
            return wrong("the index of a jump table of new code's own is not shown to be in it");
        }
        shown.jumps.push((at, number));
        Ok(())
    }

    /// Judges an instruction by what is known before it.
    fn judge(
        &self,
        at: OutputAddr,
        insn: &Insn,
        bytes: &[u8],
        values: &Values,
        shown: &mut Shown,
    ) -> Step {
        let p = self.old_of(at).unwrap_or(self.f.old_entry);
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, at));
        if let Some(number) = self.own.loads.get(&at) {
            shown.judged.insert(*number);
            let (Some(table), Some(load)) = (self.f.tables.get(*number), A::table_load(bytes))
            else {
                return wrong("a claimed load is none");
            };
            let base = match load.base {
                Some(register) => values.fact(register).and_then(|f| self.address(f)),
                None => self.cx.fixed().then_some(0),
            };
            if base.map(|b| b.wrapping_add(load.disp)) != Some(table.new.get()) {
                return wrong(
                    "the address of a jump table of new code's own is not known to be that",
                );
            }
            if values.most(load.index) >= table.entries {
                return wrong(
                    "the index of a jump table of new code's own is not shown to be in it",
                );
            }
        }
        let jump = matches!(insn.flow, Flow::IndirectJump { .. });
        if let Some(number) = self.through(at, insn, bytes, values).filter(|_| jump) {
            let restored = self.own.restored.get(&number).into_iter().flatten();
            for restored in restored {
                if !self.is_restored_right(*restored, (at, number), bytes, values) {
                    return wrong(
                        "code in front of a jump table's target gives a register another value",
                    );
                }
            }
            shown.jumps.push((at, number));
            return Ok(());
        }
        let effects = A::effects(bytes);
        let system_call = A::is_system_call(bytes);
        let reads = match insn.flow {
            // Arguments and results are not looked at, the operand is.
            Flow::Call(_) | Flow::Stop | Flow::Jump(_) => 0,
            // As if the handler, or the debugger, were called.
            Flow::Trap if !system_call => 0,
            Flow::IndirectCall | Flow::IndirectJump { .. } => {
                let own = bytes.get(..usize::from(insn.len)).unwrap_or(bytes);
                match A::operand(own, at.get()) {
                    Some((Operand::Register(register), _)) => 1 << register,
                    Some((Operand::Memory(mem), _)) => {
                        let index = mem.index.map(|i| i.0);
                        let used = mem.base.into_iter().chain(index);
                        used.fold(0, |set, register| set | 1 << register)
                    }
                    None => u32::MAX,
                }
            }
            _ => effects.reads,
        };
        let calls = match insn.flow {
            Flow::Call(_) | Flow::IndirectCall | Flow::Stop | Flow::IndirectJump { .. } => true,
            Flow::Trap => !system_call,
            _ => false,
        };
        // The low bits of some may be the program's own.
        let leaves = A::leaves(bytes, at.get());
        let low = values.low & !leaves.wide;
        let is_read = reads & values.foreign & !low != 0 && copied(&leaves, reads, values) == 0;
        if is_read && self.summed(bytes, values).is_none() {
            return wrong("what was loaded from a jump table of new code's own is read");
        }
        if !calls && effects.flag_reads & values.foreign_flags != 0 {
            return wrong("flags that a jump through a table of new code's own changed are read");
        }
        Ok(())
    }
}

/// The register that an instruction copies another to which holds, but for its low 8 bits, what was loaded, or 0:
/// compilers copy registers of 32 bits where values of 8 are meant. What is above them in the copy is not to be read
/// either.
fn copied(leaves: &Leaves, reads: u32, values: &Values) -> u32 {
    match leaves.left {
        Some((
            to,
            Left::Low {
                from,
                bits: 32 | 64,
            },
        )) => {
            let from = 1 << from;
            let is_low = values.foreign & values.low & from != 0;
            u32::from(is_low && reads == from) << to
        }
        _ => 0,
    }
}

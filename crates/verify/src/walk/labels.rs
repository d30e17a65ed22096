//! Tables of labels of new code's own, where no kept relocations were used: on AArch64, and on x86-64 where the program
//! is not at a fixed address. There `mov D, [T + I*8]` is `movsxd D, [T + I*4 + distance]` and `lea D, [T + D]` in new
//! code, with the distance from the old table to the other, and T goes on to hold the old one's address. Of what is
//! below, that is a load of the first kind, without another register or a guard.
//!
//! On AArch64 a label is loaded by one instruction, `ldr D, [T, I, lsl #3]`, and something later jumps to it. In new
//! code the load reads another table ([`crate::arch::LabelLoad`]), or the register T holds the address of another
//! table. What is claimed is a load of the first kind, or an addition that formed T and is an `adrp` now:
//!
//! | what | is shown |
//! |---|---|
//! | the load | takes the same bits of the same register as an index, and leaves a label in the same register; no other is written but one of linkers' stubs |
//! | that other register | is read by nothing before it is overwritten; where control goes on in old code, no instruction of the function has to do with it |
//! | the old table | T holds its address; a label in it is in memory that nobody writes once the loader is done |
//! | a guard | is in front of the load, lets pass that address in T, and leads to the old load with any other; it writes that other register alone |
//! | each entry | leads to the pair of where the old one does, which becomes a root of the lock step, or to its fallback |
//! | its fallback | loads this entry of the old table, in memory that nobody writes once the loader is done, into the register with the label, and jumps to it; it may form the old table's address in a register that holds another's in its place, and in no other |
//! | the index | is below the number of entries, in so many bits as are taken |
//! | the label | is read by the jump, and by nothing else; where two loads lead to one jump, they read the same table |
//! | an instruction that forms another table's address | left the old table's address in the same register |
//! | that register | is read by loads of labels that go through this table, and by nothing else; control does not leave the function's new code while it holds the other address, but by the fallback, which forms the old one's; nor does a call find it where it may look |
//!
//! So what is in memory where no label is does not matter: it is loaded as ever, but later than the load. A function
//! that handles exceptions changes no register with a table's address: at landing pads nothing is known.

use super::changes::Next;
use super::marks::Mark;
use super::own_tables::Shown;
use super::pages::Pending;
use super::values::{Fact, Values};
use super::{Step, Walk, fail};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{Arch, FieldKind, Flow, LabelLoad, Left, Operand, TableLoad};
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::OwnTable;
use crate::report::{Check, Failure};

/// More entries than this no table has.
const ENTRIES: u64 = 4096;
/// Between a load and its jump are not more instructions.
const BETWEEN: usize = 64;

/// What entries of a table lead to where the index is of no label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fallback {
    /// The register with the label.
    to: u8,
    /// The register in which the old table's address is formed.
    base: Option<u8>,
    /// All of them, with their lengths.
    code: Vec<(OutputAddr, u64)>,
}

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// A claimed load of a label, or what forms the address of a table of them.
    pub(super) fn label_table(
        &mut self,
        number: usize,
        table: &OwnTable,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        let (p, q) = table.load;
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        if table.base != 0 || table.wide != self.cx.fixed() {
            return wrong("a table of labels is claimed to be another");
        }
        if table.guarded && !self.own.is_behind_guard(q) {
            return wrong("the guard of a table's address is missing in front of a load");
        }
        if !pending.is_empty() {
            return wrong("a register holds another page where a table of labels is used");
        }
        let old_bytes = self.old_bytes(p).unwrap_or(b"");
        let (new_bytes, slot) = self.new_bytes(q).unwrap_or((b"", 0));
        let Some(old_len) = A::decode(old_bytes, p.get()).map(|insn| u64::from(insn.len)) else {
            return wrong("what is claimed to load a label does not");
        };
        let len = if let Some(old) = A::table_load(old_bytes) {
            let reads = |new: &LabelLoad| new.table.is_some() || new.distance.is_some();
            let Some(new) = A::label_load(new_bytes, q.get()).filter(reads) else {
                return wrong("what is claimed to load a label does not");
            };
            if !is_same(&old, &new) || new.wide != table.wide || old.disp != 0 {
                return wrong("the load of a label changed");
            }
            if new.distance.is_some() && table.guarded {
                return wrong("a guard is claimed where a label is loaded by a displacement");
            }
            let counted = new.distance.map(|d| table.old.get().wrapping_add(d));
            if new.table.or(counted) != Some(table.new.get()) {
                return wrong("a label is loaded from another table than the one that is claimed");
            }
            if new.scratch.is_some_and(|r| A::STUB_SCRATCH >> r & 1 == 0) {
                return wrong("a label is loaded by a register that is not one of linkers' stubs");
            }
            if !self.mark_whole(p, q, slot, new.len, pending)? {
                return Ok(Some(None));
            }
            self.own.loads.insert(q, number);
            self.own.labels.insert(q, new);
            new.len
        } else {
            let sum = A::leaves(old_bytes, p.get()).left;
            let page = A::leaves(new_bytes, q.get()).left;
            let (Some((old, Left::Plus { .. } | Left::Address(_))), Some((new, Left::Address(to)))) =
                (sum, page)
            else {
                return wrong("what is claimed to form the address of a table of labels does not");
            };
            let is_page =
                |insn: crate::arch::Insn| insn.field.is_some_and(|f| f.kind == FieldKind::Page);
            if old != new || !A::decode(new_bytes, q.get()).is_some_and(is_page) {
                return wrong("the address of a table of labels is formed in another register");
            }
            if table.guarded {
                return wrong("a guard is claimed where a table's address is formed");
            }
            if to != table.new.get() {
                return wrong("another table's address is formed than the one that is claimed");
            }
            if !self.mark_whole(p, q, slot, A::STEP as u64, pending)? {
                return Ok(Some(None));
            }
            self.own.bases.insert(q, number);
            A::STEP as u64
        };
        self.publish_labels(number, table)?;
        Ok(Some(Some((p + old_len, q + len))))
    }

    /// A load of a label of words by a register that holds the address of a table of new code's own; where entries are
    /// addresses, such a load is what it was.
    pub(super) fn based_load(
        &mut self,
        p: InputAddr,
        q: OutputAddr,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        let Some(new) = self.reads_base(p, q) else {
            return Ok(None);
        };
        if !pending.is_empty() {
            let text = "a register holds another page where a table of labels is used";
            return fail(Failure::new(Check::JumpTable, text).at(p, q));
        }
        let slot = self.new_bytes(q).map_or(0, |b| b.1);
        if !self.mark_whole(p, q, slot, new.len, pending)? {
            return Ok(Some(None));
        }
        self.own.labels.insert(q, new);
        Ok(Some(Some((p + A::STEP as u64, q + new.len))))
    }

    /// The load at `q`, if it may be such a one in the place of that at `p`.
    pub(super) fn reads_base(&self, p: InputAddr, q: OutputAddr) -> Option<LabelLoad> {
        if A::STEP == 1 || self.f.tables.is_empty() {
            return None;
        }
        let old = A::table_load(self.old_bytes(p)?)?;
        let new = A::label_load(self.new_bytes(q)?.0, q.get())?;
        (new.table.is_none() && !new.wide && is_same(&old, &new)).then_some(new)
    }

    /// Marks the instructions at `q` as standing for the one at `p`. False if they did already.
    fn mark_whole(
        &mut self,
        p: InputAddr,
        q: OutputAddr,
        slot: usize,
        len: u64,
        pending: &mut Pending,
    ) -> Result<bool, Box<Failure>> {
        if !self.mark(q, slot, A::STEP, p)? {
            self.meet(p, q, pending)?;
            return Ok(false);
        }
        self.mark_inside(p, q, slot, len)?;
        self.arrive(q, pending);
        for at in (0..len).step_by(A::STEP) {
            self.check_rows(&[p], q + at, A::STEP as u64)?;
            if self.lsdas {
                self.check_other_site(p, q + at)?;
            }
        }
        Ok(true)
    }

    /// Relates the entries of a table of labels.
    fn publish_labels(&mut self, number: usize, table: &OwnTable) -> Step {
        let (p, q) = table.load;
        // Words count from the new table where a register has its address.
        let scratch = self.own.labels.get(&q).and_then(|new| new.scratch);
        let own = self.own.bases.contains_key(&q) || scratch.is_some();
        let same = |other: &(OwnTable, bool, usize)| {
            other.1 == own && (other.0.key(), other.0.new) == (table.key(), table.new)
        };
        if let Some((_, _, other)) = self.own.published.iter().find(|o| same(o)) {
            let targets = self.own.targets.get(other).cloned().unwrap_or_default();
            self.own.targets.insert(number, targets);
            if let Some(fallback) = self.own.fallbacks.get(other).cloned() {
                self.own.fallbacks.insert(number, fallback);
            }
            return Ok(());
        }
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        if table.entries == 0 || table.entries > ENTRIES {
            return wrong("a jump table has no entries, or more than 4096");
        }
        let to = self.own_entries(table)?;
        let base = match (table.wide, own) {
            (true, _) => 0,
            (false, true) => table.new.get(),
            (false, false) => table.old.get(),
        };
        let mut targets = Vec::new();
        for i in 0..table.entries {
            let from = self.cx.word(table.old.get().wrapping_add(8 * i));
            let to = if table.wide {
                u64_in(to, 8 * i as usize)
            } else {
                u32_in(to, 4 * i as usize).map(|w| base.wrapping_add_signed((w as i32).into()))
            };
            let to = OutputAddr::new(to.unwrap_or(0));
            if let Some(found) = self.fallback(table, i, to) {
                // It loads the entry later than the old load.
                if !self.cx.lasts(table.old.get().wrapping_add(8 * i)) {
                    return wrong(
                        "the fallback of a table of labels loads what may be written in between",
                    );
                }
                if let Some(from) = from.map(InputAddr::new).filter(|_| A::STEP == 1) {
                    if self.cx.interiors.owner(from).is_some() {
                        return wrong("a label leads to code that was overwritten");
                    }
                    self.enter_old(from);
                }
                let all = self.own.fallbacks.entry(number).or_insert(Fallback {
                    code: Vec::new(),
                    ..found
                });
                if (all.to, all.base) != (found.to, found.base) {
                    return wrong("entries of a table of labels have different fallbacks");
                }
                all.code.extend(found.code);
                continue;
            }
            match from.map(InputAddr::new) {
                Some(from) if self.f.in_old(from) && self.f.in_new(to) => {
                    self.lets_jumps_in(from, to)?;
                    self.relate(from, to)?;
                    targets.push(to);
                }
                from => {
                    let text = format!("entry {i} of a table of labels leads elsewhere");
                    let failure = Failure::new(Check::JumpTable, text).at(p, q);
                    return fail(failure.values(from.map_or(0, InputAddr::get), to.get()));
                }
            }
        }
        targets.sort_unstable();
        targets.dedup();
        self.own.targets.insert(number, targets);
        self.own.published.push((*table, own, number));
        Ok(())
    }

    /// The code at `at` as what loads entry `i` of the old table and jumps to it.
    fn fallback(&self, table: &OwnTable, i: u64, at: OutputAddr) -> Option<Fallback> {
        let (bytes, _) = self.new_bytes(at)?;
        let found = A::label_fallback(bytes, at.get())?;
        let entry = table.old.get().wrapping_add(8 * i);
        let formed = found.base.is_none_or(|base| base.1 == table.old.get());
        (found.entry == entry && formed).then(|| Fallback {
            to: found.to,
            base: found.base.map(|base| base.0),
            code: vec![(at, found.len)],
        })
    }

    /// Shows that what a load of a label loads is what the jump behind it goes to.
    fn judge_fallback(
        &self,
        (at, next): (OutputAddr, OutputAddr),
        fallback: &Fallback,
        load: &TableLoad,
    ) -> Step {
        let wrong = |what: &str| {
            let p = self.old_of(at).unwrap_or(self.f.old_entry);
            fail(Failure::new(Check::JumpTable, what).at(p, at))
        };
        if load.to != Some(fallback.to) {
            return wrong("the fallback of a table of labels loads into another register");
        }
        let mut here = next;
        for _ in 0..BETWEEN {
            if let Some(end) = self.passed_over(here) {
                here = end;
                continue;
            }
            let (Some((bytes, _)), Some(insn)) = (self.new_bytes(here), self.insn_at(here)) else {
                break;
            };
            let own = bytes.get(..usize::from(insn.len)).unwrap_or(bytes);
            let written = A::leaves(bytes, here.get()).writes >> fallback.to & 1 != 0;
            match insn.flow {
                Flow::Next | Flow::Nothing if !written => here += u64::from(insn.len),
                Flow::Jump(target) if self.f.in_new(OutputAddr::new(target)) => {
                    here = OutputAddr::new(target);
                }
                Flow::IndirectJump { .. }
                    if A::operand(own, here.get())
                        .is_some_and(|o| o.0 == Operand::Register(fallback.to)) =>
                {
                    return Ok(());
                }
                _ => break,
            }
        }
        wrong("a label is not jumped to right behind its load, and has a fallback")
    }

    /// Marks a fallback, and compares what unwinding says of it: it stands for the jump at `p`.
    pub(super) fn mark_fallback(&mut self, p: InputAddr, q: OutputAddr, len: u64) -> Step {
        let slot = self.new_bytes(q).map_or(0, |b| b.1);
        if self.s.marks.at(slot) == Some(Mark::Free) {
            // A landing pad, a load and a jump; they stand for no old instruction.
            let count = if A::STEP == 1 {
                3
            } else {
                len / A::STEP as u64
            };
            self.take_added(p, q, (slot, len), count)?;
        }
        for at in (0..len).step_by(A::STEP) {
            self.check_rows(&[p], q + at, A::STEP as u64)?;
            if self.lsdas {
                self.check_other_site(p, q + at)?;
            }
        }
        Ok(())
    }

    /// Data flow over an instruction that has to do with tables of labels: what comes after it. `None`: it is another.
    pub(super) fn label_step(
        &self,
        at: OutputAddr,
        bytes: &[u8],
        values: &mut Values,
        shown: Option<&mut Shown>,
    ) -> Result<Option<OutputAddr>, Box<Failure>> {
        if let Some(&number) = self.own.bases.get(&at) {
            return self.base_step(at, number, bytes, values, shown).map(Some);
        }
        let plain = || A::table_load(bytes).filter(|_| A::STEP > 1);
        let (load, wide, len, scratch) = match self.own.labels.get(&at) {
            Some(new) => {
                let Some(old) = self.old_load(at) else {
                    return Ok(None);
                };
                (old, new.wide, new.len, new.scratch)
            }
            None => match plain() {
                Some(load) if load.base.is_some_and(|b| values.bases >> b & 1 != 0) => {
                    (load, true, A::STEP as u64, None)
                }
                _ => return Ok(None),
            },
        };
        let (Some(to), Some(base)) = (load.to, load.base) else {
            return Ok(None);
        };
        let claimed = self.own.loads.get(&at).copied();
        let number = claimed.or_else(|| self.based_on(values, base, wide));
        if let Some(shown) = shown {
            self.judge_label(at, number, &load, values, shown)?;
            if let Some(fallback) = number.and_then(|n| self.own.fallbacks.get(&n)) {
                self.judge_fallback((at, at + len), fallback, &load)?;
            }
        }
        if let Some(register) = scratch {
            values.lose_foreign(1 << register);
        }
        // Several loads that have one table lead to one jump.
        match number.map(|number| self.first_of(number)) {
            Some(number) if wide => values.put_foreign(to, Fact::Entry(number)),
            Some(number) => values.put_foreign(to, Fact::Target(number)),
            None => values.lose_foreign(1 << to),
        }
        Ok(Some(at + len))
    }

    /// The first table of labels that is the same, and whose entries lead to the same.
    fn first_of(&self, number: usize) -> usize {
        // A guarded load has a jump of its own, of which that is told.
        let Some(table) = self.f.tables.get(number).filter(|t| !t.guarded) else {
            return number;
        };
        let fallback = |n: usize| self.own.fallbacks.get(&n);
        let targets = |n: usize| self.own.targets.get(&n);
        let same = |other: &&(OwnTable, bool, usize)| {
            (other.0.key(), other.0.new) == (table.key(), table.new)
                && (targets(other.2), fallback(other.2)) == (targets(number), fallback(number))
        };
        let found = self.own.published.iter().find(same);
        found.map_or(number, |other| other.2)
    }

    /// The load of a label that an instruction of new code stands for.
    fn old_load(&self, at: OutputAddr) -> Option<TableLoad> {
        A::table_load(self.old_bytes(self.old_of(at)?)?)
    }

    /// The table of new code's own whose address a register holds.
    fn based_on(&self, values: &Values, register: u8, wide: bool) -> Option<usize> {
        let held = self.address(values.fact(register)?)?;
        if values.bases >> register & 1 == 0 {
            return None;
        }
        let mut numbers: Vec<usize> = self.own.bases.values().copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().find(|n| {
            let table = self.f.tables.get(*n);
            table.is_some_and(|t| t.wide == wide && t.new.get() == held)
        })
    }

    /// Judges a load of a label by what is known before it.
    fn judge_label(
        &self,
        at: OutputAddr,
        number: Option<usize>,
        load: &TableLoad,
        values: &Values,
        shown: &mut Shown,
    ) -> Step {
        let p = self.old_of(at).unwrap_or(self.f.old_entry);
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, at));
        let Some((number, table)) = number.and_then(|n| Some((n, self.f.tables.get(n)?))) else {
            return wrong("it is not known which table of labels is read");
        };
        let own = |register: u8| values.foreign >> register & 1 == 0;
        if self.own.loads.contains_key(&at) {
            shown.judged.insert(number);
            // Or it holds another table's address, where it would hold this one.
            let held = load.base.and_then(|base| self.held_by(values, base));
            if held != Some(table.old.get()) {
                return wrong("the address of a table of labels is not known where it is used");
            }
        }
        let most = values.most_of(load.index, load.bits);
        if !own(load.index) || most >= table.entries {
            return wrong(
                "the index of a table of labels of new code's own is not shown to be in it",
            );
        }
        Ok(())
    }

    /// What formed the address of a table, and forms another's.
    fn base_step(
        &self,
        at: OutputAddr,
        number: usize,
        bytes: &[u8],
        values: &mut Values,
        shown: Option<&mut Shown>,
    ) -> Result<OutputAddr, Box<Failure>> {
        let old = self.old_of(at).and_then(|p| Some((p, self.old_bytes(p)?)));
        let left = old.and_then(|(p, bytes)| A::leaves(bytes, p.get()).left);
        let table = self.f.tables.get(number);
        if let Some(shown) = shown {
            shown.judged.insert(number);
            let formed = match left {
                Some((_, Left::Address(address))) => Some(address),
                Some((_, Left::Plus { from, number })) if values.foreign >> from & 1 == 0 => {
                    let held = values.fact(from).and_then(|f| self.address(f));
                    held.map(|a| a.wrapping_add(number))
                }
                _ => None,
            };
            if formed.is_none() || formed != table.map(|t| t.old.get()) || self.lsdas {
                let p = self.old_of(at).unwrap_or(self.f.old_entry);
                let text = "a table's address is formed where that of the old one was not";
                return fail(Failure::new(Check::JumpTable, text).at(p, at));
            }
        }
        values.lose(A::leaves(bytes, at.get()).writes);
        if let (Some((to, _)), Some(table)) = (left, table) {
            values.put_base(to, table.new.get());
        }
        Ok(at + A::STEP as u64)
    }

    /// What a register holds in the old program, if that is an address.
    fn held_by(&self, values: &Values, register: u8) -> Option<u64> {
        let held = self.address(values.fact(register)?)?;
        if values.foreign >> register & 1 == 0 {
            return Some(held);
        }
        if values.bases >> register & 1 == 0 {
            return None;
        }
        let mut all = self.own.bases.values().filter_map(|n| {
            let table = self.f.tables.get(*n)?;
            (table.new.get() == held).then(|| table.old.get())
        });
        let old = all.next()?;
        all.all(|other| other == old).then_some(old)
    }

    /// A jump through a table of labels may lead to its fallback, with all registers as they would be but those that
    /// hold something else for another reason.
    pub(super) fn fall_back(
        &self,
        at: OutputAddr,
        number: usize,
        values: &Values,
        shown: Option<&mut Shown>,
    ) -> Step {
        let Some(fallback) = self.own.fallbacks.get(&number) else {
            return Ok(());
        };
        let own = 1u32 << fallback.to | fallback.base.map_or(0, |base| 1 << base);
        let mut shown = shown;
        // It stands for each jump that leads there.
        if let (Some(shown), Some(jump)) = (shown.as_deref_mut(), self.old_of(at)) {
            let all = fallback.code.iter().map(|(at, len)| (jump, *at, *len));
            shown.fallbacks.extend(all);
        }
        let table = self.f.tables.get(number).map(|t| t.old.get());
        if shown.is_some()
            && let Some(base) = fallback.base
            && (values.bases >> base & 1 == 0 || self.held_by(values, base) != table)
        {
            let p = self.old_of(at).unwrap_or(self.f.old_entry);
            let text = "the fallback of a table of labels forms an address in a register that would not hold it";
            return fail(Failure::new(Check::JumpTable, text).at(p, at));
        }
        self.bases_stay(at, values, !own, shown.is_some())?;
        let mut values = values.clone();
        values.foreign &= !own;
        self.leave_scratch(at, &mut values, shown)
    }

    /// Control goes on in old code, where registers of linkers' stubs may be others if nothing has to do with them.
    pub(super) fn leave_scratch(
        &self,
        at: OutputAddr,
        values: &mut Values,
        mut shown: Option<&mut Shown>,
    ) -> Step {
        // Where a table is read by a displacement, no such register is written in its place.
        let scratch = if A::STEP > 1 {
            values.foreign & A::STUB_SCRATCH
        } else {
            0
        };
        if let Some(shown) = shown.as_deref_mut()
            && scratch != 0
        {
            let conventions = A::STUBS_AT_CALLS
                && (self.f.old.iter()).all(|r| self.cx.old_unwind.find(r.start.get()).is_some());
            if !conventions || scratch & !self.untouched_by_old() != 0 {
                let p = self.old_of(at).unwrap_or(self.f.old_entry);
                let text =
                    "old code may read a register that holds something else where it goes on";
                return fail(Failure::new(Check::JumpTable, text).at(p, at));
            }
            shown.by_convention = true;
        }
        values.foreign &= !scratch;
        self.leave(values, shown)
    }

    /// The guard of the base of a claimed load of the old side's, if there is one at `at`: where it ends.
    pub(super) fn guard_of_base(&self, p: InputAddr, at: OutputAddr) -> Option<OutputAddr> {
        let (bytes, _) = self.new_bytes(at)?;
        let guard = A::base_guard(bytes, at.get())?;
        let end = at + u64::from(guard.len);
        let mut tables = self.f.tables.iter().filter(|t| t.guarded && t.load.0 == p);
        let table = tables.find(|t| t.load.1 == end)?;
        let load = A::table_load(self.old_bytes(p)?)?;
        let overwritten = self.cx.patches.owner(p).is_some() || self.cx.arrivals.owner(p).is_some();
        let leads = InputAddr::new(guard.old) == p && !overwritten;
        let compares = Some(guard.register) == load.base && guard.address == table.old.get();
        let scratch = A::STUB_SCRATCH >> guard.scratch & 1 != 0 && guard.scratch != load.index;
        (leads && compares && scratch).then_some(end)
    }

    /// After the guard of a base, which leads to old code with all other values.
    pub(super) fn guarded_base(
        &self,
        at: OutputAddr,
        values: &mut Values,
        shown: Option<&mut Shown>,
    ) -> Step {
        let Some(guard) = self
            .new_bytes(at)
            .and_then(|(bytes, _)| A::base_guard(bytes, at.get()))
        else {
            return Ok(());
        };
        values.lose_foreign(1 << guard.scratch);
        self.bases_stay(at, values, u32::MAX, shown.is_some())?;
        self.leave_scratch(at, &mut values.clone(), shown)?;
        if values.foreign >> guard.register & 1 == 0 {
            values.put_address(guard.register, guard.address);
        }
        Ok(())
    }

    /// Control leaves new code, or a call may look at these registers: none of them holds another table's address.
    pub(super) fn bases_stay(
        &self,
        at: OutputAddr,
        values: &Values,
        seen: u32,
        judge: bool,
    ) -> Step {
        if !judge || values.bases & seen == 0 {
            return Ok(());
        }
        let p = self.old_of(at).unwrap_or(self.f.old_entry);
        let text = "the address of a table of labels of new code's own is seen outside of it";
        fail(Failure::new(Check::JumpTable, text).at(p, at))
    }
}

/// Whether a load of a label takes the same index, and leaves it in the same register.
fn is_same(old: &TableLoad, new: &LabelLoad) -> bool {
    let base = new.base.is_none_or(|base| Some(base) == old.base);
    let index = new.index == (old.index, old.marks);
    old.wide && Some(new.to) == old.to && index && base
}

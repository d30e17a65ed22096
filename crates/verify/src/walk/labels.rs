//! Tables of labels of new code's own on AArch64, where no kept relocations were used.
//!
//! A label is loaded by one instruction, `ldr D, [T, I, lsl #3]`, and something later jumps to it. In new code the load
//! reads another table ([`crate::arch::LabelLoad`]), or the register T holds the address of another table. What is
//! claimed is a load of the first kind, or an addition that formed T and is an `adrp` now:
//!
//! | what | is shown |
//! |---|---|
//! | the load | takes the same bits of the same register as an index, and leaves a label in the same register; no other is written |
//! | the old table | T holds its address; a label in it is in memory that nobody writes once the loader is done |
//! | each entry | leads to the pair of where the old one does, which becomes a root of the lock step, or to the fallback |
//! | the fallback | loads from the old table as the load did, and jumps as the jump does; there T and the index hold what they did |
//! | the index | is below the number of entries, in so many bits as are taken |
//! | the label | is read by the jump, and by nothing else |
//! | an addition that forms another table's address | left the old table's address in the same register |
//! | that register | is read by loads of labels that go through this table, and by nothing else; control does not leave the function's new code while it holds the other address, but by the fallback, which forms the old one's; nor does a call find it where it may look |
//!
//! So what is in memory where no label is does not matter: it is loaded as ever. A function that handles exceptions
//! changes no register with a table's address: at landing pads nothing is known.

use super::changes::Next;
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

/// What an entry leads to where the index is of no label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fallback {
    at: OutputAddr,
    /// Bytes of it.
    len: u64,
    load: TableLoad,
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
        if table.guarded || table.base != 0 || table.wide != self.cx.fixed() {
            return wrong("a table of labels is claimed to be another");
        }
        if !pending.is_empty() {
            return wrong("a register holds another page where a table of labels is used");
        }
        let old_bytes = self.old_bytes(p).unwrap_or(b"");
        let (new_bytes, slot) = self.new_bytes(q).unwrap_or((b"", 0));
        let len = if let Some(old) = A::table_load(old_bytes) {
            let Some(new) = A::label_load(new_bytes, q.get()).filter(|new| new.table.is_some())
            else {
                return wrong("what is claimed to load a label does not");
            };
            if !is_same(&old, &new) || new.wide != table.wide {
                return wrong("the load of a label changed");
            }
            if new.table != Some(table.new.get()) {
                return wrong("a label is loaded from another table than the one that is claimed");
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
            let (Some((old, Left::Plus { .. })), Some((new, Left::Address(to)))) = (sum, page)
            else {
                return wrong("what is claimed to form the address of a table of labels does not");
            };
            let is_page =
                |insn: crate::arch::Insn| insn.field.is_some_and(|f| f.kind == FieldKind::Page);
            if old != new || !A::decode(new_bytes, q.get()).is_some_and(is_page) {
                return wrong("the address of a table of labels is formed in another register");
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
        Ok(Some(Some((p + A::STEP as u64, q + len))))
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
        let based = self.own.bases.contains_key(&q);
        let same = |other: &(OwnTable, bool, usize)| {
            other.1 == based && (other.0.key(), other.0.new) == (table.key(), table.new)
        };
        if let Some((_, _, other)) = self.own.published.iter().find(|o| same(o)) {
            let targets = self.own.targets.get(other).cloned().unwrap_or_default();
            self.own.targets.insert(number, targets);
            if let Some(out) = self.own.fallbacks.get(other).copied() {
                self.own.fallbacks.insert(number, out);
            }
            return Ok(());
        }
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        if table.entries == 0 || table.entries > ENTRIES {
            return wrong("a jump table has no entries, or more than 4096");
        }
        let to = self.own_entries(table)?;
        let base = match (table.wide, based) {
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
            if let Some(out) = self.fallback(table, based, to) {
                if *self.own.fallbacks.entry(number).or_insert(out) != out {
                    return wrong("entries of a table of labels have different fallbacks");
                }
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
        self.own.published.push((*table, based, number));
        Ok(())
    }

    /// The code at `at` as what loads from the old table and jumps.
    fn fallback(&self, table: &OwnTable, based: bool, at: OutputAddr) -> Option<Fallback> {
        let (bytes, _) = self.new_bytes(at)?;
        let skip = if based { 2 * A::STEP } else { 0 };
        let load = A::table_load(bytes.get(skip..)?)?;
        let (to, base) = (load.to?, load.base?);
        if based && A::forms_address(bytes, at.get()) != Some((base, table.old.get())) {
            return None;
        }
        let jump = bytes.get(skip + A::STEP..)?.get(..A::STEP)?;
        let len = (skip + 2 * A::STEP) as u64;
        let insn = A::decode(jump, at.get() + len - A::STEP as u64)?;
        let jumps = matches!(insn.flow, Flow::IndirectJump { .. })
            && A::operand(jump, at.get()).is_some_and(|o| o.0 == Operand::Register(to));
        let kept = load.wide && to != base && to != load.index;
        (jumps && kept).then_some(Fallback { at, len, load })
    }

    /// Shows that at the jump behind a load of a label the fallback finds what the load did: notes where that is.
    fn judge_fallback(
        &self,
        (at, next): (OutputAddr, OutputAddr),
        out: &Fallback,
        load: &TableLoad,
        shown: &mut Shown,
    ) -> Step {
        let wrong = |what: &str| {
            let p = self.old_of(at).unwrap_or(self.f.old_entry);
            fail(Failure::new(Check::JumpTable, what).at(p, at))
        };
        let (Some(to), Some(base)) = (load.to, load.base) else {
            return Ok(());
        };
        if out.load != *load {
            return wrong("the fallback of a table of labels loads something else");
        }
        let used = 1u32 << to | 1 << base | 1 << load.index;
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
            match insn.flow {
                Flow::Next | Flow::Nothing if A::leaves(bytes, here.get()).writes & used == 0 => {
                    here += u64::from(insn.len);
                }
                Flow::IndirectJump { .. }
                    if A::operand(own, here.get())
                        .is_some_and(|o| o.0 == Operand::Register(to)) =>
                {
                    let Some(jump) = self.old_of(here) else { break };
                    shown.fallbacks.push((jump, out.at, out.len));
                    return Ok(());
                }
                _ => break,
            }
        }
        wrong("the fallback of a table of labels finds other registers than its load did")
    }

    /// Marks a fallback, and compares what unwinding says of it: it stands for the jump at `p`.
    pub(super) fn mark_fallback(&mut self, p: InputAddr, q: OutputAddr, len: u64) -> Step {
        let slot = self.new_bytes(q).map_or(0, |b| b.1);
        if self.s.map.get(slot) == Some(&0) {
            self.mark(q, slot, A::STEP, p)?;
            self.mark_inside(p, q, slot, len)?;
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
        let (load, wide, len) = match self.own.labels.get(&at) {
            Some(new) => {
                let Some(old) = self.old_load(at) else {
                    return Ok(None);
                };
                (old, new.wide, new.len)
            }
            None => match plain() {
                Some(load) if load.base.is_some_and(|b| values.bases >> b & 1 != 0) => {
                    (load, true, A::STEP as u64)
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
            if let Some(out) = number.and_then(|n| self.own.fallbacks.get(&n)) {
                self.judge_fallback((at, at + len), out, &load, shown)?;
            }
        }
        match number {
            Some(number) if wide => values.put_foreign(to, Fact::Entry(number)),
            Some(number) => values.put_foreign(to, Fact::Target(number)),
            None => values.lose_foreign(1 << to),
        }
        Ok(Some(at + len))
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
            let base = load.base.filter(|base| own(*base));
            let held = base.and_then(|base| self.address(values.fact(base)?));
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

    /// A jump through a table of labels may lead to its fallback, with all registers as they would be but those that
    /// hold something else for another reason.
    pub(super) fn fall_back(
        &self,
        at: OutputAddr,
        out: &Fallback,
        values: &Values,
        shown: Option<&mut Shown>,
    ) -> Step {
        let formed = [out.load.to, out.load.base].into_iter().flatten();
        let own = formed.fold(0, |set, register| set | 1u32 << register);
        self.bases_stay(at, values, !own, shown.is_some())?;
        let mut values = values.clone();
        values.foreign &= !own;
        self.leave(&values, shown)
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

//! Addresses that take several instructions, in the lock step.
//!
//! `adrp` forms the address of a page, and instructions after it add the rest, sometimes far after: compilers
//! form a page before a loop or a call and use it inside. If both programs form the same page there is
//! nothing to follow. If not, the register is *pending*: until something overwrites it, only instructions
//! that make an address of it may read it, and old and new address must be related as those of any other
//! instruction.
//!
//! What is pending is followed along branches, past calls and to landing pads of exceptions. Each instruction
//! of new code is looked at once, with what was pending on the first way to it ([`Walk::arrive`]); on every
//! other way ([`Walk::meet`]) the same must be pending, but for registers that are dead there
//! ([`Walk::dead`]). Where control comes through pointers and tables, nothing may be pending that is not dead.
//!
//! One instruction can also become two, or two one, because of reach ([`crate::arch::Longer`]): both are then one step.

use super::{Step, Walk, fail};
use crate::addr::{InputAddr, OutputAddr, Pair};
use crate::arch::{Arch, Field, FieldKind, Flow, Insn};
use crate::files::lsda::Outcome;
use crate::report::{Check, Failure};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A register that holds a page, and which one in either program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) reg: u8,
    pub(super) old: u64,
    new: u64,
}

/// Registers that hold different pages.
pub(super) type Pending = SmallVec<[Page; 2]>;

/// How many instructions [`Walk::dead`] looks at.
const BUDGET: usize = 20_000;

/// Those that a call keeps.
pub(super) fn kept_by_calls<A: Arch>(pending: &Pending) -> Pending {
    pending
        .iter()
        .filter(|p| A::KEPT_BY_CALLS >> p.reg & 1 != 0)
        .copied()
        .collect()
}

fn mask(pending: &Pending) -> u32 {
    pending.iter().fold(0, |set, p| set | 1 << p.reg)
}

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// Steps that are more than a comparison of two instructions. `None`: it is not one of them.
    pub(super) fn of_several(
        &mut self,
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        new: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<Pair>, Box<Failure>> {
        if let Some(&index) = self.parts.get(&p)
            && let Some(next) = self.part_of_dispatch(index, p, old, q, new)?
        {
            return Ok(Some(next));
        }
        if !pending.is_empty()
            && let Some(next) = self.use_page(p, old, q, pending)?
        {
            return Ok(Some(next));
        }
        self.longer(p, q)
    }

    /// Two instructions that form pages.
    pub(super) fn relate_page(
        &mut self,
        p: InputAddr,
        a: &Field,
        q: OutputAddr,
        b: &Field,
        pending: &mut Pending,
    ) -> Step {
        let code = self.old_bytes(p).unwrap_or(b"");
        let Some(reg) = A::page_register(code) else {
            return fail(
                Failure::new(Check::Code, "the instruction forms a page in no register").at(p, q),
            );
        };
        pending.retain(|page| page.reg != reg);
        if a.target != b.target {
            pending.push(Page {
                reg,
                old: a.target,
                new: b.target,
            });
            return Ok(());
        }
        // The same page: the addresses made of it are the same, and known to the program.
        for (at, addr, kind) in A::page_uses(code, a.target) {
            let field = Field {
                kind,
                target: addr,
                ..*a
            };
            let bytes = code.get(at..at + A::STEP).unwrap_or(b"");
            self.relate_field(p + at as u64, bytes, &field, q + at as u64, &field)?;
        }
        Ok(())
    }

    /// An instruction while registers are pending.
    fn use_page(
        &mut self,
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        pending: &mut Pending,
    ) -> Result<Option<Pair>, Box<Failure>> {
        let step = A::STEP as u64;
        let a = self
            .old_bytes(p)
            .and_then(|b| b.get(..A::STEP))
            .unwrap_or(b"");
        let b = self
            .new_bytes(q)
            .and_then(|b| b.0.get(..A::STEP))
            .unwrap_or(b"");
        let wrong = |what: &str| fail(Failure::new(Check::Code, what).at(p, q).bytes(a, b));
        let used = A::page_use(a)
            .and_then(|u| Some((u, *pending.iter().find(|page| page.reg == u.base)?)));
        if let Some((x, page)) = used {
            if A::page_use(b).is_none_or(|y| (y.base, y.dest) != (x.base, x.dest))
                || !A::equal_but_offset(a, b)
            {
                return wrong("an instruction that uses a page changed");
            }
            let Some(touched) = A::touched(a) else {
                return wrong("it is not known what the instruction does to registers");
            };
            let own = 1 << x.base;
            let stored = x.dest.is_none()
                && a.first().is_some_and(|low| low & 31 == x.base)
                && touched.kills & own == 0;
            if touched.reads & mask(pending) & !own != 0 || stored {
                return wrong("the instruction uses a register that holds another page");
            }
            let kind = if x.dest.is_some() {
                FieldKind::Forms
            } else {
                FieldKind::Accesses
            };
            let field = |page: u64, offset| Field {
                at: 0,
                len: A::STEP as u8,
                kind,
                target: page.wrapping_add(offset),
                literal: 0,
            };
            let offset = A::page_use(b).map_or(0, |y| y.offset);
            self.relate_field(
                p,
                a,
                &field(page.old, x.offset),
                q,
                &field(page.new, offset),
            )?;
            pending.retain(|page| touched.kills >> page.reg & 1 == 0);
            return Ok(Some((p + step, q + step)));
        }
        match old.flow {
            // What a call takes as arguments was read by what put it there.
            Flow::Call(_) | Flow::IndirectCall => return Ok(None),
            Flow::Trap => return wrong("a register holds another page at a system call"),
            Flow::Stop => {
                if mask(pending) & A::KEPT_BY_CALLS != 0 {
                    return wrong("a register holds another page where the function is left");
                }
                return Ok(None);
            }
            Flow::IndirectJump { .. } => {
                self.at_indirect_jumps |= mask(pending);
                return Ok(None);
            }
            _ => {}
        }
        let Some(touched) = A::touched(a) else {
            return wrong("it is not known what the instruction does to registers");
        };
        if touched.reads & mask(pending) != 0 {
            return wrong("the instruction uses a register that holds another page");
        }
        pending.retain(|page| touched.kills >> page.reg & 1 == 0);
        Ok(None)
    }

    /// Notes what is pending where new code is reached for the first time.
    pub(super) fn arrive(&mut self, q: OutputAddr, pending: &Pending) {
        if !pending.is_empty() {
            self.states.insert(q, pending.clone());
        }
    }

    /// New code that is known is reached again: what is pending now and was not then, or the other way round,
    /// must be dead.
    pub(super) fn meet(&mut self, p: InputAddr, q: OutputAddr, pending: &Pending) -> Step {
        if pending.is_empty() && self.states.is_empty() {
            return Ok(());
        }
        let then = self.states.get(&q).cloned().unwrap_or_default();
        let only = |a: &Pending, b: &Pending| {
            a.iter()
                .filter(|page| !b.contains(page))
                .fold(0u32, |set, page| set | 1 << page.reg)
        };
        let set = only(pending, &then) | only(&then, pending);
        if set != 0 && !self.dead(p, set, &[]) {
            return fail(
                Failure::new(
                    Check::Code,
                    "two ways meet with different pages in a register that is used",
                )
                .at(p, q),
            );
        }
        Ok(())
    }

    /// One instruction for several, for reasons of reach.
    fn longer(&mut self, p: InputAddr, q: OutputAddr) -> Result<Option<Pair>, Box<Failure>> {
        let old = self.old_bytes(p).unwrap_or(b"");
        let Some((new, slot)) = self.new_bytes(q) else {
            return Ok(None);
        };
        let Some(longer) = A::longer(old, p.get(), new, q.get()) else {
            return Ok(None);
        };
        let (old_len, new_len) = (u64::from(longer.old_len), u64::from(longer.new_len));
        self.mark_inside(p, q, slot, new_len)?;
        for at in (0..new_len).step_by(A::STEP) {
            self.check_rows(&[p], q + at, A::STEP as u64)?;
        }
        for at in (0..old_len).step_by(A::STEP) {
            self.check_rows(&[p + at], q, A::STEP as u64)?;
        }
        let bytes = old.get(..old_len as usize).unwrap_or(b"");
        let last = bytes
            .get(bytes.len().saturating_sub(A::STEP)..)
            .unwrap_or(b"");
        self.relate_field(
            p + old_len - A::STEP as u64,
            last,
            &longer.old,
            q,
            &longer.new,
        )?;
        Ok(Some((p + old_len, q + new_len)))
    }

    /// Marks what follows the first instruction of a step as not to be entered.
    pub(super) fn mark_inside(
        &mut self,
        p: InputAddr,
        q: OutputAddr,
        slot: usize,
        len: u64,
    ) -> Step {
        let rest = (len as usize).saturating_sub(A::STEP);
        let from = slot + A::STEP;
        if !self.s.marks.take(from, from + rest) {
            return fail(
                Failure::new(
                    Check::Code,
                    format!("the new instructions at {q:#x} overlap others"),
                )
                .at(p, q),
            );
        }
        // Where their lengths differ, there are two.
        let more = if A::STEP > 1 { rest / A::STEP } else { 1 };
        self.out.instructions += more as u64;
        Ok(())
    }

    /// Takes the places of so many instructions that stand for no old one, of `len` bytes in all.
    pub(super) fn take_added(
        &mut self,
        p: InputAddr,
        q: OutputAddr,
        (slot, len): (usize, u64),
        count: u64,
    ) -> Step {
        if !self.s.marks.take(slot, slot + len as usize) {
            let text = format!("the new instructions at {q:#x} overlap others");
            return fail(Failure::new(Check::Code, text).at(p, q));
        }
        self.out.instructions += count;
        Ok(())
    }

    /// Whether old code from `from` on overwrites all these registers before it reads any of them, but for
    /// the instructions `allowed`. Calls and ways out of the function read none but those that calls keep.
    pub(super) fn dead(&mut self, from: InputAddr, registers: u32, allowed: &[u64]) -> bool {
        let mut seen: FxHashMap<InputAddr, u32> = FxHashMap::default();
        let mut work = vec![(from, registers)];
        let mut budget = BUDGET;
        while let Some((mut at, mut live)) = work.pop() {
            while live != 0 {
                let known = seen.entry(at).or_default();
                if *known & live == live {
                    break;
                }
                *known |= live;
                let Some(left) = budget.checked_sub(1) else {
                    return false;
                };
                budget = left;
                let Some(bytes) = self.old_bytes(at) else {
                    if live & A::KEPT_BY_CALLS != 0 {
                        return false;
                    }
                    break;
                };
                let Some(insn) = A::decode(bytes, at.get()) else {
                    return false;
                };
                match insn.flow {
                    Flow::Call(_) | Flow::IndirectCall => {
                        live &= A::KEPT_BY_CALLS;
                        if self.lsdas {
                            match self
                                .outcome(false, at.saturating_add(u64::from(insn.len) - 1).get())
                            {
                                Some((Outcome::Pad { pad, .. }, _)) => {
                                    work.push((InputAddr::new(pad), live))
                                }
                                Some(_) => {}
                                None => return false,
                            }
                        }
                    }
                    Flow::Stop | Flow::IndirectJump { .. } => {
                        if live & A::KEPT_BY_CALLS != 0 {
                            return false;
                        }
                        match self.parts.get(&at).and_then(|i| self.dispatches.get(*i)) {
                            Some(d) if d.parts.last() == Some(&at.get()) => {
                                work.extend(
                                    self.old_targets(d)
                                        .into_iter()
                                        .map(|target| (InputAddr::new(target), live)),
                                );
                            }
                            _ => {}
                        }
                        break;
                    }
                    Flow::Trap => return false,
                    Flow::Jump(target) => {
                        at = InputAddr::new(target);
                        continue;
                    }
                    _ => {
                        if self.faults {
                            match self.outcome(false, at.get()) {
                                Some((Outcome::Pad { pad, .. }, _)) => {
                                    work.push((InputAddr::new(pad), live & A::KEPT_BY_CALLS));
                                }
                                Some(_) => {}
                                None => return false,
                            }
                        }
                        let Some(touched) = A::touched(bytes) else {
                            return false;
                        };
                        if touched.reads & live != 0 && !allowed.contains(&at.get()) {
                            return false;
                        }
                        live &= !touched.kills;
                        if let Flow::Branch { target, .. } = insn.flow {
                            work.push((InputAddr::new(target), live));
                        }
                    }
                }
                at = at.saturating_add(u64::from(insn.len));
            }
        }
        true
    }

    /// A veneer among the function's new code, on the way out of the function: (target, length).
    pub(super) fn own_veneer(
        &self,
        bytes: &[u8],
        at: OutputAddr,
        state: &super::OldState,
    ) -> Option<(OutputAddr, u64)> {
        let super::State::Exit(x) = *state else {
            return None;
        };
        // Only where a call could go: the registers of a veneer may hold something elsewhere.
        if self.cx.inside_of(x).is_some() {
            return None;
        }
        let (target, len) = A::veneer(bytes, at.get())?;
        let lands = self
            .cx
            .output
            .bytes_from(target)
            .is_some_and(A::lets_calls_in);
        (!self.cx.guarded || lands).then_some((OutputAddr::new(target), len))
    }

    /// Takes such a veneer as one step.
    pub(super) fn through_own_veneer(
        &mut self,
        at: OutputAddr,
        slot: usize,
        len: u64,
        target: OutputAddr,
        state: &super::OldState,
        chain: &[InputAddr],
    ) -> Result<Option<super::NewState>, Box<Failure>> {
        if !self.mark(at, slot, A::STEP, state.addr())? {
            return Ok(None);
        }
        self.mark_inside(state.addr(), at, slot, len)?;
        self.note_silent(slot);
        self.check_rows(chain, at, len)?;
        Ok(Some(super::State::Exit(target)))
    }

    /// Whether the new program reads a copy of the constant that the old one reads: the same bytes, or the
    /// same pointer as moved.
    pub(super) fn same_literal(&mut self, a: &Field, b: &Field) -> bool {
        let len = u64::from(a.literal.min(b.literal));
        let fixed = |elf: &crate::files::elf::Elf<'_>, at| {
            elf.load_at(at).is_some_and(|l| !l.is_writable())
        };
        if len == 0 || !fixed(self.cx.input, a.target) || !fixed(self.cx.output, b.target) {
            return false;
        }
        let (Some(old), Some(new)) = (
            self.cx.input.bytes(a.target, len),
            self.cx.output.bytes(b.target, len),
        ) else {
            return false;
        };
        if old == new {
            return true;
        }
        let (Some(x), Some(y)) = (
            crate::files::bytes::u64_in(old, 0),
            crate::files::bytes::u64_in(new, 0),
        ) else {
            return false;
        };
        if !self.cx.fixed() || self.cx.bare {
            return false;
        }
        let (x, y) = (InputAddr::new(x), OutputAddr::new(y));
        match self.cx.entry_of(x) {
            Some(id) if self.cx.pair_owner(x, y) == Some(id) => {
                self.out.addresses.push((id, true));
                self.relate_indirect(x, y).is_ok()
            }
            _ => false,
        }
    }

    /// At the end: what had to be entered at its start alone was, and every part of a table jump came to its jump.
    pub(super) fn settled(&mut self) -> Step {
        for d in &self.dispatches {
            let part = d
                .parts
                .iter()
                .chain(&d.formed)
                .map(|p| InputAddr::new(*p))
                .find_map(|p| Some((p, *self.deferred.get(&p)?)));
            if let Some((p, q)) =
                part.filter(|_| !self.compared.contains_key(&InputAddr::new(d.jump())))
            {
                let text =
                    "the instruction changed, and the table jump that it belongs to is not reached";
                return fail(Failure::new(Check::JumpTable, text).at(p, q));
            }
        }
        self.check_formed()?;
        if self.at_indirect_jumps != 0 {
            for old in std::mem::take(&mut self.indirect) {
                if old != self.f.old_entry && !self.dead(old, self.at_indirect_jumps, &[]) {
                    let text = "a register holds another page at an indirect jump, and is used where it may lead";
                    return fail(Failure::new(Check::Code, text).at_kept(old.get()));
                }
            }
        }
        let mut noting = self.notes_callers.iter();
        let again = noting.find(|q| self.comes_again.contains(q));
        if let Some(at) = again {
            let text =
                format!("new code is entered again at {at:#x}, and notes where a call came from");
            self.out.no_caller = Some(text.into());
        }
        if !self.closed.is_empty() {
            self.joined.sort_unstable();
        }
        let is_joined = |q: &&OutputAddr| self.joined.binary_search(q).is_ok();
        match self.closed.iter().find(is_joined) {
            Some(&q) => {
                let text = format!(
                    "new code is entered at {q:#x}, between the forming of an address and its use"
                );
                fail(Failure::new(Check::Code, text).at(q.of_old_image(), q))
            }
            None => Ok(()),
        }
    }
}

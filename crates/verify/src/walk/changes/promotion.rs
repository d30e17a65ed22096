//! Promoted calls: an indirect call that asks first whether it leads to a function that is known, and calls that
//! directly.
//!
//! ```text
//!        lea  r11, [F]        or  cmp rax, F  in a program at a fixed address
//!        cmp  rax, r11
//!        jne  slow
//!        call F'
//!        ...
//! slow:  call *rax
//! ```
//!
//! On the way on which the comparison found the two equal, the call's operand is the number F: the *path condition*.
//! The old call would go to F, so a call of whatever corresponds to F now does the same. On the other way nothing was
//! done, and the call is still to be made: the old state pairs with the code there as well. So one old call has several
//! new ones, each with a return address that pairs with the old one; rows and call sites are compared at each.
//!
//! An operand in memory is read once, at the beginning, into [`Arch::PROMOTION`]'s register. Where that is needed for F
//! too it waits in the word under the stack pointer, which the call itself overwrites with the return address. What
//! follows such a read is only right after it: code that nothing else may enter ([`Walk::after_read`]).
//!
//! What a comparison destroys: the flags and that register. That calls through registers and memory pass nothing in
//! them is assumption A11; where a value for the callee is seen, the function fails ([`super::super::stub_registers`]).

use super::super::pages::Pending;
use super::super::{OldState, State, Step, Walk, fail};
use super::Next;
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::step::{self, Mem, Op, stack};
use crate::arch::{Arch, Compared, Flow, Insn, Operand};
use crate::report::{ChangeKind, Check, Failure};

/// What is in the promotion's register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// What the program has there: nothing that a call needs.
    Old,
    /// What the call's operand is.
    Target,
    Address(u64),
}

/// Where the operand of an old call is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    register: Content,
    /// It is in the word under the stack pointer as well.
    word: bool,
}

const NOTHING: Held = Held {
    register: Content::Old,
    word: false,
};

/// The word under the stack pointer.
fn under_stack<A: Arch>() -> Mem {
    stack::<A>(-A::CALL_PUSHES)
}

/// A comparison, the branch after it and the direct call after that.
struct Guard {
    /// What the operand is on the way to the call.
    number: u64,
    /// Where the call is, and where it goes.
    call: OutputAddr,
    callee: u64,
    insn: Insn,
    /// Where control goes if the operand is something else, and what holds it there.
    slow: OutputAddr,
    held: Held,
}

/// How many functions a call may be compared with, and of how many instructions a comparison consists.
const GUARDS: usize = 16;
const STEPS: usize = 6;

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// The indirect call at `p`, if new code at `q` compares its operand with a function that it then calls. `None`:
    /// it does not. Else the pair after the direct call.
    pub(super) fn promoted_call(
        &mut self,
        state: &OldState,
        q: OutputAddr,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        let State::At(p, old) = *state else {
            return Ok(None);
        };
        let old = &old;
        let Some(operand) = self.promotable(p, old) else {
            return Ok(None);
        };
        let Some(first) = self.guard(&operand, NOTHING, q) else {
            return Ok(None);
        };
        if let Some(field) = old.field {
            let bytes = self.old_bytes(p).unwrap_or(b"");
            let bytes = bytes.get(..usize::from(old.len)).unwrap_or(b"");
            self.relate_field(p, bytes, &field, q, &field)?;
        }
        self.changing_stub_registers.push((p, q));
        if self.lsdas {
            self.check_other_site(p, q)?;
        }
        if self.is_marked(p, q) {
            self.meet(p, q, pending)?;
            return Ok(Some(None));
        }
        let next = self.guarded_call(p, old, q, &first, false, pending)?;
        let (mut slow, mut held) = (first.slow, first.held);
        if held == NOTHING {
            self.relate(p, slow)?;
            return Ok(Some(next));
        }
        for _ in 0..GUARDS {
            match self.guard(&operand, held, slow) {
                Some(guard) => {
                    let other = self.guarded_call(p, old, slow, &guard, true, pending)?;
                    self.s.work.extend(other.map(|(old, new)| (old, new, None)));
                    (slow, held) = (guard.slow, guard.held);
                }
                None => {
                    let other = self.remaining_call(p, old, slow, held, pending)?;
                    self.s.work.extend(other.map(|(old, new)| (old, new, None)));
                    return Ok(Some(next));
                }
            }
        }
        fail(
            Failure::new(
                Check::Code,
                "an indirect call is compared with too many functions",
            )
            .at(p, q),
        )
    }

    /// The operand of an indirect call that may be compared.
    fn promotable(&self, p: InputAddr, old: &Insn) -> Option<Operand> {
        let scratch = A::PROMOTION?;
        if old.flow != Flow::IndirectCall || self.cx.counts.is_some() || self.faults {
            return None;
        }
        let (operand, _) = A::operand(self.old_bytes(p)?, p.get())?;
        match operand {
            Operand::Register(reg) if reg == scratch || reg == A::STACK => None,
            operand => Some(operand),
        }
    }

    /// Reads a comparison with what follows it.
    fn guard(&self, operand: &Operand, held: Held, at: OutputAddr) -> Option<Guard> {
        let scratch = A::PROMOTION?;
        let (mut held, mut at) = (held, at);
        let mut number = None;
        for _ in 0..STEPS {
            let (bytes, _) = self.new_bytes(at)?;
            let insn = A::decode(bytes, at.get())?;
            let next = OutputAddr::new(at.get().checked_add(u64::from(insn.len))?);
            if let Some(sides) = A::comparison(bytes, at.get()) {
                number = Some(self.compared_with(operand, held, sides)?);
                at = next;
                continue;
            }
            let step = A::step(bytes, at.get())?;
            if let step::Next::Branch { target, equal } = step.next {
                let (call, _) = self.new_bytes(next)?;
                let insn = A::decode(call, next.get())?;
                let Flow::Call(callee) = insn.flow else {
                    return None;
                };
                // What was compared is not needed any more.
                if let Content::Address(_) = held.register {
                    held.register = Content::Old;
                }
                return Some(Guard {
                    number: number.filter(|_| equal == Some(false))?,
                    call: next,
                    callee,
                    insn,
                    slow: OutputAddr::new(target),
                    held,
                });
            }
            if step.next != step::Next::On || step.lost != 0 || number.is_some() {
                return None;
            }
            let [op] = *step.ops.as_slice() else {
                return None;
            };
            held.register = match op {
                Op::Address { to, value } if to == scratch && !self.would_lose(operand, held) => {
                    Content::Address(value)
                }
                // Once, where the old call reads it.
                Op::Load { to, mem }
                    if to == scratch && *operand == Operand::Memory(mem) && held == NOTHING =>
                {
                    Content::Target
                }
                Op::Store { from, mem }
                    if from == scratch
                        && mem == under_stack::<A>()
                        && held.register == Content::Target =>
                {
                    held.word = true;
                    Content::Target
                }
                _ => return None,
            };
            at = next;
        }
        None
    }

    /// Whether overwriting the register would lose what was read.
    fn would_lose(&self, operand: &Operand, held: Held) -> bool {
        match operand {
            Operand::Register(_) => false,
            Operand::Memory(_) => !held.word,
        }
    }

    /// The number that a comparison compares a call's operand with.
    fn compared_with(
        &self,
        operand: &Operand,
        held: Held,
        (a, b): (Compared, Compared),
    ) -> Option<u64> {
        let scratch = A::PROMOTION?;
        let is_target = |side: Compared| match side {
            Compared::Register(reg) if reg == scratch => held.register == Content::Target,
            Compared::Register(reg) => *operand == Operand::Register(reg),
            Compared::Memory(mem) => held.word && mem == under_stack::<A>(),
            Compared::Number(_) => false,
        };
        let number = |side: Compared| match (side, held.register) {
            (Compared::Register(reg), Content::Address(value)) if reg == scratch => Some(value),
            // Elsewhere the number is none of an address.
            (Compared::Number(value), _) if self.cx.fixed() => Some(value as u64),
            _ => None,
        };
        match (is_target(a), is_target(b)) {
            (true, false) => number(b),
            (false, true) => number(a),
            _ => None,
        }
    }

    /// Checks a direct call on the way on which the operand is a number. Gives the pair after it.
    fn guarded_call(
        &mut self,
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        guard: &Guard,
        after_read: bool,
        pending: &mut Pending,
    ) -> Result<Next, Box<Failure>> {
        let end = guard.call + u64::from(guard.insn.len);
        let len = usize::try_from(end - q).unwrap_or(usize::MAX);
        self.mark_once(p, q, len, after_read)?;
        self.arrive(q, pending);
        self.check_rows(&[p], q, len as u64)?;
        if guard.number == guard.callee {
            // The operand itself; in a program whose pointers follow that may be new code.
            self.enter_old(InputAddr::new(guard.number))
        } else {
            self.relate(InputAddr::new(guard.number), OutputAddr::new(guard.callee))?
        }
        let next = self.behind(p, old, guard.call, &guard.insn, pending)?;
        self.count(ChangeKind::PromotedCall);
        Ok(next)
    }

    /// Checks the indirect call that is left after all comparisons, of what was read. Gives the pair after it.
    fn remaining_call(
        &mut self,
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        held: Held,
        pending: &mut Pending,
    ) -> Result<Next, Box<Failure>> {
        let different = || {
            fail(
                Failure::new(
                    Check::Code,
                    "what is left of an indirect call that was compared does not call what was read",
                )
                .at(p, q),
            )
        };
        let (Some((bytes, _)), Some(old_bytes)) = (self.new_bytes(q), self.old_bytes(p)) else {
            return different();
        };
        let (Some(insn), Some((operand, marks)), Some((_, old_marks))) = (
            A::decode(bytes, q.get()),
            A::operand(bytes, q.get()),
            A::operand(old_bytes, p.get()),
        ) else {
            return different();
        };
        let is_read = match operand {
            Operand::Register(reg) => Some(reg) == A::PROMOTION && held.register == Content::Target,
            Operand::Memory(mem) => held.word && mem == under_stack::<A>(),
        };
        if !is_read || insn.flow != Flow::IndirectCall || marks != old_marks {
            return different();
        }
        self.mark_once(p, q, usize::from(insn.len), true)?;
        self.arrive(q, pending);
        self.check_rows(&[p], q, u64::from(insn.len))?;
        self.behind(p, old, q, &insn, pending)
    }

    /// Whether new code at `q` is known to correspond to the old call.
    fn is_marked(&self, p: InputAddr, q: OutputAddr) -> bool {
        let slot = self.new_bytes(q).map(|b| b.1);
        let marked = slot.and_then(|slot| self.s.marks.number(slot));
        self.id(p).is_some() && marked == self.id(p)
    }

    /// Marks code as standing for an old call. What follows the read of the operand must be entered from there alone.
    fn mark_once(&mut self, p: InputAddr, q: OutputAddr, len: usize, after_read: bool) -> Step {
        let slot = self.new_bytes(q).map_or(0, |b| b.1);
        if !self.mark(q, slot, len, p)? {
            return fail(needs_operand(p, q));
        }
        if after_read {
            self.after_read.insert(q);
        }
        Ok(())
    }
}

/// New code is entered without what was read before it.
pub(crate) fn needs_operand(p: InputAddr, q: OutputAddr) -> Failure {
    let text = format!(
        "new code at {q:#x} needs an operand that was read before, and is also entered from elsewhere"
    );
    Failure::new(Check::Code, text).at(p, q)
}

//! The rule of calls through the procedure linkage table.
//!
//! A stub P of the table does nothing but jump to what its slot G holds. A call of P may as well go through G:
//!
//! | | old | new | stub P |
//! |---|---|---|---|
//! | x86-64 | `call P`, `jmp P` | `call [G]`, `jmp [G]` | `[endbr64] [bnd] jmp [G]` |
//! | AArch64 | `bl P` | `adrp x16, G; ldr x17, [x16, :lo12:G]; add x16, x16, :lo12:G; blr x17` | `[bti c]`, the same with `br x17` |
//!
//! Nothing needs to be known of what G holds: both go there, with the same return address on the stack or in the link
//! register (related, since the pair after the call is walked) and every other register the same; on AArch64 x16
//! and x17 hold what the stub would have left in them, which the resolver of lazy binding relies on. That G is the same
//! word in both files, and is relocated alike, is shown where data and relocations are compared.
//!
//! The stub must be read as a whole, and nothing of it may be left out: a stub with one more instruction is none. It
//! must not be in a function that moved. A call with prefixes is not changed (those of TLS sequences are read by
//! linkers, and `bnd` would be lost).

use super::super::pages::Pending;
use super::super::{OldState, State, Walk};
use super::Next;
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{Arch, Flow, Insn};
use crate::context::Context;
use crate::report::{ChangeKind, Failure};

/// Whether the new instructions at `q`, whose bytes these are, call or jump through the slot of the stub to which the
/// old instruction leads by a direct call or jump to `target`. Gives their length.
pub(crate) fn goes_through_slot<A: Arch>(
    cx: &Context<'_>,
    target: u64,
    call: bool,
    new: &[u8],
    q: OutputAddr,
) -> Option<u64> {
    let through = A::through_slot(new, q.get()).filter(|t| t.call == call)?;
    if cx.old.owner(InputAddr::new(target)).is_some() || !cx.is_code(target) {
        return None;
    }
    // The longest stub has five instructions of four bytes.
    if cx.may_be_written(target, target + 20) {
        return None;
    }
    let slot = A::stub_slot(cx.input.bytes_from(target)?, target)?;
    (slot == through.slot).then_some(u64::from(through.len))
}

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// A call or jump to a stub that goes through the stub's slot.
    pub(super) fn slot_call(
        &mut self,
        state: &OldState,
        chain: &[InputAddr],
        q: OutputAddr,
        new: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        let Some((bytes, slot)) = self.new_bytes(q) else {
            return Ok(None);
        };
        // What the old code has there, if it is a direct call or the way out by a jump.
        let (at, target, old) = match *state {
            State::At(p, old) => match old.flow {
                Flow::Call(target) if old.field.is_some_and(|f| f.at <= 1) => {
                    (p, target, Some(old))
                }
                _ => return Ok(None),
            },
            State::Exit(target) => (target, target.get(), None),
            State::Spin(_) => return Ok(None),
        };
        let Some(len) = goes_through_slot::<A>(self.cx, target, old.is_some(), bytes, q) else {
            return Ok(None);
        };
        self.count(ChangeKind::SlotCall);
        if !self.mark(q, slot, len as usize, at)? {
            self.meet(at, q, pending)?;
            return Ok(Some(None));
        }
        self.arrive(q, pending);
        match old {
            Some(old) => {
                self.check_rows(&[at], q, len)?;
                let through = Insn {
                    len: len as u8,
                    flow: Flow::IndirectCall,
                    ..*new
                };
                Ok(Some(self.behind(at, &old, q, &through, pending)?))
            }
            None => {
                self.note_silent(slot);
                self.check_rows(chain, q, len)?;
                Ok(Some(None))
            }
        }
    }
}

//! The rule for calls of tiny functions that were inlined.
//!
//! | old | new |
//! |---|---|
//! | `call F`; F is a few straight instructions and `ret` | the instructions |
//!
//! On the old side the call, F's body and the return are one step: between them nothing looks at the stack, since each
//! instruction of the body is one of a closed list ([`Arch::leaves_stack`]) without the stack pointer among its
//! operands. So the only difference is the word below the stack pointer: the call left the return address there. That
//! it is not read once the call has returned is assumption A12; compilers keep nothing there over a call, as the call
//! itself writes to it.
//!
//! F has moved itself: so what is shown of functions that move holds for its copies, too, for instance that nothing
//! writes to it and that it is not listed for patching. The body is read in the input, and compared instruction by
//! instruction: the same bytes, or the same around an address of memory that is the same. Addresses that are formed are
//! not compared with those that F forms elsewhere, so such a function is none for this rule. Nothing in the body calls,
//! so no exception comes from it, but in languages where instructions that fault raise them: there the rule is not
//! used. All of the new code has the caller's row. Who stops there sees one frame less.

use super::super::pages::Pending;
use super::super::{OldState, State, Walk};
use super::Next;
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{Arch, FieldKind, Flow, Insn};
use crate::files::bytes::same_insn;
use crate::report::{ChangeKind, Failure};

/// The largest body: instructions, and bytes.
const INSTRUCTIONS: usize = 8;
const BYTES: u64 = 24;
/// Padding in front of the body: a landing pad of indirect branches.
const PADS: usize = 2;

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// A direct call in whose place, at `q`, is the body of the function.
    pub(super) fn inlined_call(
        &mut self,
        state: &OldState,
        q: OutputAddr,
        new: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        let State::At(p, old) = *state else {
            return Ok(None);
        };
        let Flow::Call(callee) = old.flow else {
            return Ok(None);
        };
        let function = InputAddr::new(callee);
        let behind = p + u64::from(old.len);
        if new.flow != Flow::Next
            || A::CALL_PUSHES == 0
            || self.cx.counts.is_some()
            || self.faults
            || self.cx.options.non_call_exceptions
            || old.prefixes != 0
            || self.f.in_old(function)
            || self.cx.entry_of(function).is_none()
            || !self.cx.is_code(callee)
            || self.ends_part(p, behind)
        {
            return Ok(None);
        }
        let Some(end) = self.body(callee, q)? else {
            return Ok(None);
        };
        let slot = self.new_bytes(q).map_or(0, |b| b.1);
        let len = (end - q) as usize; // at most BYTES
        if !self.mark(q, slot, len, p)? {
            self.meet(p, q, pending)?;
            return Ok(Some(None));
        }
        self.arrive(q, pending);
        self.check_rows(&[p], q, end - q)?;
        self.count(ChangeKind::InlinedCall);
        Ok(Some(Some((behind, end))))
    }

    /// The end of new code at `q` that is the body of the function at `callee`, without its return.
    fn body(&mut self, callee: u64, q: OutputAddr) -> Result<Option<OutputAddr>, Box<Failure>> {
        let (mut at, mut here) = (callee, q);
        let (mut count, mut pads) = (0, 0);
        loop {
            let Some(bytes) = self.cx.input.bytes_from(at).filter(|_| self.cx.is_code(at)) else {
                return Ok(None);
            };
            let Some(insn) = A::decode(bytes, at) else {
                return Ok(None);
            };
            let len = usize::from(insn.len);
            let own = bytes.get(..len).unwrap_or(b"");
            match insn.flow {
                Flow::Nothing | Flow::Next
                    if pads < PADS && (insn.landing_pad || insn.flow == Flow::Nothing) =>
                {
                    pads += 1;
                    at += u64::from(insn.len);
                    continue;
                }
                Flow::Stop if A::is_return(own) && A::leaves_stack(own) => {
                    return Ok((count > 0).then_some(here));
                }
                Flow::Next if A::leaves_stack(own) => {}
                _ => return Ok(None),
            }
            count += 1;
            let Some((new_bytes, _)) = self.new_bytes(here) else {
                return Ok(None);
            };
            let end = here + u64::from(insn.len);
            if count > INSTRUCTIONS || end - q > BYTES || new_bytes.len() < len {
                return Ok(None);
            }
            let field = match insn.field {
                None if self.cx.fixed() && self.names_code(own) => return Ok(None),
                None if same_insn(new_bytes, own, len) => None,
                None => return Ok(None),
                Some(field) => {
                    let new = A::decode(new_bytes, here.get()).and_then(|i| i.field);
                    let alike = |new: &crate::arch::Field| {
                        (new.at, new.len, new.kind) == (field.at, field.len, FieldKind::Accesses)
                            && field.kind == FieldKind::Accesses
                            && A::equal_around(own, new_bytes.get(..len).unwrap_or(b""), new)
                    };
                    match new.filter(alike) {
                        Some(new) => Some((field, new)),
                        None => return Ok(None),
                    }
                }
            };
            if let Some((old, new)) = field {
                self.relate_field(InputAddr::new(at), own, &old, here, &new)?;
            }
            at += u64::from(insn.len);
            here = end;
        }
    }

    /// Whether a number in an instruction could be the address of code.
    fn names_code(&self, bytes: &[u8]) -> bool {
        let number = A::absolute_field(bytes).map(|f| f.target);
        number.is_some_and(|number| self.cx.is_code(number))
    }
}

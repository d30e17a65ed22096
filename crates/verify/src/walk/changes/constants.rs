//! The rule of loads of constants.
//!
//! | | old | new |
//! |---|---|---|
//! | x86-64 | `op r, [m]` with `m` relative to the program counter | the same operation with the number as an immediate |
//! | AArch64 | load of a literal, or from a page and an offset | `movz` or `movn`, perhaps a `movk` |
//!
//! The number that the old instruction loads is the same at any time if its bytes are in the input file, in a segment
//! that is never writable (what the loader makes read-only after relocating is in writable ones), and no dynamic
//! relocation is near: then the new instruction must put the same number, extended as the load extends it, into the
//! same register. The output must have the same bytes there: the file's header, and pointers that follow functions, are
//! others, and a program that loads them elsewhere, too, would see two numbers. That the program does not make the
//! segment writable by itself is assumption A10.
//!
//! Where the address comes from a page in a register (AArch64), that page is known if the register holds another page
//! than in the old program, which the lock step has noted, or else from the new code: an `adrp` of it a few
//! instructions before, straight code in between that nothing jumps into ([`Walk::closed`]), and no other write of
//! the register.

use super::super::pages::Pending;
use super::super::{OldState, State, Walk};
use super::Next;
use crate::addr::OutputAddr;
use crate::arch::{Arch, Flow, Insn, Loaded, Takes};
use crate::report::{ChangeKind, Failure};

/// How many instructions the forming of a page may be before its use.
const NEAR: u64 = 64;

/// The most bytes that a dynamic relocation writes.
pub(crate) const RELOCATED: u64 = 16;

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// A load of a constant that became an immediate.
    pub(super) fn constant(
        &mut self,
        state: &OldState,
        q: OutputAddr,
        new: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        let (State::At(p, old), (Flow::Next, None)) = (*state, (new.flow, new.field)) else {
            return Ok(None);
        };
        let old_bytes = self
            .old_bytes(p)
            .and_then(|b| b.get(..usize::from(old.len)));
        let (Some(old_bytes), Some((bytes, slot))) = (old_bytes, self.new_bytes(q)) else {
            return Ok(None);
        };
        let Some((takes, loaded)) = A::takes_loaded(old_bytes, p.get()) else {
            return Ok(None);
        };
        let Some((at, formed)) = self.address_of(&loaded, q, pending) else {
            return Ok(None);
        };
        let Some(number) = self.constant_at(at, &loaded, &takes) else {
            return Ok(None);
        };
        let Some(len) = A::takes_number(bytes, &takes, number).map(u64::from) else {
            return Ok(None);
        };
        self.count(ChangeKind::Constant);
        if !self.mark(q, slot, len as usize, p)? {
            self.meet(p, q, pending)?;
            return Ok(Some(None));
        }
        self.arrive(q, pending);
        self.check_rows(&[p], q, len)?;
        if self.lsdas {
            self.check_other_site(p, q)?;
        }
        if let Some(formed) = formed {
            let parts = (formed.get()..=q.get()).step_by(A::STEP);
            self.closed.extend(parts.skip(1).map(OutputAddr::new));
        }
        pending.retain(|page| page.reg != takes.register);
        Ok(Some(Some((p + u64::from(old.len), q + len))))
    }

    /// The address that is loaded from, and where new code forms the page if that is how it is known.
    fn address_of(
        &self,
        loaded: &Loaded,
        q: OutputAddr,
        pending: &Pending,
    ) -> Option<(u64, Option<OutputAddr>)> {
        let Some((base, offset)) = loaded.base else {
            return Some((loaded.at, None));
        };
        if let Some(page) = pending.iter().find(|page| page.reg == base) {
            return Some((page.old.wrapping_add(offset), None));
        }
        let step = A::STEP as u64;
        let mut at = q;
        for _ in 0..NEAR {
            at = OutputAddr::new(at.get().checked_sub(step)?);
            let (bytes, _) = self.new_bytes(at)?;
            let insn = A::decode(bytes, at.get())?;
            if A::page_register(bytes) == Some(base) {
                return Some((insn.field?.target.wrapping_add(offset), Some(at)));
            }
            let goes_on = matches!(insn.flow, Flow::Next | Flow::Nothing | Flow::Branch { .. });
            if !goes_on || A::touched(bytes)?.writes >> base & 1 != 0 {
                return None;
            }
        }
        None
    }

    /// The number at an address, extended as it is when it is loaded, if it is the same at any time.
    fn constant_at(&self, at: u64, loaded: &Loaded, takes: &Takes) -> Option<u64> {
        let len = u64::from(loaded.len);
        let input = self.cx.input;
        let relro =
            |s: &crate::files::elf::Segment| at < s.end() && s.addr < at.saturating_add(len);
        let is_written = input.load_at(at)?.is_writable()
            || input
                .segment(crate::files::elf::PT_GNU_RELRO)
                .is_some_and(relro);
        let relocated = &self.cx.relocated_constants;
        let next = relocated.partition_point(|r| r.saturating_add(RELOCATED) <= at);
        let is_relocated = relocated
            .get(next)
            .is_some_and(|r| *r < at.saturating_add(len));
        if is_written || is_relocated {
            return None;
        }
        let bytes = input.bytes(at, len)?;
        if self.cx.output.bytes(at, len)? != bytes {
            return None;
        }
        let mut number = [0u8; 8];
        number.get_mut(..len as usize)?.copy_from_slice(bytes);
        let unused = 64u32.checked_sub(8 * u32::from(loaded.len))?;
        let number = u64::from_le_bytes(number).checked_shl(unused)?;
        let number = if loaded.signed {
            ((number as i64) >> unused) as u64
        } else {
            number >> unused
        };
        Some(takes.cut(number))
    }
}

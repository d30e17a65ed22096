//! What calls through registers and memory pass in registers of linkers' stubs.
//!
//! A recorder, and a comparison of a promoted call, overwrite registers of linkers' stubs in front of the callee.
//! That nothing is passed in them is assumption A11, but some of what breaks it can be seen: straight-line
//! code in front of the call writes such a register ([`Arch::STUB_SCRATCH`]) and does not read it before the call,
//! which does not need it to know where it goes. Compilers write no register that nobody reads, so the callee reads
//! it. Clang's `preserve_none` passes an eleventh argument in `r11`.
//!
//! Instructions are looked at backwards from the call, so they must be known: those of the old code that the walk has
//! paired. Where the one before is none of them, or is no plain one, nothing more is seen.

use super::{Step, Walk, fail};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{Arch, Flow};
use crate::report::{Check, Failure};
use rustc_hash::FxHashMap;

/// How far in front of a call code is looked at, in bytes.
const FAR: u64 = 128;

impl<A: Arch> Walk<'_, '_, A> {
    /// Fails if one of the calls that may change registers of linkers' stubs passes something in one.
    pub(super) fn judge_stub_registers(&mut self) -> Step {
        let mut calls = std::mem::take(&mut self.changing_stub_registers);
        calls.sort_unstable();
        calls.dedup();
        if calls.is_empty() {
            return Ok(());
        }
        let before = self.in_front_of(&calls);
        for (p, q) in calls {
            if let Some((at, register)) = self.passed(p, &before) {
                let text = format!(
                    "the old code writes register {register} at {at:#x} for what the indirect call or jump at \
                     {p:#x} leads to, and the new code has something in between that may overwrite it"
                );
                return fail(Failure::new(Check::Code, text).at(p, q));
            }
        }
        Ok(())
    }

    /// The plain old instructions that are not far in front of one of the calls, by where they end.
    fn in_front_of(&self, calls: &[(InputAddr, OutputAddr)]) -> FxHashMap<InputAddr, InputAddr> {
        let mut before = FxHashMap::default();
        for (_, id) in self.s.marks.all() {
            let at = InputAddr::new(self.base.saturating_add(u64::from(id) - 1));
            let next = calls.partition_point(|call| call.0 <= at);
            let is_near = calls.get(next).is_some_and(|call| call.0 - at <= FAR);
            if is_near
                && let Some(bytes) = self.old_bytes(at)
                && let Some(insn) = A::decode(bytes, at.get())
                && insn.flow == Flow::Next
            {
                before.insert(at + u64::from(insn.len), at);
            }
        }
        before
    }

    /// Where a register is written that the call at `p` passes on, and its number.
    fn passed(
        &self,
        p: InputAddr,
        before: &FxHashMap<InputAddr, InputAddr>,
    ) -> Option<(InputAddr, u32)> {
        let mut open = A::STUB_SCRATCH & !A::effects(self.old_bytes(p)?).reads;
        let mut end = p;
        while open != 0 && p - end <= FAR {
            let at = *before.get(&end)?;
            let effects = A::effects(self.old_bytes(at)?);
            let written = open & effects.kills;
            if written != 0 {
                return Some((at, written.trailing_zeros()));
            }
            open &= !effects.reads;
            end = at;
        }
        None
    }
}

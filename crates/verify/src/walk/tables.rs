//! Jumps through tables whose entries are too narrow to be patched, in the lock step.
//!
//! A table of bytes or half-words reaches no further than its function, so moved code gets another table, perhaps of wider
//! entries, and instructions that fit it. The parts of such a jump ([`Dispatch`]) are allowed to differ and are *deferred*; at the jump
//! itself the new code is read as a table jump of its own, and compared as a whole:
//!
//! * the same index in the same register, the same register jumped to;
//! * every part that differs is a part of the new jump;
//! * no other instruction reads what the parts leave in their registers, neither up to the jump nor behind it;
//! * nothing enters the code between the first part that differs and the jump;
//! * each entry leads to the new place of the old entry's label.

use super::{Step, Walk, fail};
use crate::arch::{Arch, Dispatch, Flow, Insn};
use crate::report::{Check, Failure};
use rustc_hash::FxHashSet;

/// Entries looked at in a table without a bound in sight.
const UNBOUNDED: u64 = 4096;

/// The instruction word at an address of some code.
fn word(bytes: Option<&[u8]>) -> Option<u32> {
    Some(u32::from_le_bytes(bytes?.get(..4)?.try_into().ok()?))
}

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// Reads the table jumps of the old code.
    pub(super) fn find_dispatches(&mut self) {
        if A::STEP != 4 {
            return;
        }
        let mut found = Vec::new();
        for (range, bytes) in &self.old {
            for at in (range.start..range.end).step_by(4) {
                let here = bytes.get((at - range.start) as usize..);
                // br: the quick way past everything else.
                if word(here).is_some_and(|w| w & 0xffff_fc1f == 0xd61f_0000) {
                    found.extend(A::dispatch(at, &|x| word(self.old_bytes(x))));
                }
            }
        }
        for (index, d) in found.iter().enumerate() {
            self.parts.extend(d.parts.iter().map(|&p| (p, index)));
        }
        self.dispatches = found;
    }

    /// An entry of a table as stored.
    fn entry(elf: &crate::elf::Elf<'_>, d: &Dispatch, index: u64) -> Option<u64> {
        let at = d.table.checked_add(index.checked_mul(u64::from(d.width))?)?;
        let mut raw = [0u8; 8];
        let bytes = elf.bytes(at, u64::from(d.width))?;
        raw.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(raw))
    }

    /// Where the entries of an old table lead, each target once.
    pub(super) fn old_targets(&self, d: &Dispatch) -> Vec<u64> {
        let mut targets = Vec::new();
        for i in 0..d.count.unwrap_or(UNBOUNDED) {
            let Some(target) = Self::entry(self.cx.input, d, i).map(|e| d.target(e)) else { break };
            if d.count.is_none() && !self.f.in_old(target) {
                break;
            }
            targets.push(target);
        }
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// A part of a table jump. `None`: the instructions mean the same, and are compared like any other.
    pub(super) fn part_of_dispatch(
        &mut self,
        index: usize,
        p: u64,
        old: &Insn,
        q: u64,
        new: &Insn,
    ) -> Result<Option<(u64, u64)>, Box<Failure>> {
        if matches!(old.flow, Flow::IndirectJump { .. }) {
            self.compare_dispatch(index, p, q)?;
            return Ok(None);
        }
        let a = self.old_bytes(p).unwrap_or(b"");
        let (b, slot) = self.new_bytes(q).unwrap_or((b"", 0));
        let (x, y) = (a.get(..A::STEP).unwrap_or(b""), b.get(..A::STEP).unwrap_or(b""));
        let equal = match (old.field, new.field) {
            (None, None) => x == y,
            (Some(f), Some(g)) => (f.kind, f.target) == (g.kind, g.target) && A::equal_around(x, y, &f),
            _ => false,
        };
        if equal {
            return Ok(None);
        }
        let (old_len, new_len) =
            A::longer(a, p, b, q).map_or((A::STEP as u64, A::STEP as u64), |l| (u64::from(l.old_len), u64::from(l.new_len)));
        self.mark_inside(p, q, slot, new_len)?;
        for at in (0..new_len).step_by(A::STEP) {
            self.check_rows(&[p], q + at, A::STEP as u64)?;
        }
        for at in (0..old_len).step_by(A::STEP) {
            self.check_rows(&[p + at], q, A::STEP as u64)?;
            if self.deferred.insert(p + at, q).is_some_and(|other| other != q) {
                return fail(Failure::new(Check::JumpTable, "a part of a table jump stands in two places").at(p, q));
            }
        }
        Ok(Some((p + old_len, q + new_len)))
    }

    /// Compares a table jump some parts of which differ.
    fn compare_dispatch(&mut self, index: usize, p: u64, q: u64) -> Step {
        let Some(old) = self.dispatches.get(index).cloned() else { return Ok(()) };
        let deferred: Vec<(u64, u64)> = old.parts.iter().filter_map(|p| Some((*p, *self.deferred.get(p)?))).collect();
        let (Some(&(first_p, _)), Some(first_q)) = (deferred.first(), deferred.iter().map(|d| d.1).min()) else {
            return Ok(());
        };
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        let Some(new) = A::dispatch(q, &|at| word(self.new_bytes(at).map(|b| b.0))) else {
            return wrong("a jump through a table became one that is not understood");
        };
        if new.index != old.index {
            return wrong("a jump through a table has another index");
        }
        // A part of two instructions is known by its first, which may itself be no part if the second alone is one.
        if first_q > q || deferred.iter().any(|(_, d)| !new.parts.contains(d)) {
            return wrong("an instruction before a table jump changed that is no part of the new jump");
        }
        self.closed.extend((first_q + 4..=q).step_by(4));
        self.compared.extend(deferred.iter().map(|d| d.0));
        let scratch = old.scratch | new.scratch;
        self.check_scratch(&old, &deferred, first_p, p, q)?;

        let fixed = |elf: &crate::elf::Elf<'_>, at| elf.load_at(at).is_some_and(|l| !l.is_writable());
        if !fixed(self.cx.input, old.table) || !fixed(self.cx.output, new.table) {
            return wrong("a jump table can be written to");
        }
        let mut pairs: Vec<(u64, u64)> = Vec::new();
        let mut seen: FxHashSet<(u64, u64)> = FxHashSet::default();
        for i in 0..old.count.unwrap_or(UNBOUNDED) {
            let Some(from) = Self::entry(self.cx.input, &old, i).map(|e| old.target(e)) else { break };
            if old.count.is_none() && !self.f.in_old(from) {
                break;
            }
            let Some(to) = Self::entry(self.cx.output, &new, i).map(|e| new.target(e)) else {
                return wrong("a jump table is shorter than it was");
            };
            if seen.insert((from, to)) {
                pairs.push((from, to));
            }
        }
        if pairs.is_empty() {
            return wrong("a jump table has no entries");
        }
        for (from, to) in pairs {
            if !self.dead(from, scratch) {
                let text = "a register in which a changed table jump was made is used where the jump leads";
                return fail(Failure::new(Check::JumpTable, text).at(from, to));
            }
            self.relate_indirect(from, to)?;
        }
        Ok(())
    }

    /// Nothing but parts may read what parts that differ leave in registers, up to the jump.
    fn check_scratch(&self, old: &Dispatch, deferred: &[(u64, u64)], first: u64, p: u64, q: u64) -> Step {
        let mut changed = 0u32;
        for at in (first..p).step_by(4) {
            let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(at, q));
            let bytes = self.old_bytes(at).unwrap_or(b"");
            let (Some(touched), Some(insn)) = (A::touched(bytes), A::decode(bytes, at)) else {
                return wrong("an instruction before a changed table jump is not understood");
            };
            let part = old.parts.contains(&at);
            if !part && touched.reads & changed != 0 {
                return wrong("an instruction reads a register in which a changed table jump is made");
            }
            let before = changed;
            changed &= !touched.kills;
            // What is made of a changed value is changed.
            if part && (touched.reads & before != 0 || deferred.iter().any(|d| d.0 == at)) {
                changed |= touched.kills;
            }
            match insn.flow {
                Flow::Next | Flow::Nothing => {}
                Flow::Branch { target, .. } if self.dead(target, changed) => {}
                _ => return wrong("control leaves in the middle of a changed table jump"),
            }
        }
        Ok(())
    }
}

//! Jumps through tables whose entries are too narrow to be patched, in the lock step.
//!
//! A table of bytes or half-words reaches no further than its function. Either it stays and leads to the old
//! labels, where jumps to the new code take over ([`crate::proof::text`]): then the instructions of the jump
//! mean the same, and there is nothing to do here. Or moved code gets another table, perhaps of wider
//! entries, and instructions that fit it. The parts of such a jump ([`Dispatch`]) are allowed to differ and
//! are *deferred*; at the jump itself the new code is read as a table jump of its own, and compared as a
//! whole:
//!
//! * the same index in the same register, the same register jumped to;
//! * every part that differs is a part of the new jump;
//! * no other instruction reads what the parts leave in their registers, neither up to the jump nor after it;
//! * nothing enters the code between the first part that differs and the jump;
//! * an address formed far away, before a loop perhaps, is read by nothing but table jumps that were compared
//!   with the new one;
//! * each entry leads to the new place of the old entry's label.

use super::{Step, Walk, fail};
use crate::addr::{InputAddr, OutputAddr, Pair};
use crate::arch::graph::Graph;
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
        let mut jumps = Vec::new();
        for (range, bytes, _) in &self.old {
            // br: the quick way past everything else.
            let is_jump = |w: &[u8]| word(Some(w)).is_some_and(|w| w & 0xffff_fc1f == 0xd61f_0000);
            let here = bytes
                .chunks_exact(4)
                .enumerate()
                .filter(|(_, w)| is_jump(w));
            jumps.extend(here.map(|(i, _)| range.start.get() + 4 * i as u64));
        }
        if jumps.is_empty() {
            return;
        }
        let graph = Graph::new::<A>(self.old.iter().map(|old| (old.0.start.get(), old.1)));
        self.dispatches = jumps
            .into_iter()
            .filter_map(|at| A::dispatch(at, &graph))
            .collect();
        for (index, d) in self.dispatches.iter().enumerate() {
            self.parts.extend(
                d.formed
                    .iter()
                    .chain(&d.parts)
                    .map(|&p| (InputAddr::new(p), index)),
            );
        }
    }

    /// An entry of a table as stored.
    fn entry(elf: &crate::files::elf::Elf<'_>, d: &Dispatch, index: u64) -> Option<u64> {
        let at = d
            .table
            .checked_add(index.checked_mul(u64::from(d.width))?)?;
        let mut raw = [0u8; 8];
        let bytes = elf.bytes(at, u64::from(d.width))?;
        raw.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(raw))
    }

    /// Where the entries of an old table lead, each target once.
    pub(super) fn old_targets(&self, d: &Dispatch) -> Vec<u64> {
        let mut targets = Vec::new();
        for i in 0..d.count.unwrap_or(UNBOUNDED) {
            let Some(target) = Self::entry(self.cx.input, d, i).map(|e| d.target(e)) else {
                break;
            };
            if d.count.is_none() && !self.f.in_old(InputAddr::new(target)) {
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
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        new: &Insn,
    ) -> Result<Option<Pair>, Box<Failure>> {
        if matches!(old.flow, Flow::IndirectJump { .. }) {
            self.jumps.push((index, p, q));
            return Ok(None);
        }
        let a = self.old_bytes(p).unwrap_or(b"");
        let (b, slot) = self.new_bytes(q).unwrap_or((b"", 0));
        let (x, y) = (
            a.get(..A::STEP).unwrap_or(b""),
            b.get(..A::STEP).unwrap_or(b""),
        );
        let equal = match (old.field, new.field) {
            (None, None) => x == y,
            (Some(f), Some(g)) if f.kind == g.kind => {
                f.target == g.target && A::equal_around(x, y, &f)
            }
            _ => false,
        };
        let longer = A::longer(a, p.get(), b, q.get());
        // Without kept relocations no table has another in its place.
        if self.cx.bare {
            return Ok(None);
        }
        // The same address formed in another way is not a change.
        if equal || longer.is_some_and(|l| l.old.target == l.new.target) {
            return Ok(None);
        }
        let step = A::STEP as u64;
        let (old_len, new_len) = longer.map_or((step, step), |l| {
            (u64::from(l.old_len), u64::from(l.new_len))
        });
        self.mark_inside(p, q, slot, new_len)?;
        for at in (0..new_len).step_by(A::STEP) {
            self.check_rows(&[p], q + at, A::STEP as u64)?;
        }
        for at in (0..old_len).step_by(A::STEP) {
            self.check_rows(&[p + at], q, A::STEP as u64)?;
            if self
                .deferred
                .insert(p + at, q)
                .is_some_and(|other| other != q)
            {
                return fail(
                    Failure::new(Check::JumpTable, "a part of a table jump is in two places")
                        .at(p, q),
                );
            }
        }
        Ok(Some((p + old_len, q + new_len)))
    }

    /// Compares the table jumps that were reached and have parts that differ. False: there is nothing new.
    pub(super) fn compare_dispatches(&mut self) -> Result<bool, Box<Failure>> {
        if self.deferred.is_empty() {
            return Ok(false);
        }
        let mut graph = None;
        let mut any = false;
        for (index, p, q) in self.jumps.clone() {
            if self.compared.contains_key(&p) {
                continue;
            }
            let Some(old) = self.dispatches.get(index).cloned() else {
                continue;
            };
            if old
                .parts
                .iter()
                .chain(&old.formed)
                .any(|p| self.deferred.contains_key(&InputAddr::new(*p)))
            {
                let graph = graph.get_or_insert_with(|| {
                    Graph::new::<A>(self.new.iter().map(|(r, bytes, _)| (r.start.get(), *bytes)))
                });
                let new = A::dispatch(q.get(), graph);
                self.compare_dispatch(&old, p, q, new)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Compares a table jump some parts of which differ.
    fn compare_dispatch(
        &mut self,
        old: &Dispatch,
        p: InputAddr,
        q: OutputAddr,
        new: Option<Dispatch>,
    ) -> Step {
        let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
        let Some(new) = new else {
            return wrong("a jump through a table became one that is not understood");
        };
        let deferred = |parts: &[u64]| -> Vec<Pair> {
            parts
                .iter()
                .map(|p| InputAddr::new(*p))
                .filter_map(|p| Some((p, *self.deferred.get(&p)?)))
                .collect()
        };
        let (near, far) = (deferred(&old.parts), deferred(&old.formed));
        if new.index != old.index {
            return wrong("a jump through a table has another index");
        }
        let is_part =
            |q: &OutputAddr| new.parts.contains(&q.get()) || new.formed.contains(&q.get());
        if near.iter().chain(&far).any(|(_, d)| !is_part(d)) {
            return wrong(
                "an instruction before a table jump changed that is no part of the new jump",
            );
        }
        self.compared.insert(p, (old.table, new.table));
        if let (Some(&(first_p, _)), Some(first_q)) = (near.first(), near.iter().map(|d| d.1).min())
        {
            if first_q > q || q - first_q > 4096 {
                return wrong("the parts of a table jump are not together any more");
            }
            let parts = (first_q.get() + 4..=q.get()).step_by(4);
            self.closed.extend(parts.map(OutputAddr::new));
            self.check_scratch(old, &near, first_p, p, q)?;
        }
        let fixed = |elf: &crate::files::elf::Elf<'_>, at| {
            elf.load_at(at).is_some_and(|l| !l.is_writable())
        };
        if !fixed(self.cx.input, old.table) || !fixed(self.cx.output, new.table) {
            return wrong("a jump table can be written to");
        }
        let mut pairs: Vec<(u64, u64)> = Vec::new();
        let mut seen: FxHashSet<(u64, u64)> = FxHashSet::default();
        for i in 0..old.count.unwrap_or(UNBOUNDED) {
            let Some(from) = Self::entry(self.cx.input, old, i).map(|e| old.target(e)) else {
                break;
            };
            if old.count.is_none() && !self.f.in_old(InputAddr::new(from)) {
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
        // Only where a part differs do its registers hold something else.
        let scratch = if near.is_empty() {
            0
        } else {
            old.scratch | new.scratch
        };
        for (from, to) in pairs {
            let (from, to) = (InputAddr::new(from), OutputAddr::new(to));
            if !self.dead(from, scratch, &[]) {
                let text = "a register in which a changed table jump was made is used where the jump leads";
                return fail(Failure::new(Check::JumpTable, text).at(from, to));
            }
            self.relate_indirect(from, to)?;
        }
        Ok(())
    }

    /// Addresses formed far from their jumps that differ: nothing may read them but table jumps that were
    /// compared with the new address.
    pub(super) fn check_formed(&mut self) -> Step {
        let mut far: Vec<InputAddr> = self
            .dispatches
            .iter()
            .flat_map(|d| &d.formed)
            .map(|p| InputAddr::new(*p))
            .collect();
        far.retain(|p| self.deferred.contains_key(p));
        far.sort_unstable();
        far.dedup();
        for p in far {
            let q = self.deferred.get(&p).copied().unwrap_or(p.kept());
            let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(p, q));
            let users: Vec<&Dispatch> = self
                .dispatches
                .iter()
                .filter(|d| d.formed.contains(&p.get()))
                .collect();
            let mut tables: Vec<Option<(u64, u64)>> = users
                .iter()
                .map(|d| self.compared.get(&InputAddr::new(d.jump())).copied())
                .collect();
            tables.dedup();
            if !matches!(tables.as_slice(), [Some(_)]) {
                return wrong("a table's address changed, and not all jumps through it are known");
            }
            let allowed: Vec<u64> = users
                .iter()
                .flat_map(|d| d.formed.iter().chain(&d.parts))
                .copied()
                .collect();
            let written = self
                .old_bytes(p)
                .and_then(A::touched)
                .map_or(0, |t| t.kills);
            if written == 0 || !self.dead(p + A::STEP as u64, written, &allowed) {
                return wrong(
                    "a table's address changed, and something else than jumps through it uses it",
                );
            }
        }
        Ok(())
    }

    /// Nothing but parts may read what parts that differ leave in registers, up to the jump.
    fn check_scratch(
        &mut self,
        old: &Dispatch,
        deferred: &[Pair],
        first: InputAddr,
        p: InputAddr,
        q: OutputAddr,
    ) -> Step {
        let mut changed = 0u32;
        for at in (first.get()..p.get()).step_by(4).map(InputAddr::new) {
            let wrong = |what: &str| fail(Failure::new(Check::JumpTable, what).at(at, q));
            let bytes = self.old_bytes(at).unwrap_or(b"");
            let (Some(touched), Some(insn)) = (A::touched(bytes), A::decode(bytes, at.get()))
            else {
                return wrong("an instruction before a changed table jump is not understood");
            };
            let part = old.parts.contains(&at.get());
            if !part && touched.reads & changed != 0 {
                return wrong(
                    "an instruction reads a register in which a changed table jump is made",
                );
            }
            let before = changed;
            changed &= !touched.kills;
            // What is made of a changed value is changed.
            if part && (touched.reads & before != 0 || deferred.iter().any(|d| d.0 == at)) {
                changed |= touched.kills;
            }
            match insn.flow {
                Flow::Next | Flow::Nothing => {}
                Flow::Branch { target, .. } if self.dead(InputAddr::new(target), changed, &[]) => {}
                _ => return wrong("control leaves in the middle of a changed table jump"),
            }
        }
        Ok(())
    }
}

//! Tables of labels that are read by other code than a load with another displacement: on AArch64, and on x86-64 where
//! the program is not at a fixed address.

use postlink_isa::{Code, Flow, Insn, Isa, LabelLoad, RegSet, TableLoad};

use super::super::build::FunctionCode;
use super::{ENTRIES, Fallback, Form, OwnEntry, OwnTable, Search};

/// Between a load of a label and its jump are not more instructions.
const BETWEEN: usize = 60;

/// Whether there is code that loads an entry of a table.
pub(super) fn is_loaded<I: Isa>(code: &FunctionCode<'_, '_>, table: &OwnTable) -> bool {
    let Some(how) = table.labels else {
        return true;
    };
    let bytes = code.program.elf.bytes_at(table.load, table.len.into());
    let mut unused: Code<()> = Code::default();
    let guarded = table.base_guard.is_some();
    let scratch = matches!(how, LabelLoad::Scratch(_));
    let loads = |bytes| I::put_label_load(&mut unused, bytes, how, table.width == 8, ());
    (scratch || !guarded) && bytes.is_some_and(loads)
}

impl Search<'_, '_> {
    /// Tables of labels of loads whose base is not known, as it was on the stack: the one that all others read.
    pub(super) fn guarded_tables<I: Isa>(
        &self,
        unknown: &[(usize, u32, u64)],
        tables: &[OwnTable],
    ) -> Vec<OwnTable> {
        let mut of_labels = tables.iter().filter(|t| t.labels.is_some());
        let Some(table) = of_labels.next().map(|t| t.table) else {
            return Vec::new();
        };
        if of_labels.any(|t| t.table != table) {
            return Vec::new();
        }
        let program = self.code.program;
        let guarded = unknown.iter().filter_map(|&(jump, load, most)| {
            let (at, form) = self.loads[load as usize];
            let Form::Load(shape) = form else {
                return None;
            };
            let insn = &self.code.insns[at];
            let enters = shape.width == 8
                && !program.may_be_overwritten(insn.addr)
                && !program.is_far::<I>(insn.addr);
            let enters = enters.then_some((table, most))?;
            let found = self.labels::<I>((jump, at), shape, enters, true)?;
            let mut unused: Code<()> = Code::default();
            let base = found.base_guard?;
            let fits = I::put_base_guard(&mut unused, base, found.scratch?, (), ());
            fits.then_some(found)
        });
        guarded.collect()
    }

    /// A table of labels that a load reads which has no displacement: instruction `load`, for that at `jump`.
    /// `guarded`: its base is not known, and is compared.
    pub(super) fn labels<I: Isa>(
        &self,
        (jump, load): (usize, usize),
        shape: TableLoad,
        (table, most): (u64, u64),
        guarded: bool,
    ) -> Option<OwnTable> {
        let program = self.code.program;
        if most >= ENTRIES {
            return None;
        }
        let changed = RegSet(shape.to.map_or(0, |to| 1 << to));
        let entry = |i: u64| {
            let place = table.wrapping_add(8 * i);
            let to = program.refs.lasting_address(program.elf, place);
            let leads = |to: &u64| {
                let at = self.index.get(to);
                at.is_some_and(|at| !self.may_read::<I>(*at, changed))
            };
            OwnEntry {
                stored: to.unwrap_or(0),
                target: to.unwrap_or(0),
                inside: to.as_ref().is_some_and(leads),
                behind: false,
                restores: false,
                block: None,
            }
        };
        let entries: Vec<OwnEntry> = (0..=most).map(entry).collect();
        if !entries.iter().any(|e| e.inside) {
            return None;
        }
        let leaves = entries.iter().any(|e| !e.inside);
        let fallback = self.fallback::<I>((jump, load), shape);
        // A fallback loads its entry later than the load does.
        let mut places = (0..=most).map(|i| table.wrapping_add(8 * i));
        if !places.all(|place| program.refs.lasts(place)) {
            return None;
        }
        // The entries of the old table that fallbacks load are where a load can have them.
        if leaves && (fallback.is_none() || !table.is_multiple_of(8)) {
            return None;
        }
        let insn = &self.code.insns[load];
        let bytes = self.code.bytes(insn);
        let scratch = self.scratch::<I>(load, leaves || guarded);
        let width = if program.refs.fixed { 8 } else { 4 };
        let fits = |how: &LabelLoad| {
            let mut unused: Code<()> = Code::default();
            I::put_label_load(&mut unused, bytes, *how, width == 8, ())
        };
        let scratch = scratch.filter(|register| fits(&LabelLoad::Scratch(*register)));
        let mut formed = [LabelLoad::Displaced, LabelLoad::Formed].into_iter();
        let formed = formed.find(|how| !guarded && fits(how));
        let lead = formed.map_or(0, |how| {
            let mut put: Code<()> = Code::default();
            I::put_label_load(&mut put, bytes, how, width == 8, ());
            put.fixups.first().map_or(0, |f| f.at as u8)
        });
        let labels = formed.or(scratch.map(LabelLoad::Scratch));
        Some(OwnTable {
            load: insn.addr,
            len: insn.len,
            jump: self.code.insns[jump].addr,
            index: shape.index,
            disp: 0,
            lead,
            table,
            base: 0,
            width,
            relative: false,
            // It may be that its base can hold another table's address.
            labels: labels.or(Some(LabelLoad::Formed)),
            scratch,
            fallback: fallback.filter(|_| leaves),
            restored: None,
            guarded,
            base_guard: shape.base.filter(|_| guarded),
            entries,
        })
    }

    /// A register of linkers' stubs that nothing reads behind a load before it is overwritten; with `leaves`, in which
    /// nothing is where old code goes on, as no instruction of the function has to do with it.
    pub(super) fn scratch<I: Isa>(&self, load: usize, leaves: bool) -> Option<u8> {
        let code = self.code;
        let compiled = |range: &(u64, u64)| {
            let piece = code.program.piece_at(range.0);
            piece.is_some_and(|piece| piece.fde.is_some())
        };
        if !code.ranges.iter().all(compiled) {
            return None;
        }
        let has_to_do = |i: &Insn, set: RegSet| {
            let effects = I::effects(code.bytes(i), i);
            let calls = matches!(i.flow, Flow::Call { .. } | Flow::IndirectCall);
            effects.reads.meets(set) || !calls && effects.kills.meets(set)
        };
        let registers = (0..32u8).filter(|r| I::STUB_SCRATCH.meets(RegSet(1 << r)));
        let mut registers = registers.map(|r| (r, RegSet(1 << r)));
        let untouched = |set: RegSet| !code.insns.iter().any(|i| has_to_do(i, set));
        let untouched = registers.clone().find(|(_, set)| untouched(*set));
        let dead = |set: RegSet| {
            let next = self.code.insns.get(load + 1);
            let straight = next.is_some_and(|n| n.addr == self.code.insns[load].end());
            !leaves && straight && !self.may_read::<I>(load + 1, set)
        };
        let found = untouched.or_else(|| registers.find(|(_, set)| dead(*set)));
        found.map(|f| f.0)
    }

    /// What goes on in old code where an index is of no label: the entry is loaded again, and jumped to as there.
    pub(super) fn fallback<I: Isa>(
        &self,
        (jump, load): (usize, usize),
        shape: TableLoad,
    ) -> Option<Fallback> {
        let insns = self.code.insns;
        let to = shape.to?;
        // From the load to the jump, over direct jumps as well.
        let next = |k: usize| match insns[k].flow {
            Flow::Next if k == load || self.values[k].writes >> to & 1 == 0 => {
                let on = k + 1 < insns.len() && insns[k + 1].addr == insns[k].end();
                on.then_some(k + 1)
            }
            Flow::Jump { target } => self.index.get(&target).copied(),
            _ => None,
        };
        let mut path = std::iter::successors(Some(load), |k| next(*k)).take(BETWEEN);
        let straight = path.any(|k| k == jump);
        let jumps = I::jump_register(self.code.bytes(&insns[jump]), &insns[jump]) == Some(to);
        let mut unused: Code<()> = Code::default();
        let fits = straight && jumps && I::put_label_fallback(&mut unused, to, (), None);
        fits.then_some(Fallback { to, base: None })
    }
}

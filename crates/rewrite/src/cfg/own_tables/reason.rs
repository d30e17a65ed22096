//! Why an indirect jump has no table of its own.

use postlink_isa::{Flow, Isa};

use super::super::build::FunctionCode;
use super::super::explained::JumpReason;
use super::flow::{Facts, Through};
use super::labels::is_loaded;
use super::{ENTRIES, Form, OwnTable, Search, has_label_loads, is_near, loads};

/// Why indirect jumps have no table of their own: by address of the jump, ascending.
pub(in crate::cfg) fn reasons<I: Isa>(
    code: &FunctionCode<'_, '_>,
    tables: &[OwnTable],
) -> Vec<(u64, JumpReason)> {
    let mut search = Search::new::<I>(code, loads::<I>(code));
    let edges = search.edges_of(tables);
    let facts = search.flow::<I>(&edges);
    search.edges = edges;
    let is_own = |at: u64| tables.iter().any(|t| t.jump == at);
    let jumps = (0..code.insns.len()).filter(|k| {
        let insn = &code.insns[*k];
        insn.flow == Flow::IndirectJump && !is_own(insn.addr)
    });
    jumps
        .map(|k| (code.insns[k].addr, search.reason::<I>(k, &facts)))
        .collect()
}

impl Search<'_, '_> {
    /// Why the jump at instruction `k` has no table of its own.
    pub(super) fn reason<I: Isa>(&self, k: usize, facts: &Facts) -> JumpReason {
        use postlink_elf::raw::SHF_WRITE;
        let insn = &self.code.insns[k];
        if I::HAS_LABEL_LOADS && (!is_near(self.code) || self.code.program.is_far::<I>(insn.addr)) {
            return JumpReason::TooFar;
        }
        // A jump that a load leads to, but of which no base is known, is one of a table.
        let through = facts.jumps.get(&k).copied();
        let Some(Through { load, base, .. }) = through.flatten() else {
            return match self.table_jump_before(k) {
                Some(first) if self.whole_jump(first).is_some() => JumpReason::BaseUnknown,
                Some(_) => JumpReason::EnteredBetween,
                None if through.is_none() => JumpReason::NotReached,
                None => JumpReason::NoTable,
            };
        };
        let Some(mut seen) = facts.seen.get(&load).copied() else {
            return JumpReason::NoTable;
        };
        // Two loads may lead to it.
        let loads = through.flatten().into_iter().flat_map(Through::loads);
        for other in loads.filter_map(|load| facts.seen.get(&load)) {
            seen.base = seen.base.filter(|base| other.base == Some(*base));
            seen.most = seen.most.max(other.most);
        }
        let jumps = facts.jumps.values().flatten();
        let leads = |j: &&Through| j.loads().any(|l| l == load);
        if facts.spoilt.contains(&load) || jumps.filter(leads).count() > 1 {
            return JumpReason::EntryReadElsewhere;
        }
        let form = self.loads[load as usize].1;
        let disp = match form {
            Form::Load(load) => load.disp,
            Form::Jump(_) => 0,
        };
        let Some(table) = seen.base.map(|base| base.wrapping_add(disp)) else {
            return JumpReason::BaseUnknown;
        };
        let section = self.code.program.elf.section_at(table).map(|s| s.1);
        let of_labels = form.width() == 8 && has_label_loads::<I>(self.code);
        if section.is_none_or(|s| !of_labels && s.flags & SHF_WRITE != 0) {
            return JumpReason::TableWritable;
        }
        let room = section.map_or(0, |s| (s.end() - table) / form.width());
        if seen.most >= ENTRIES.min(if of_labels { ENTRIES } else { room }) {
            return JumpReason::IndexUnbounded;
        }
        match self.table::<I>(k, load, base, table, seen.most, &[]) {
            Some(found) if is_loaded::<I>(self.code, &found) => JumpReason::OtherJump,
            Some(_) => JumpReason::NoRegister,
            None => JumpReason::EntryNotFollowed,
        }
    }

    /// Where straight code begins that goes through a table and ends with that jump.
    pub(super) fn table_jump_before(&self, k: usize) -> Option<usize> {
        let ends = |form: &Form, first: usize| match form {
            Form::Jump(jump) => first + usize::from(jump.count) - 1 == k,
            Form::Load(_) => false,
        };
        let found = self.loads.iter().find(|(first, form)| ends(form, *first));
        found.map(|l| l.0)
    }
}

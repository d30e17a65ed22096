//! Faults in jump tables of new code's own, in the loads that read them, in guards of their indexes, and in what is
//! claimed of them.

use super::{Edit, Faults, Kind};
use crate::addr::OutputAddr;
use crate::arch::Arch;
use crate::arch::x86_64::X86_64;
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::OwnTable;

impl Faults<'_> {
    pub(super) fn own_table_edits(&self, kind: Kind) -> Vec<Edit> {
        let functions = self.claim.functions.iter().enumerate();
        let all: Vec<(usize, usize, OwnTable)> = functions
            .flat_map(|(f, m)| m.tables.iter().enumerate().map(move |(n, t)| (f, n, *t)))
            // What was not reached is not read.
            .filter(|(_, _, t)| self.site_at(t.load.1.get()).is_some())
            .collect();
        let each = all.iter();
        match kind {
            Kind::OwnTableMoved => each
                .filter_map(|t| self.placed(*t, t.2.new.get() + 4))
                .collect(),
            Kind::OwnTableShared => {
                let others = |t: &(usize, usize, OwnTable)| {
                    let mut others = all.iter().filter(|o| o.2.new != t.2.new);
                    others.find(|o| o.2.entries >= t.2.entries && o.2.wide == t.2.wide)
                };
                each.filter_map(|t| self.placed(*t, others(t)?.2.new.get()))
                    .collect()
            }
            Kind::OwnTableWritable => each.filter_map(|t| self.written(*t)).collect(),
            Kind::OwnEntrySwapped | Kind::OwnEntryOff | Kind::OwnEntryToOtherFunction => {
                each.filter_map(|t| self.entry_edit(kind, &t.2)).collect()
            }
            Kind::DisplacementOff => each
                .filter_map(|t| {
                    let (at, value) = self.displacement(&t.2)?;
                    let other = value.wrapping_add(4).to_le_bytes();
                    Some(Edit::new(format!("at {:#x}", t.2.load.1), at, &other))
                })
                .collect(),
            _ => each
                .filter_map(|t| self.index_guard_edit(kind, &t.2))
                .collect(),
        }
    }

    /// Where the displacement of the load is in the file, and its value.
    fn displacement(&self, table: &OwnTable) -> Option<(usize, u32)> {
        let site = self.site_at(table.load.1.get())?;
        let at = site.at + usize::from(site.insn.len).checked_sub(4)?;
        Some((at, u32_in(self.output.data, at)?))
    }

    /// Claim and load say that a table is elsewhere.
    fn placed(&self, (f, n, table): (usize, usize, OwnTable), to: u64) -> Option<Edit> {
        let mut claim = self.claim.clone();
        claim.functions.get_mut(f)?.tables.get_mut(n)?.new = OutputAddr::new(to);
        let (at, value) = self.displacement(&table)?;
        let further = to.wrapping_sub(table.new.get()) as u32;
        let mut edit = self.claiming(&claim, format!("at {:#x} to {to:#x}", table.load.1))?;
        let value = value.wrapping_add(further).to_le_bytes();
        edit.changes.push((at, value.to_vec()));
        Some(edit)
    }

    /// A table is among the program's data.
    fn written(&self, table: (usize, usize, OwnTable)) -> Option<Edit> {
        let range = table.2.range();
        let loads = self.output.loads().iter();
        let mut writable = loads.filter(|l| l.is_writable() && l.file_size >= range.len() + 8);
        let to = writable.next_back()?.addr.next_multiple_of(8);
        let mut edit = self.placed(table, to)?;
        let bytes = self.output.bytes(range.start, range.len())?.to_vec();
        edit.changes.push((self.offset(to)?, bytes));
        Some(edit)
    }

    fn entry_edit(&self, kind: Kind, table: &OwnTable) -> Option<Edit> {
        let width = table.width() as usize;
        let at = self.offset(table.new.get())?;
        let from = usize::try_from(table.old.get()).ok()?;
        let entry = |i: usize| self.file(at + i * width, width);
        let old = |i: usize| self.input.bytes((from + i * width) as u64, width as u64);
        let entries = 0..table.entries as usize;
        // One that leads to new code.
        let i = entries.clone().find(|i| old(*i) != Some(entry(*i)))?;
        let what = format!("entry {i} of the table at {:#x}", table.new);
        let number = |bytes: &[u8]| {
            if table.wide {
                u64_in(bytes, 0)
            } else {
                u32_in(bytes, 0).map(u64::from)
            }
        };
        let stored = |value: u64| value.to_le_bytes().get(..width).map(<[u8]>::to_vec);
        let changes = match kind {
            Kind::OwnEntrySwapped => {
                let other = entries.clone().find(|j| *j > i && entry(*j) != entry(i))?;
                vec![
                    (at + i * width, entry(other).to_vec()),
                    (at + other * width, entry(i).to_vec()),
                ]
            }
            Kind::OwnEntryOff => {
                vec![(at + i * width, stored(number(entry(i))?.wrapping_add(1))?)]
            }
            _ => {
                let mut others = self.claim.functions.iter();
                let other = others.find(|f| !f.in_new(table.load.1))?;
                let value = other.new_entry().get().wrapping_sub(table.base);
                vec![(at + i * width, stored(value)?)]
            }
        };
        Some(Edit { what, changes })
    }

    /// A guard that is another, or none.
    fn index_guard_edit(&self, kind: Kind, table: &OwnTable) -> Option<Edit> {
        let load = table.load.1.get();
        // With a number of one byte, or of four.
        let (start, number) = [(10, 1), (13, 4)].into_iter().find_map(|(len, number)| {
            let start = load.checked_sub(len)?;
            let bytes = self.output.bytes(start, len)?;
            let guard = X86_64::index_guard(bytes, start).filter(|_| table.guarded)?;
            (u64::from(guard.len) == len).then_some((start, number))
        })?;
        let at = self.offset(start)?;
        let byte = |i: usize| self.output.data.get(at + i).copied();
        let branch = 3 + number;
        let (place, bytes) = match kind {
            Kind::GuardBoundUp => (3, vec![byte(3)?.wrapping_add(1)]),
            Kind::GuardSigned => (branch + 1, vec![0x8f]),
            Kind::GuardNarrow => (0, vec![byte(0)? & !8]),
            Kind::GuardOtherRegister => (2, vec![byte(2)? ^ 1]),
            Kind::GuardTargetOff => (branch + 2, vec![byte(branch + 2)?.wrapping_add(1)]),
            Kind::IndexGuardLost => (0, vec![0x90; branch + 6]),
            _ => return None,
        };
        Some(Edit::new(format!("at {start:#x}"), at + place, &bytes))
    }
}

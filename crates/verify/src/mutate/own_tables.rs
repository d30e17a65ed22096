//! Faults in jump tables of new code's own, in the loads that read them, in guards of their indexes, and in what is
//! claimed of them.

use super::{Edit, Faults, Kind};
use crate::addr::OutputAddr;
use crate::arch::Arch;
use crate::arch::aarch64::word;
use crate::arch::x86_64::X86_64;
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::OwnTable;

impl Faults<'_> {
    pub(super) fn own_table_edits(&self, kind: Kind) -> Vec<Edit> {
        let functions = self.claim.functions.iter().enumerate();
        let all: Vec<(usize, usize, OwnTable)> = functions
            .flat_map(|(f, m)| m.tables.iter().enumerate().map(move |(n, t)| (f, n, *t)))
            .filter(|(_, _, t)| !self.is_of_labels(t))
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
                    let to = t.2.new.get().wrapping_add(4);
                    let changes = self.directed(&t.2, to)?;
                    let what = format!("at {:#x}", t.2.load.1);
                    Some(Edit { what, changes })
                })
                .collect(),
            Kind::OwnTableShort | Kind::OwnBaseOff => each
                .filter_map(|(f, n, t)| {
                    let mut claim = self.claim.clone();
                    let table = claim.functions.get_mut(*f)?.tables.get_mut(*n)?;
                    match kind {
                        Kind::OwnTableShort => {
                            table.entries = t.entries.checked_sub(1).filter(|n| *n > 0)?;
                        }
                        _ => table.base = t.base.wrapping_add(4),
                    }
                    self.claiming(&claim, format!("at {:#x}", t.load.1))
                })
                .collect(),
            Kind::RestoredTargetOff
            | Kind::RestoredTargetRegister
            | Kind::RestoredDistanceOff
            | Kind::RestoredDistanceRegister
            | Kind::RestoredElsewhere => each
                .filter_map(|t| self.restored_edit(kind, &t.2))
                .collect(),
            _ if self.arm => each.filter_map(|t| self.word_edit(kind, &t.2)).collect(),
            _ => each
                .filter_map(|t| self.index_guard_edit(kind, &t.2))
                .collect(),
        }
    }

    /// An instruction of a whole jump through a table that is another.
    fn word_edit(&self, kind: Kind, table: &OwnTable) -> Option<Edit> {
        // adrp, add, ldrsw, add, br
        let at = self.site_at(table.load.1.get())?.at;
        let old = |k: usize| word(self.output.data.get(at + 4 * k..)?);
        let load = old(2)?;
        let named = [load & 31, load >> 5 & 31, load >> 16 & 31, old(3)? & 31];
        let other = (0..29).find(|r| !named.contains(r))?;
        let (k, new) = match kind {
            // A half-word, or a word without its sign.
            Kind::OwnEntryWidth => {
                let others = [load & !(3 << 30) | 1 << 30, load & !(3 << 22) | 1 << 22];
                (2, others.get(at / 4 % 2).copied()?)
            }
            Kind::OwnIndexRegister => (2, load & !(31 << 16) | other << 16),
            Kind::OwnIndexExtended => (2, load ^ 1 << 13),
            Kind::OwnIndexNotScaled => (2, load & !(1 << 12)),
            // In both the load and the sum.
            Kind::OwnEntryRegister => {
                let sum = old(3)? & !(31 << 16) | other << 16;
                let load = load & !31 | other;
                let both = [load.to_le_bytes(), sum.to_le_bytes()].concat();
                let what = format!("at {:#x}", table.load.1);
                return Some(Edit::new(what, at + 8, &both));
            }
            Kind::OwnSumOff => (3, old(3)? | 1 << 10),
            Kind::OwnJumpElsewhere => (4, old(4)? & !(31 << 5) | other << 5),
            _ => return None,
        };
        let what = format!("word {k} at {:#x}", table.load.1);
        Some(Edit::new(what, at + 4 * k, &new.to_le_bytes()))
    }

    /// What makes the load read a table that is elsewhere.
    fn directed(&self, table: &OwnTable, to: u64) -> Option<Vec<(usize, Vec<u8>)>> {
        if !self.arm {
            let (at, value) = self.displacement(table)?;
            let further = to.wrapping_sub(table.new.get()) as u32;
            return Some(vec![(
                at,
                value.wrapping_add(further).to_le_bytes().to_vec(),
            )]);
        }
        let site = self.site_at(table.load.1.get())?;
        let words = self.output.data.get(site.at..)?;
        let (page, add) = (word(words)?, word(words.get(4..)?)?);
        let pages = ((to >> 12).wrapping_sub(site.addr >> 12)) as u32;
        let page = page & !0x60ff_ffe0 | (pages & 3) << 29 | (pages >> 2 & 0x7ffff) << 5;
        let add = add & !(0xfff << 10) | (to as u32 & 0xfff) << 10;
        let both = [page.to_le_bytes(), add.to_le_bytes()].concat();
        Some(vec![(site.at, both)])
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
        let mut edit = self.claiming(&claim, format!("at {:#x} to {to:#x}", table.load.1))?;
        edit.changes.extend(self.directed(&table, to)?);
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
        // One that leads to new code: of those that count from their own table all do.
        let i = entries
            .clone()
            .find(|i| self.arm || old(*i) != Some(entry(*i)))?;
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
                let by = if self.arm { 4 } else { 1 };
                vec![(at + i * width, stored(number(entry(i))?.wrapping_add(by))?)]
            }
            _ => {
                let mut others = self.claim.functions.iter();
                let other = others.find(|f| !f.in_new(table.load.1))?;
                let base = if self.arm {
                    table.new.get()
                } else {
                    table.base
                };
                let value = other.new_entry().get().wrapping_sub(base);
                vec![(at + i * width, stored(value)?)]
            }
        };
        Some(Edit { what, changes })
    }

    /// What gives registers what they held is another: `mov D,distance`, if it is there, `lea T,[rip+target]`, and a
    /// jump.
    fn restored_edit(&self, kind: Kind, table: &OwnTable) -> Option<Edit> {
        const MOV: usize = 7;
        const LEA: usize = 7;
        if self.arm || table.wide {
            return None;
        }
        let words = self.output.bytes(table.new.get(), table.range().len())?;
        let old = self.input.bytes(table.old.get(), table.range().len())?;
        let distance_of = matches!(
            kind,
            Kind::RestoredDistanceOff | Kind::RestoredDistanceRegister
        );
        (0..table.entries as usize).find_map(|i| {
            let target = |words: &[u8]| {
                let word = u32_in(words, 4 * i)? as i32;
                Some(table.base.wrapping_add_signed(word.into()))
            };
            let (from, to) = (target(old)?, target(words)?);
            let at = self.offset(to)?;
            let bytes = self.output.data.get(at..at + MOV + LEA + 2)?;
            let is_mov = matches!(bytes, [0x48 | 0x49, 0xc7, 0xc0..=0xc7, ..]);
            let lea = if is_mov { MOV } else { 0 };
            let [0x48 | 0x4c, 0x8d, modrm, ..] = bytes.get(lea..)? else {
                return None;
            };
            let end = to + (lea + LEA) as u64;
            let further = u32_in(bytes, lea + 3)? as i32;
            let forms = end.wrapping_add_signed(further.into()) == from && modrm & 0xc7 == 5;
            if !forms || distance_of && !is_mov {
                return None;
            }
            // In place of `rax` another, and the other way round.
            let other = |register: u8| if register == 0 { 3 } else { 0 };
            let (place, new) = match kind {
                Kind::RestoredTargetOff => (lea + 3, bytes.get(lea + 3)? ^ 1),
                Kind::RestoredTargetRegister => (lea + 2, 5 | other(modrm >> 3 & 7) << 3),
                Kind::RestoredDistanceOff => (3, bytes.get(3)? ^ 4),
                Kind::RestoredDistanceRegister => (2, 0xc0 | other(bytes.get(2)? & 7)),
                _ => {
                    let short = *bytes.get(lea + LEA)? == 0xeb;
                    let place = lea + LEA + 1;
                    let unlike = self.output.data.get(at + place)?.wrapping_sub(2);
                    (
                        place,
                        if short {
                            unlike
                        } else {
                            unlike.wrapping_sub(3)
                        },
                    )
                }
            };
            Some(Edit::new(format!("at {to:#x}"), at + place, &[new]))
        })
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

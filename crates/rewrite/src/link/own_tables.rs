//! Jump tables of new code's own ([`crate::cfg::OwnTable`]): their places and contents.
//!
//! They are in a section of constants, one after the other, in the order of the functions that could move. Those of a
//! function that was taken back keep their places, so that all others do. Tables of labels that no load with another
//! displacement reads come first, each at the beginning of a page, so that one instruction forms its address; all loads
//! of a function that have the same old one share it.

use postlink_elf::OutputAddr;
use postlink_elf::write::{NewKind, NewSection, Placed, Writer};

use postlink_isa::LABEL_TABLE;

use super::place::Placement;
use super::ready::{Ready, moving};
use crate::cfg::OwnTable;
use crate::error::Error;

/// Name of the section.
const SECTION: &str = ".rodata.postlink";

/// Where the tables are.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnTables {
    placed: Option<Placed>,
    /// By position of the function: each table's address.
    at: Vec<Vec<OutputAddr>>,
}

impl OwnTables {
    /// Gives all tables their places.
    pub fn place(ready: &[Ready], writer: &mut Writer<'_>) -> OwnTables {
        if !postlink_parallel::any(ready.len(), |i| !ready[i].own_tables.is_empty()) {
            return OwnTables::default();
        }
        let mut end = 0u64;
        let mut align = 8;
        let mut at: Vec<Vec<u64>> = ready.iter().map(|r| vec![0; r.own_tables.len()]).collect();
        // Those of labels begin pages: one after the other, so that all others are behind them without a gap.
        for labels in [true, false] {
            for (r, at) in ready.iter().zip(&mut at) {
                for (n, table) in r.own_tables.iter().enumerate() {
                    if table.is_formed() != labels {
                        continue;
                    }
                    let before = r.own_tables[..n].iter().position(|t| t.is_same(table));
                    if let Some(before) = before {
                        at[n] = at[before];
                        continue;
                    }
                    if labels {
                        align = LABEL_TABLE;
                        end = end.next_multiple_of(LABEL_TABLE);
                    }
                    end = end.next_multiple_of(u64::from(table.width));
                    at[n] = end;
                    end += table.size();
                }
            }
        }
        if end == 0 {
            return OwnTables::default();
        }
        let placed = writer.append_anywhere(NewSection {
            name: SECTION.to_owned(),
            kind: NewKind::ReadOnly,
            align,
            size: end,
        });
        let of = |own: Vec<u64>| own.into_iter().map(|a| placed.addr + a).collect();
        OwnTables {
            placed: Some(placed),
            at: at.into_iter().map(of).collect(),
        }
    }

    /// Address of the n-th table of the i-th function.
    pub fn at(&self, i: usize, n: usize) -> OutputAddr {
        let own = self.at.get(i).and_then(|own| own.get(n));
        own.copied().unwrap_or_default()
    }

    /// The displacement with which the load of that table reads it; its address, if that is formed for it.
    pub fn displacement(&self, r: &Ready, i: usize, n: u32) -> OutputAddr {
        let Some(table) = r.own_tables.get(n as usize) else {
            return OutputAddr::default();
        };
        if table.relative || table.is_formed() {
            return self.at(i, n as usize);
        }
        let further = self.at(i, n as usize).get().wrapping_sub(table.table);
        OutputAddr::new(table.disp.wrapping_add(further))
    }

    /// The address that the n-th addition of the i-th function forms.
    pub fn base(&self, r: &Ready, i: usize, n: u32) -> OutputAddr {
        let base = r.own_bases.get(n as usize);
        base.map_or(OutputAddr::default(), |b| self.at(i, b.table as usize))
    }
}

impl Placement {
    /// Where entry `k` of a table of the i-th function leads, which is of no label.
    fn fallback(&self, r: &Ready, i: usize, table: &OwnTable, k: u32) -> Option<OutputAddr> {
        let mut all = r.code.fallbacks.iter();
        let same = |n: u32| {
            r.own_tables
                .get(n as usize)
                .is_some_and(|t| t.is_same(table))
        };
        let &(_, _, fragment, offset) = all.find(|f| f.1 == k && same(f.0))?;
        let start = self.fragments[i].get(usize::from(fragment))?;
        Some(*start + u64::from(offset))
    }

    /// Where a restored entry `k` of the n-th table of the i-th function leads.
    fn restored(&self, r: &Ready, i: usize, n: usize, k: u32) -> Option<OutputAddr> {
        let mut all = r.code.fallbacks.iter();
        let &(_, _, fragment, offset) = all.find(|f| f.0 as usize == n && f.1 == k)?;
        let start = self.fragments[i].get(usize::from(fragment))?;
        Some(*start + u64::from(offset))
    }

    /// Fills in all tables.
    pub(super) fn fill_own_tables(
        &self,
        ready: &[Ready],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let Some(placed) = self.own_tables.placed else {
            return Ok(());
        };
        let too_far = || Error::internal("jump table entry out of reach");
        let contents = writer.contents(placed.id);
        for (i, r) in moving(ready) {
            for (n, table) in r.own_tables.iter().enumerate() {
                let own = self.own_tables.at(i, n);
                let mut at = (own - placed.addr) as usize;
                let base = table.counts_from(own.get());
                for (entry, k) in table.entries.iter().zip(0u32..) {
                    let value = match entry.block {
                        None if table.relative => return Err(too_far()),
                        None if table.labels.is_some() => {
                            let fallback = self.fallback(r, i, table, k).ok_or_else(too_far)?;
                            fallback.get().wrapping_sub(base)
                        }
                        None => entry.stored,
                        Some(_) if entry.restores => {
                            let restored = self.restored(r, i, n, k).ok_or_else(too_far)?;
                            restored.get().wrapping_sub(base)
                        }
                        Some(b) => self.block(ready, i, b).get().wrapping_sub(base),
                    };
                    let width = usize::from(table.width);
                    if width == 4 && (entry.block.is_some() || table.labels.is_some()) {
                        i32::try_from(value as i64).map_err(|_| too_far())?;
                    }
                    let place = contents.get_mut(at..at + width).ok_or_else(too_far)?;
                    place.copy_from_slice(&value.to_le_bytes()[..width]);
                    at += width;
                }
            }
        }
        Ok(())
    }
}

//! Places of new range and location lists, by set and section.

use std::collections::BTreeMap;

use super::Job;
use crate::Error;
use crate::contribution::{self, Growth};
use crate::sections::Section;
use crate::walk::{NewLists, Plan};

/// A kind of lists: each has a section for DWARF 2 to 4, and one for 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ranges,
    Locations,
}

impl Kind {
    fn of(self, plan: &mut Plan) -> &mut NewLists {
        match self {
            Kind::Ranges => &mut plan.ranges,
            Kind::Locations => &mut plan.locations,
        }
    }
}

/// Where each unit's new lists are.
#[derive(Default)]
pub(super) struct UnitLists {
    /// By unit: offset in the new section.
    pub at: Vec<u64>,
    /// By unit: index of its first new slot.
    pub first_slot: Vec<u64>,
}

/// Where all new lists are.
pub(super) struct Lists {
    pub ranges: UnitLists,
    pub locations: UnitLists,
}

impl Job<'_, '_> {
    /// Pass 5, for one kind of lists. Takes them out of the plans: those of all units are a large part of the memory.
    pub(super) fn lists(&mut self, kind: Kind, plans: &mut [Plan]) -> Result<UnitLists, Error> {
        let mut out = UnitLists {
            at: vec![0; plans.len()],
            first_slot: vec![0; plans.len()],
        };
        for set in 0..self.sets.len() {
            self.old_lists(set, kind, plans, &mut out);
            self.new_lists(set, kind, plans, &mut out)?;
        }
        Ok(out)
    }

    /// Lists of DWARF 2 to 4: all at the section's end.
    fn old_lists(&mut self, set: usize, kind: Kind, plans: &mut [Plan], out: &mut UnitLists) {
        let section = match kind {
            Kind::Ranges => Section::Ranges,
            Kind::Locations => Section::Loc,
        };
        let end = self.sets[set].sections.get(section).len() as u64;
        let mut behind = Vec::new();
        for (i, plan) in plans.iter_mut().enumerate() {
            let unit = &self.units[i];
            // Range lists of files of split units are in the program.
            let is_here = unit.set == set || kind == Kind::Ranges && set == 0;
            if unit.encoding.version >= 5 || !is_here || kind == Kind::Ranges && set > 0 {
                continue;
            }
            out.at[i] = end + behind.len() as u64;
            append(&mut behind, std::mem::take(&mut kind.of(plan).bytes));
        }
        if !behind.is_empty() {
            self.changes[set].get_mut(section).push(end..end, &behind);
        }
    }

    /// Lists of DWARF 5.
    fn new_lists(
        &mut self,
        set: usize,
        kind: Kind,
        plans: &mut [Plan],
        out: &mut UnitLists,
    ) -> Result<(), Error> {
        let shared = &self.sets[set];
        let (new, contributions) = match kind {
            Kind::Ranges => (Section::Rnglists, &shared.rnglists),
            Kind::Locations => (Section::Loclists, &shared.loclists),
        };
        let here: Vec<usize> = (0..self.units.len())
            .filter(|i| self.units[*i].set == set && self.units[*i].encoding.version == 5)
            .collect();
        // Places are relative to where the lists of their contribution, or the section's end, will be.
        let mut growths: BTreeMap<usize, Growth> = BTreeMap::new();
        let mut alone = Vec::new();
        for &i in &here {
            let lists = kind.of(&mut plans[i]);
            let bytes = std::mem::take(&mut lists.bytes);
            if bytes.is_empty() && lists.slots.is_empty() {
                continue;
            }
            if let Some(home) = lists.home {
                let growth = growths.entry(home).or_default();
                let base = growth.lists.len() as u64;
                out.at[i] = base;
                let c = &contributions[home];
                out.first_slot[i] =
                    (c.lists - c.base) / u64::from(c.offset_size) + growth.new_slots.len() as u64;
                growth.slots.extend(
                    lists
                        .slots
                        .iter()
                        .map(|(index, at)| (index, base + u64::from(at))),
                );
                growth
                    .new_slots
                    .extend(lists.new_slots.iter().map(|at| base + at));
                append(&mut growth.lists, bytes);
            } else {
                alone.extend(contribution::new_header(bytes.len()));
                out.at[i] = alone.len() as u64;
                alone.extend(bytes);
            }
        }
        let section = shared.sections.get(new);
        let splices = self.changes[set].get_mut(new);
        let grown = growths.iter().map(|(home, growth)| {
            let c = &contributions[*home];
            growth.lists.len() + (c.lists - c.start) as usize + 8 * growth.new_slots.len()
        });
        splices.reserve(3 * growths.len() + 1, grown.sum::<usize>() + alone.len());
        let mut distances = BTreeMap::new();
        for (home, growth) in growths {
            let c = &contributions[home];
            let distance = contribution::grow(section, new.name(), c, growth, splices)?;
            distances.insert(home, distance);
            self.reading.done(c.lists - c.start);
        }
        let end = section.len() as u64;
        let mut alone_at = end;
        if !alone.is_empty() {
            splices.push(end..end, &alone);
            // Where old bytes stay in their places, nothing is in front of them but those.
            if !(self.behind && set == 0) {
                alone_at = splices.start_of(splices.len() - 1);
            }
        }
        self.settle(set, new);
        let splices = self.changes[set].get(new);
        let start = |home: usize| -> Option<u64> {
            Some(splices.shift(contributions[home].start)? + distances.get(&home)?)
        };
        for i in here {
            out.at[i] += match kind.of(&mut plans[i]).home {
                Some(home) => start(home).unwrap_or(0),
                None => alone_at,
            };
        }
        Ok(())
    }
}

/// Appends lists, without a copy if they are the first.
fn append(to: &mut Vec<u8>, lists: Vec<u8>) {
    if to.is_empty() {
        *to = lists;
    } else {
        to.extend(lists);
    }
}

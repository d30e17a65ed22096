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
    fn of(self, plan: &Plan) -> &NewLists {
        match self {
            Kind::Ranges => &plan.ranges,
            Kind::Locations => &plan.locations,
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
    /// Pass 5, for one kind of lists.
    pub(super) fn lists(&mut self, kind: Kind, plans: &[Plan]) -> Result<UnitLists, Error> {
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
    fn old_lists(&mut self, set: usize, kind: Kind, plans: &[Plan], out: &mut UnitLists) {
        let section = match kind {
            Kind::Ranges => Section::Ranges,
            Kind::Locations => Section::Loc,
        };
        let end = self.sets[set].sections.get(section).len() as u64;
        let mut behind = Vec::new();
        for (i, plan) in plans.iter().enumerate() {
            let unit = &self.units[i];
            // Range lists of files of split units are in the program.
            let is_here = unit.set == set || kind == Kind::Ranges && set == 0;
            if unit.encoding.version >= 5 || !is_here || kind == Kind::Ranges && set > 0 {
                continue;
            }
            let lists = kind.of(plan);
            out.at[i] = end + behind.len() as u64;
            behind.extend_from_slice(&lists.bytes);
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
        plans: &[Plan],
        out: &mut UnitLists,
    ) -> Result<(), Error> {
        let shared = &self.sets[set];
        let (new, contributions) = match kind {
            Kind::Ranges => (Section::Rnglists, &shared.rnglists),
            Kind::Locations => (Section::Loclists, &shared.loclists),
        };
        let here = |(i, _): &(usize, &Plan)| {
            self.units[*i].set == set && self.units[*i].encoding.version == 5
        };
        // Places are relative to where the lists of their contribution, or the section's end, will be.
        let mut growths: BTreeMap<usize, Growth> = BTreeMap::new();
        let mut alone = Vec::new();
        for (i, plan) in plans.iter().enumerate().filter(here) {
            let lists = kind.of(plan);
            if lists.bytes.is_empty() && lists.slots.is_empty() {
                continue;
            }
            if let Some(home) = lists.home {
                let growth = growths.entry(home).or_default();
                let base = growth.lists.len() as u64;
                out.at[i] = base;
                let c = &contributions[home];
                out.first_slot[i] =
                    (c.lists - c.base) / u64::from(c.offset_size) + growth.new_slots.len() as u64;
                growth
                    .slots
                    .extend(lists.slots.iter().map(|(index, at)| (*index, base + at)));
                growth
                    .new_slots
                    .extend(lists.new_slots.iter().map(|at| base + at));
                growth.lists.extend_from_slice(&lists.bytes);
            } else {
                alone.extend(contribution::new_header(lists.bytes.len()));
                out.at[i] = alone.len() as u64;
                alone.extend_from_slice(&lists.bytes);
            }
        }
        let section = shared.sections.get(new);
        let splices = self.changes[set].get_mut(new);
        let mut distances = BTreeMap::new();
        for (home, growth) in &growths {
            let distance =
                contribution::grow(section, new.name(), &contributions[*home], growth, splices)?;
            distances.insert(*home, distance);
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
        let here = |(i, _): &(usize, &Plan)| {
            self.units[*i].set == set && self.units[*i].encoding.version == 5
        };
        for (i, plan) in plans.iter().enumerate().filter(here) {
            out.at[i] += match kind.of(plan).home {
                Some(home) => start(home).unwrap_or(0),
                None => alone_at,
            };
        }
        Ok(())
    }
}

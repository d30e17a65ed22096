//! Pools of addresses and tables of abbreviations, once all units that share them are known.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rayon::prelude::*;

use super::{Job, Passed};
use crate::Error;
use crate::abbrev::Additions;
use crate::finish;
use crate::names::at;
use crate::pool::{self, Contribution, Outcome, Reach, Resolved, User};
use crate::read::{put_at, put_uleb_padded};
use crate::report::Loss;
use crate::sections::Section;
use crate::unit::{Entries, Unit, Values};
use crate::walk::{Conversion, Plan, without_addresses};

/// A pool, and what uses it.
struct UsedPool<'a> {
    /// Its first entry.
    base: u64,
    /// Units that name it, by number.
    units: &'a [usize],
    /// What these want of it; nothing if that is decided already.
    users: Cow<'a, [User]>,
    reach: Reach,
}

impl Job<'_, '_> {
    /// Pass 3. Returns outcomes by unit and user, and units that cannot be written.
    pub(super) fn pools(
        &mut self,
        plans: &mut [Plan],
    ) -> Result<(Vec<Vec<Outcome>>, Passed), Error> {
        let mut of_pool: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (i, root) in self.roots.iter().enumerate() {
            if let Some(base) = root.addr_base.filter(|_| plans[i].uses_pool()) {
                of_pool.entry(base).or_default().push(i);
            }
        }
        let section = self.program().get(Section::Addr);
        let pools: Vec<UsedPool<'_>> = of_pool
            .par_iter()
            .map(|(base, units)| {
                let users: Cow<'_, [User]> = match units[..] {
                    [only] => Cow::Borrowed(&plans[only].users),
                    _ => {
                        let users = units.iter().flat_map(|i| plans[*i].users.iter().copied());
                        users.collect()
                    }
                };
                let decided = || match units[..] {
                    [only] => plans[only].pool.as_ref(),
                    _ => None,
                };
                let reach = match decided() {
                    Some(decided) => decided.reach.clone(),
                    None => {
                        let own = self.extents.of(section, *base);
                        Reach::new(section, *base, own, &users)
                    }
                };
                UsedPool {
                    base: *base,
                    units,
                    users,
                    reach,
                }
            })
            .collect();
        let failed = self.overlapping(&pools);
        if !failed.is_empty() {
            return Ok((Vec::new(), failed));
        }
        let mut resolved: Vec<_> = pools
            .par_iter()
            .map(|pool| {
                // Operations that are not known may name any entry.
                let is_known = |i: &usize| {
                    let lost = &plans[*i].report.losses;
                    !lost.contains_key(&Loss::UnknownOperation)
                };
                let all_known = pool.units.iter().all(is_known);
                let (base, own) = (pool.base, pool.reach.own);
                let resolved = pool::resolve(section, base, own, &pool.users, all_known);
                (base, own, resolved)
            })
            .collect();
        drop(pools);
        for ((.., (resolved, _)), units) in resolved.iter_mut().zip(of_pool.values()) {
            for i in units {
                if let Some(decided) = plans[*i].pool.take() {
                    *resolved = decided.resolved;
                }
            }
        }
        if self.behind {
            let failed = self.without_contribution(&resolved, &of_pool);
            if !failed.is_empty() {
                return Ok((Vec::new(), failed));
            }
        }
        let mut outcomes = vec![Vec::new(); plans.len()];
        let mut pools = BTreeMap::new();
        let all = resolved.into_iter().zip(of_pool.values());
        for ((base, own, (resolved, mut of_users)), units) in all {
            pools.insert(base, (own, resolved));
            for i in units {
                let rest = of_users.split_off(plans[*i].users.len());
                outcomes[*i] = std::mem::replace(&mut of_users, rest);
            }
        }
        pool::splice(pools, self.change(Section::Addr));
        self.settle(0, Section::Addr);
        let mut failed = Passed::new();
        for ((unit, plan), outcomes) in self.units.iter().zip(&mut *plans).zip(&outcomes) {
            if let Err(error) = fill_indexes(unit, plan, outcomes) {
                failed.insert((unit.set, unit.section, unit.start), error);
            }
        }
        plans
            .par_iter_mut()
            .zip(&outcomes)
            .enumerate()
            .try_for_each(|(i, (plan, outcomes))| {
                plan.users = Vec::new(); // they are of no use any more
                let (unit, root) = (&self.units[i], &self.roots[i]);
                let data = self.sets[unit.set].sections.get(unit.section);
                without_addresses((unit, root, self.tables.of(i)), data, plan, outcomes)
            })?;
        Ok((outcomes, failed))
    }

    /// Units whose pools overlap: an entry of one would be changed as that of another, or moved by its growth.
    fn overlapping(&self, pools: &[UsedPool<'_>]) -> Passed {
        let mut failed = Passed::new();
        let mut sorted: Vec<&UsedPool<'_>> = pools.iter().collect();
        sorted.sort_by_key(|pool| pool.reach.range.start);
        let mut last: Option<&UsedPool<'_>> = None;
        for pool in sorted {
            let range = &pool.reach.range;
            if let Some(before) = last.filter(|before| range.start < before.reach.range.end) {
                let other = &before.reach.range;
                let what = format!(
                    "entries at {:#x} to {:#x} overlap with others, at {:#x} to {:#x}",
                    range.start, range.end, other.start, other.end
                );
                let error = Error::new(Section::Addr.name(), range.start, what);
                for unit in before.units.iter().chain(pool.units) {
                    let unit = &self.units[*unit];
                    failed.insert((unit.set, unit.section, unit.start), error.clone());
                }
            }
            if last.is_none_or(|before| before.reach.range.end < range.end) {
                last = Some(pool);
            }
        }
        failed
    }

    /// Units of pools that change, and are no contribution that could be put behind the old ones.
    fn without_contribution(
        &self,
        resolved: &[(u64, Option<Contribution>, (Resolved, Vec<Outcome>))],
        of_pool: &BTreeMap<u64, Vec<usize>>,
    ) -> Passed {
        let mut failed = Passed::new();
        for ((base, own, (resolved, _)), units) in resolved.iter().zip(of_pool.values()) {
            if own.is_some() || !resolved.changes() {
                continue;
            }
            let what = "entries change that are in no contribution, and other units may use them";
            let error = Error::new(Section::Addr.name(), *base, what.to_owned());
            for unit in units.iter().map(|i| &self.units[*i]) {
                failed.insert((unit.set, unit.section, unit.start), error.clone());
            }
        }
        failed
    }

    /// Pass 4. Returns additions by table.
    pub(super) fn abbreviations(
        &mut self,
        plans: &mut [Plan],
    ) -> Result<BTreeMap<usize, Additions>, Error> {
        let numbered = plans
            .iter()
            .enumerate()
            .map(|(i, p)| (self.tables.of_unit[i], p));
        let demands = finish::demands(numbered.filter(|(_, p)| !p.conversions.is_empty()));
        let mut additions: BTreeMap<usize, Additions> = BTreeMap::new();
        for (t, demands) in &demands {
            additions.insert(
                *t,
                self.tables.list[*t].meet(demands, self.unit_with(*t).encoding),
            );
        }
        for (i, plan) in plans.iter_mut().enumerate() {
            if let Some(additions) = additions.get(&self.tables.of_unit[i]) {
                self.redefined_root(i, plan, additions)?;
                finish::give_slots(plan, additions);
            }
        }
        let mut order: Vec<usize> = additions.keys().copied().collect();
        order.sort_by_key(|t| (self.unit_with(*t).set, self.tables.list[*t].start));
        let mut end = (0, 0);
        for t in order {
            let (set, table) = (self.unit_with(t).set, &self.tables.list[t]);
            if (set, table.start) < end {
                let what = "abbreviations that are part of another table, or used by units of two versions";
                return Err(Error::new(Section::Abbrev.name(), table.start, what));
            }
            end = (set, table.end);
            let encoding = self.unit_with(t).encoding;
            let changes = self.changes[set].get_mut(Section::Abbrev);
            table.splice(&additions[&t], encoding, changes);
        }
        self.settle(0, Section::Abbrev);
        Ok(additions)
    }

    /// A root whose declaration is replaced for other units' sake: it gets a list of what it had.
    fn redefined_root(
        &self,
        i: usize,
        plan: &mut Plan,
        additions: &Additions,
    ) -> Result<(), Error> {
        // Most tables keep the declarations of roots, and roots of all units would have to be read again.
        let code = self.roots[i].code;
        if !additions.redefined.contains_key(&code) {
            return Ok(());
        }
        let (unit, table) = (&self.units[i], self.tables.of(i));
        let data = self.sets[unit.set].sections.get(unit.section);
        let at = (unit.root - unit.start) as u32;
        let Some(entry) = Entries::of(unit, table, data).next()? else {
            return Ok(());
        };
        let demand = additions.redefined.get(&entry.declaration.code);
        let (Some(demand), false) = (demand, plan.conversions.iter().any(|c| c.at == at)) else {
            return Ok(());
        };
        let (Some(low), Some(high)) = (entry.get(at::LOW_PC), entry.get(at::HIGH_PC)) else {
            return Ok(());
        };
        let values = Values {
            data,
            section: unit.section.name(),
            pool: pool::Pool {
                section: self.program().get(Section::Addr),
                base: self.roots[i].addr_base,
            },
        };
        let range = values.interval(low, high, 0)?;
        let list = plan.ranges.bytes.len() as u64;
        let ranges: &[_] = if range.start < range.end {
            std::slice::from_ref(&range)
        } else {
            &[]
        };
        crate::lists::put_ranges(
            &mut plan.ranges.bytes,
            unit.encoding,
            self.roots[i].base,
            ranges,
        );
        plan.conversions.push(Conversion {
            at,
            demand: *demand,
            list,
            entry: range.start,
            slot: None,
            first_len: 0,
        });
        Ok(())
    }

    /// A unit that uses a table.
    fn unit_with(&self, table: usize) -> &Unit {
        let of_unit = &self.tables.of_unit;
        // Tables are there because a unit uses them.
        &self.units[of_unit.iter().position(|t| *t == table).unwrap_or(0)]
    }
}

/// Writes the indexes of addresses that new lists name.
fn fill_indexes(unit: &Unit, plan: &mut Plan, outcomes: &[Outcome]) -> Result<(), Error> {
    let lists = &mut plan.locations;
    for (at, user) in &lists.indexes {
        let Some(Outcome::Index(index)) = outcomes.get(*user as usize) else {
            let what = "a list needs an address that its pool has no room for";
            return Err(Error::new(unit.section.name(), unit.start as u64, what));
        };
        let mut bytes = Vec::with_capacity(crate::lists::INDEX);
        put_uleb_padded(&mut bytes, u64::from(*index), crate::lists::INDEX);
        if !put_at(&mut lists.bytes, *at, &bytes) {
            let what = "a list without its index";
            return Err(Error::new(unit.section.name(), unit.start as u64, what));
        }
    }
    Ok(())
}

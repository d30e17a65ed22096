//! The address pool of a unit that shares it with none.
//!
//! Units of clang in DWARF 5 have a pool each, with an entry for each function, call and label. All that names entries
//! is known when the unit was walked, so what becomes of them is decided at once: what is left is which entries have
//! which new values, and little else, as most fields keep their indexes. All that named them would be the largest part
//! of what an update of a large program has in memory.

use super::{Conversion, Indexed, Number, Plan, Walk};
use crate::Error;
use crate::abbrev::Demand;
use crate::names::at;
use crate::pool::{self, Outcome, Reach, Resolved};
use crate::report::Loss;
use crate::unit::{Entries, Root, Unit};

/// What becomes of a pool that one unit names.
#[derive(Clone, Debug)]
pub(crate) struct OwnPool {
    pub reach: Reach,
    pub resolved: Resolved,
}

impl Walk<'_, '_> {
    /// Decides about the unit's pool, if no other unit names it and it has a header.
    pub(super) fn decide_own_pool(&mut self) -> Result<(), Error> {
        let has_header = self.unit.set == 0 && self.unit.encoding.version >= 5;
        let base = self.root.addr_base;
        let own = base.filter(|_| has_header && self.root.has_own_pool && self.plan.uses_pool());
        let Some(base) = own else {
            return Ok(());
        };
        let (section, plan) = (self.values.pool.section, &mut self.plan);
        let users = std::mem::take(&mut plan.users);
        let own = self.shared.pools.of(section, base);
        let reach = Reach::new(section, base, own, &users);
        // Operations that are not known may name any entry.
        let all_known = plan.report.count(Loss::UnknownOperation) == 0;
        let (resolved, outcomes) = pool::resolve(section, base, reach.own, &users, all_known);
        let of = (self.unit, self.root, self.table);
        without_addresses(of, self.values.data, plan, &outcomes)?;
        plan.settle(&outcomes);
        plan.pool = Some(OwnPool { reach, resolved });
        Ok(())
    }
}

impl Plan {
    /// Gives fields the indexes that were decided; most keep theirs.
    fn settle(&mut self, outcomes: &[Outcome]) {
        let report = &mut self.report;
        self.patches.retain_mut(|patch| {
            let Number::Index(user) = patch.number else {
                return true;
            };
            match outcomes.get(user as usize) {
                Some(Outcome::Index(index)) => {
                    patch.number = Number::Known((*index).into());
                    true
                }
                Some(Outcome::Lost) => {
                    report.lose(Loss::SharedIndex);
                    false
                }
                _ => false,
            }
        });
    }
}

/// Gives scopes that lost their index an abbreviation without one.
pub(crate) fn without_addresses(
    (unit, root, table): (&Unit, &Root, &crate::abbrev::Table<'_>),
    data: &[u8],
    plan: &mut Plan,
    outcomes: &[Outcome],
) -> Result<(), Error> {
    for scope in std::mem::take(&mut plan.indexed) {
        if outcomes.get(scope.user as usize) != Some(&Outcome::Without) {
            continue;
        }
        let (start, end) = match scope.is {
            Indexed::Conversion(number) => {
                let conversion = plan.conversions.get_mut(number as usize);
                conversion
                    .into_iter()
                    .for_each(|c| c.demand.without_address = true);
                continue;
            }
            Indexed::Interval { start, end } => (start, end),
        };
        let at = unit.start + scope.at as usize;
        let Some(entry) = Entries::at(unit, table, data, at).next()? else {
            continue;
        };
        let (Some(low), Some(high)) = (entry.get(at::LOW_PC), entry.get(at::HIGH_PC)) else {
            continue;
        };
        let list = plan.ranges.bytes.len() as u64;
        let interval = start..end;
        let ranges = if start < end {
            std::slice::from_ref(&interval)
        } else {
            &[]
        };
        crate::lists::put_ranges(&mut plan.ranges.bytes, unit.encoding, root.base, ranges);
        plan.report.range_lists += 1;
        plan.conversions.push(Conversion {
            at: scope.at,
            demand: Demand {
                not_root: true,
                code: entry.declaration.code,
                low: low.size as u8,
                high: high.size as u8,
                without_address: true,
                by_index: false,
                only_by_index: root.is_split && unit.encoding.version == 5,
            },
            list,
            entry: start,
            slot: None,
            first_len: end - start,
        });
    }
    Ok(())
}

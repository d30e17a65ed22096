//! Which units are updated: those that can be read, skeletons of split units together with these.

use std::collections::BTreeSet;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::Passed;
use crate::Error;
use crate::abbrev::Table;
use crate::forms::Encoding;
use crate::line;
use crate::pool::Extents;
use crate::progress;
use crate::sections::{Reading, Section, Sections};
use crate::unit::{Identity, Root, Stale, Unit};
use crate::walk::{self, Plan, Shared};

/// Units to update, what is known of them, and why others stay.
pub(super) struct Walked<'d> {
    pub units: Vec<Unit>,
    pub tables: Tables<'d>,
    pub roots: Vec<Root>,
    pub plans: Vec<Plan>,
    pub programs: Programs,
    /// Other units.
    pub stale: Vec<Stale>,
    /// If there are any, another attempt without them is needed.
    pub more: Passed,
}

/// Units whose headers and abbreviations can be read, those of files in which all can.
struct Found<'d> {
    units: Vec<Unit>,
    tables: Tables<'d>,
    stale: Vec<Stale>,
    /// Why a file stays.
    files: FxHashMap<usize, Error>,
    /// Units of files that turned out to be unreadable too late for this attempt.
    more: Passed,
}

fn find<'d>(sets: &[Shared<'_, 'd>], passed: &Passed) -> Found<'d> {
    let mut out = Found {
        units: Vec::new(),
        tables: Tables::default(),
        stale: Vec::new(),
        files: FxHashMap::default(),
        more: Passed::new(),
    };
    for ((set, ..), error) in passed.iter().filter(|(key, _)| key.0 > 0) {
        out.files.entry(*set).or_insert_with(|| error.clone());
    }
    for (set, shared) in sets.iter().enumerate() {
        for section in [Section::Info, Section::Types] {
            let (read, wrong) = Unit::read_all(shared.sections.get(section), section);
            out.units
                .extend(read.into_iter().map(|unit| Unit { set, ..unit }));
            for stale in wrong {
                out.pass(set, stale.why.clone(), || stale);
            }
        }
    }
    let units = std::mem::take(&mut out.units);
    for unit in units {
        match passed.get(&(unit.set, unit.section, unit.start)) {
            Some(error) => out.pass(unit.set, error.clone(), || unit.stale(error.clone())),
            None => out.units.push(unit),
        }
    }
    let (tables, wrong) = Tables::of_all(sets, &out.units);
    out.tables = tables;
    let units = std::mem::take(&mut out.units);
    let count = units.len();
    for unit in units {
        match wrong.iter().find(|w| w.0 == table_key(&unit)) {
            Some((_, error)) => {
                let what = format!("its abbreviations: {error}");
                let why = Error::new(unit.section.name(), unit.start as u64, what);
                out.pass(unit.set, why.clone(), || unit.stale(why));
            }
            None => out.units.push(unit),
        }
    }
    let files = &out.files;
    out.units.retain(|unit| !files.contains_key(&unit.set));
    if out.units.len() < count {
        out.tables = Tables::of_all(sets, &out.units).0;
    }
    out
}

impl Found<'_> {
    /// A unit stays: alone if it is the program's, else with its file.
    fn pass(&mut self, set: usize, why: Error, stale: impl FnOnce() -> Stale) {
        match set {
            0 => self.stale.push(stale()),
            _ => drop(self.files.entry(set).or_insert(why)),
        }
    }
}

/// Gives each unit its root. Skeletons without their other half stay, and so do files without a skeleton, of
/// which nothing is said, as nothing leads to them.
fn pair(
    sets: &[Shared<'_, '_>],
    found: &mut Found<'_>,
    reading: &Reading<'_>,
) -> (Vec<Root>, Vec<usize>) {
    let tables = &found.tables;
    let units = std::mem::take(&mut found.units);
    let roots: Vec<Result<Root, Error>> = (0..units.len())
        .into_par_iter()
        .map(|i| {
            reading.one_place();
            Root::read(&units[i], tables.of(i), &sets[units[i].set].sections)
        })
        .collect();
    let skeletons: FxHashMap<u64, Root> = roots
        .iter()
        .flatten()
        .filter(|root| root.is_skeleton)
        .filter_map(|root| Some((root.split_id?.1, *root)))
        .collect();
    let ids = |in_files: bool| -> FxHashMap<u64, usize> {
        let all = units
            .iter()
            .zip(&roots)
            .filter(|(unit, _)| (unit.set > 0) == in_files);
        all.filter_map(|(unit, root)| Some((root.as_ref().ok()?.split_id?.1, unit.set)))
            .collect()
    };
    let others = ids(true);
    let (mut out, mut kept) = (Vec::new(), Vec::new());
    // Type units are updated with the others of their file.
    let of_skeletons: BTreeSet<usize> = others
        .iter()
        .filter(|(id, _)| skeletons.contains_key(id))
        .map(|(_, set)| *set)
        .collect();
    for (i, (unit, root)) in units.into_iter().zip(roots).enumerate() {
        let mut root = match root {
            Ok(root) => root,
            Err(error) if unit.set == 0 => {
                found.stale.push(unit.stale(error));
                continue;
            }
            Err(error) => {
                let key = (unit.set, unit.section, unit.start);
                found.more.insert(key, error);
                continue;
            }
        };
        if root.is_skeleton && root.split_id.is_none_or(|id| !others.contains_key(&id.1)) {
            let why = found.why_alone(&unit);
            found.stale.push(unit.stale(why));
            continue;
        }
        if unit.set > 0 {
            let skeleton = root.split_id.and_then(|id| skeletons.get(&id.1));
            let is_type = matches!(unit.identity, Identity::Type(_));
            match skeleton {
                Some(skeleton) => root.take_from(skeleton, &sets[unit.set]),
                None if !of_skeletons.contains(&unit.set) => continue,
                None if is_type => {}
                // What it leads to would move under it.
                None => {
                    let what = "a unit that no skeleton names, in a file with others";
                    let error = Error::new(unit.section.name(), unit.start as u64, what);
                    let key = (unit.set, unit.section, unit.start);
                    found.more.insert(key, error);
                    continue;
                }
            }
        }
        found.units.push(unit);
        out.push(root);
        kept.push(i);
    }
    (out, kept)
}

impl Found<'_> {
    /// Why a skeleton stays whose other half is not updated.
    fn why_alone(&self, unit: &Unit) -> Error {
        let mut what =
            "the entries of a unit are in a file of their own (split DWARF), which was not found"
                .to_owned();
        if let Some(why) = self
            .files
            .values()
            .min_by_key(|why| (why.offset, why.section))
        {
            what += &format!(", or cannot be updated: {why}");
        }
        Error::new(unit.section.name(), unit.start as u64, what)
    }
}

/// Reads all units but those that stay, and their line programs.
pub(super) fn walk_all<'d>(
    sets: &[Shared<'_, 'd>],
    passed: &Passed,
    reading: &Reading<'_>,
) -> Walked<'d> {
    let mut found = find(sets, passed);
    let (mut roots, kept) = pair(sets, &mut found, reading);
    let mut tables = found.tables;
    tables.of_unit = kept.iter().map(|i| tables.of_unit[*i]).collect();
    own_pools(&mut roots);
    let (units, stale, more) = (found.units, found.stale, found.more);
    // Large ones first, so that no thread is left alone with one.
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(units[*i].len()));
    let offsets = program_offsets(&roots);
    progress::expect(units.len() + offsets.len());
    // Neither needs the other. One thread does line programs first: while they are run they need several times the
    // memory of what is left of them, which is less than what is left of entries.
    let (programs, mut walked) = rayon::join(
        || programs(&sets[0], &offsets, reading),
        || -> Vec<(usize, Result<Plan, Error>)> {
            let walked = order.into_par_iter().with_max_len(1).map(|i| {
                let (set, unit) = (&sets[units[i].set], &units[i]);
                let plan = walk::walk(set, unit, tables.of(i), &roots[i], reading);
                progress::did();
                (i, plan)
            });
            walked.collect()
        },
    );
    walked.sort_unstable_by_key(|(i, _)| *i);
    let mut out = Walked {
        units: Vec::new(),
        tables,
        roots: Vec::new(),
        plans: Vec::new(),
        programs,
        stale,
        more,
    };
    let mut of_unit = Vec::new();
    for (i, plan) in walked {
        let unit = units[i];
        match plan {
            Ok(plan) => {
                out.units.push(unit);
                of_unit.push(out.tables.of_unit[i]);
                out.roots.push(roots[i]);
                out.plans.push(plan);
            }
            // Its other half has to stay as well, so another attempt is needed.
            Err(error) if unit.set > 0 || roots[i].is_skeleton => {
                out.more.insert((unit.set, unit.section, unit.start), error);
            }
            Err(error) => out.stale.push(unit.stale(error)),
        }
    }
    out.tables.of_unit = of_unit;
    out
}

/// Line programs by their offsets, ascending, and what changes in them.
pub(super) type Programs = Vec<(u64, Result<line::Program, Error>)>;

/// Where the line programs of units begin.
fn program_offsets(roots: &[Root]) -> Vec<u64> {
    let mut offsets: Vec<u64> = roots.iter().filter_map(|r| r.stmt_list).collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

/// Runs line programs.
fn programs(shared: &Shared<'_, '_>, offsets: &[u64], reading: &Reading<'_>) -> Programs {
    let section = shared.sections.get(Section::Line);
    let programs = offsets.par_iter().with_max_len(1).map(|at| {
        let program = line::update(section, *at, shared.map);
        let len = program.as_ref().map_or(0, |p| p.old.end - p.old.start);
        reading.done(len);
        progress::did();
        (*at, program)
    });
    programs.collect()
}

/// Finds out which units share a pool with none.
fn own_pools(roots: &mut [Root]) {
    let mut users: FxHashMap<u64, u32> = FxHashMap::default();
    for base in roots.iter().filter_map(|root| root.addr_base) {
        *users.entry(base).or_default() += 1;
    }
    for root in roots {
        root.has_own_pool = root
            .addr_base
            .is_some_and(|base| users.get(&base) == Some(&1));
    }
}

/// Units with addresses of which nothing says where they end: those cannot be written a second time, as is needed
/// where other units stay as they are.
pub(super) fn without_headers(
    sections: &Sections<'_>,
    extents: &Extents,
    units: &[Unit],
    roots: &[Root],
    plans: &[Plan],
) -> Passed {
    let section = sections.get(Section::Addr);
    let mut out = Passed::new();
    for ((unit, root), plan) in units.iter().zip(roots).zip(plans) {
        let base = root.addr_base.filter(|_| plan.uses_pool());
        if let Some(base) = base.filter(|base| extents.of(section, *base).is_none()) {
            let what = "no contribution begins in front of these addresses, and another unit cannot be updated";
            let error = Error::new(Section::Addr.name(), base, what);
            out.insert((unit.set, unit.section, unit.start), error);
        }
    }
    out
}

/// Tables that cannot be read, by their keys.
type Unreadable = Vec<(TableKey, Error)>;

/// Set, offset and encoding of a table.
type TableKey = (usize, u64, Encoding);

/// Abbreviation tables, each read once for all units that use it.
#[derive(Default)]
pub(super) struct Tables<'d> {
    pub list: Vec<Table<'d>>,
    pub of_unit: Vec<usize>,
}

impl<'d> Tables<'d> {
    /// Reads the tables of units. If some cannot be read, numbers of tables mean nothing.
    fn of_all(sets: &[Shared<'_, 'd>], units: &[Unit]) -> (Tables<'d>, Unreadable) {
        let mut known = FxHashMap::default();
        let mut keys = Vec::new();
        let of_unit = units.iter().map(|unit| {
            *known.entry(table_key(unit)).or_insert_with(|| {
                keys.push(table_key(unit));
                keys.len() - 1
            })
        });
        let of_unit = of_unit.collect();
        let read = |key: &TableKey| {
            let section = sets[key.0].sections.get(Section::Abbrev);
            Table::read(section, key.1, key.2).map_err(|e| (*key, e))
        };
        let all: Vec<Result<Table<'d>, _>> = keys.par_iter().map(read).collect();
        let (mut list, mut wrong) = (Vec::new(), Unreadable::new());
        for table in all {
            match table {
                Ok(table) => list.push(table),
                Err(error) => wrong.push(error),
            }
        }
        (Tables { list, of_unit }, wrong)
    }

    pub fn of(&self, unit: usize) -> &Table<'d> {
        &self.list[self.of_unit[unit]]
    }
}

fn table_key(unit: &Unit) -> TableKey {
    (unit.set, unit.abbrev, unit.encoding)
}

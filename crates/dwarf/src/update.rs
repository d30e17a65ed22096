//! The whole update: which pass makes what.
//!
//! | pass | by | makes |
//! |---|---|---|
//! | 1 | unit, in parallel | patches, conversions, new lists, users of pools ([`crate::walk`]) |
//! | 2 | line program, in parallel | new programs ([`crate::line`]) |
//! | 3 | pool | values of entries, and who must do without ([`crate::pool`]) |
//! | 4 | table | alternate abbreviations ([`crate::abbrev`]) |
//! | 5 | section, units in order | places of new lists ([`crate::contribution`]) |
//! | 6 | unit, in parallel | new bytes of entries ([`crate::finish`]) |
//!
//! Passes 3 to 5 go through units in their order, so that the result does not depend on threads.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes are numbers of units, tables and contributions, which the readers gave to what they found; a file says none of them"
)]

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::abbrev::{Additions, Demand, Table};
use crate::contribution::{self, Contribution, Growth};
use crate::finish::{self, Pieces, Places};
use crate::index;
use crate::line;
use crate::map::AddressMap;
use crate::names::at;
use crate::pool::{self, Outcome, User};
use crate::progress;
use crate::report::{Loss, Report};
use crate::sections::{Changes, Section, Sections};
use crate::unit::{Entries, Root, Stale, Unit, Values};
use crate::walk::{self, Conversion, Indexed, NewLists, Plan, Shared};

/// The result of an update.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// What changes in each section.
    pub changes: Changes,
    /// Units that stay as they are.
    pub stale: Vec<Stale>,
    /// Counts.
    pub report: Report,
}

/// Makes debug information describe moved code.
///
/// # Errors
///
/// If no unit can be read, or the header of a contribution cannot: then nothing is changed. Units and indexes that
/// cannot be read are counted in the report if others can, and left as they are.
pub fn update(sections: &Sections<'_>, map: &AddressMap) -> Result<Update, Error> {
    let mut passed = Passed::default();
    loop {
        match attempt(sections, map, &passed)? {
            Attempt::Done(update) => return Ok(*update),
            // Few rounds: those of one round are all found in it.
            Attempt::Without(more) => passed.extend(more),
        }
    }
}

/// Units that stay as they are: section, start, and why.
type Passed = BTreeMap<(Section, usize), Error>;

/// What came of an attempt.
enum Attempt {
    Done(Box<Update>),
    /// More units have to stay as they are, at least one.
    Without(Passed),
}

/// Units to update, what is known of them, and why others stay.
struct Walked {
    units: Vec<Unit>,
    tables: Tables,
    roots: Vec<Root>,
    plans: Vec<Plan>,
    /// Other units.
    stale: Vec<Stale>,
}

/// Reads all units but those that stay.
fn walk_all(shared: &Shared<'_, '_>, passed: &Passed) -> Walked {
    let sections = &shared.sections;
    let (mut units, mut stale) = (Vec::new(), Vec::new());
    for section in [Section::Info, Section::Types] {
        let (read, wrong) = Unit::read_all(sections.get(section), section);
        units.extend(read);
        stale.extend(wrong);
    }
    units.retain(|u| match passed.get(&(u.section, u.start)) {
        Some(error) => {
            stale.push(u.stale(error.clone()));
            false
        }
        None => true,
    });
    let wrong = Tables::of_all(sections.get(Section::Abbrev), &units).1;
    units.retain(
        |unit| match wrong.iter().find(|w| w.0 == (unit.abbrev, unit.encoding)) {
            Some((_, error)) => {
                let what = format!("its abbreviations: {error}");
                let why = Error::new(unit.section.name(), unit.start as u64, what);
                stale.push(unit.stale(why));
                false
            }
            None => true,
        },
    );
    let tables = Tables::of_all(sections.get(Section::Abbrev), &units).0;
    progress::expect(units.len());
    let walked: Vec<Result<(Root, Plan), Error>> = (0..units.len())
        .into_par_iter()
        .map(|i| {
            progress::did();
            let root = Root::read(&units[i], tables.of(i), sections)?;
            if root.split {
                let what = "the entries of a unit are in a file of their own (split DWARF), which is not updated";
                return Err(Error::new(units[i].section.name(), units[i].start as u64, what));
            }
            Ok((root, walk::walk(shared, &units[i], tables.of(i), &root)?))
        })
        .collect();
    let mut out = Walked {
        units: Vec::new(),
        tables,
        roots: Vec::new(),
        plans: Vec::new(),
        stale,
    };
    let mut of_unit = Vec::new();
    for (i, result) in walked.into_iter().enumerate() {
        match result {
            Ok((root, plan)) => {
                out.units.push(units[i]);
                of_unit.push(out.tables.of_unit[i]);
                out.roots.push(root);
                out.plans.push(plan);
            }
            Err(error) => out.stale.push(units[i].stale(error)),
        }
    }
    out.tables.of_unit = of_unit;
    out
}

/// Units with addresses of which nothing says where they end: those cannot be written a second time, as is needed
/// where other units stay as they are.
fn without_headers(
    sections: &Sections<'_>,
    units: &[Unit],
    roots: &[Root],
    plans: &[Plan],
) -> Passed {
    let section = sections.get(Section::Addr);
    let mut out = Passed::new();
    for ((unit, root), plan) in units.iter().zip(roots).zip(plans) {
        let base = root.addr_base.filter(|_| !plan.users.is_empty());
        if let Some(base) = base.filter(|base| !pool::has_header(section, *base)) {
            let what = "no contribution begins in front of these addresses, and another unit cannot be updated";
            let error = Error::new(Section::Addr.name(), base, what);
            out.insert((unit.section, unit.start), error);
        }
    }
    out
}

/// Updates all units but those that stay as they are.
fn attempt(sections: &Sections<'_>, map: &AddressMap, passed: &Passed) -> Result<Attempt, Error> {
    let rnglists =
        contribution::read_all(sections.get(Section::Rnglists), Section::Rnglists.name())?;
    let loclists =
        contribution::read_all(sections.get(Section::Loclists), Section::Loclists.name())?;
    let shared = Shared {
        sections: *sections,
        map,
        rnglists: &rnglists,
        loclists: &loclists,
    };
    let Walked {
        units,
        tables,
        roots,
        mut plans,
        stale,
    } = walk_all(&shared, passed);
    if let (true, Some(first)) = (units.is_empty(), stale.first()) {
        return Err(first.why.clone());
    }
    if !stale.is_empty() {
        let more = without_headers(sections, &units, &roots, &plans);
        if !more.is_empty() {
            return Ok(Attempt::Without(more));
        }
    }
    let mut job = Job {
        sections,
        map,
        units: &units,
        tables: &tables,
        roots: &roots,
        behind: !stale.is_empty(),
        changes: Changes::default(),
        report: Report::default(),
    };
    let why = stale.iter().map(|s| &s.why);
    why.for_each(|error| job.lose(Loss::Unit, error));
    let more = job.lines();
    if !more.is_empty() {
        return Ok(Attempt::Without(more));
    }
    let outcomes = job.pools(&mut plans)?;
    let additions = job.abbreviations(&mut plans)?;
    let places = Lists {
        ranges: job.lists(
            [Section::Ranges, Section::Rnglists],
            &rnglists,
            &plans,
            |p| &p.ranges,
        )?,
        locations: job.lists([Section::Loc, Section::Loclists], &loclists, &plans, |p| {
            &p.locations
        })?,
    };
    job.macros()?;
    let more = job.entries(&mut plans, &outcomes, &additions, &places);
    if !more.is_empty() {
        return Ok(Attempt::Without(more));
    }
    job.indexes();
    for plan in &plans {
        job.report.add(&plan.report);
    }
    Ok(Attempt::Done(Box::new(Update {
        changes: job.changes,
        stale,
        report: job.report,
    })))
}

/// Tables that cannot be read, by offset and encoding.
type Unreadable = Vec<((u64, crate::forms::Encoding), Error)>;

/// Abbreviation tables, each read once for all units that use it.
struct Tables {
    list: Vec<Table>,
    of_unit: Vec<usize>,
}

impl Tables {
    /// Reads the tables of units. If some cannot be read, numbers of tables mean nothing.
    fn of_all(section: &[u8], units: &[Unit]) -> (Tables, Unreadable) {
        let mut known = FxHashMap::default();
        let mut keys = Vec::new();
        let of_unit = units.iter().map(|unit| {
            *known
                .entry((unit.abbrev, unit.encoding))
                .or_insert_with(|| {
                    keys.push((unit.abbrev, unit.encoding));
                    keys.len() - 1
                })
        });
        let of_unit = of_unit.collect();
        let read = |key: &(u64, _)| Table::read(section, key.0, key.1).map_err(|e| (*key, e));
        let all: Vec<Result<Table, _>> = keys.par_iter().map(read).collect();
        let (mut list, mut wrong) = (Vec::new(), Unreadable::new());
        for table in all {
            match table {
                Ok(table) => list.push(table),
                Err(error) => wrong.push(error),
            }
        }
        (Tables { list, of_unit }, wrong)
    }

    fn of(&self, unit: usize) -> &Table {
        &self.list[self.of_unit[unit]]
    }
}

/// Where each unit's new lists are.
#[derive(Default)]
struct UnitLists {
    /// By unit: offset in the new section.
    at: Vec<u64>,
    /// By unit: index of its first new slot.
    first_slot: Vec<u64>,
}

struct Lists {
    ranges: UnitLists,
    locations: UnitLists,
}

struct Job<'a, 'd> {
    sections: &'a Sections<'d>,
    map: &'a AddressMap,
    units: &'a [Unit],
    tables: &'a Tables,
    roots: &'a [Root],
    /// Some units stay as they are, so old bytes of other sections have to stay in their places.
    behind: bool,
    changes: Changes,
    report: Report,
}

impl Job<'_, '_> {
    /// Pass 2. Returns units whose line programs cannot be written.
    fn lines(&mut self) -> Passed {
        let mut failed = Passed::new();
        let mut offsets: Vec<u64> = self.roots.iter().filter_map(|r| r.stmt_list).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let section = self.sections.get(Section::Line);
        let map = self.map;
        progress::expect(offsets.len());
        let programs: Vec<_> = offsets
            .par_iter()
            .map(|at| {
                progress::did();
                line::update(section, *at, map).map_err(|error| (*at, error))
            })
            .collect();
        let mut end = 0;
        for program in programs {
            match program {
                // A program inside of another is not one.
                Ok(program) if program.old.start >= end => {
                    end = program.old.end;
                    if let Some(new) = program.new {
                        let splices = self.changes.get_mut(Section::Line);
                        let first = splices.len();
                        splices.push(program.old.clone(), &new);
                        splices.end_part(program.old, first);
                        self.report.line_programs += 1;
                        self.report.rows += program.rows;
                    }
                }
                Ok(program) => {
                    let what = format!(
                        "a line program that begins inside of the one that ends at {end:#x}"
                    );
                    let error = Error::new(Section::Line.name(), program.old.start, what);
                    self.without_program(program.old.start, &error, &mut failed);
                }
                Err((at, error)) => self.without_program(at, &error, &mut failed),
            }
        }
        self.settle(Section::Line);
        failed
    }

    /// Units with a line program that cannot be written have to stay.
    fn without_program(&self, at: u64, error: &Error, failed: &mut Passed) {
        let of = self.units.iter().zip(self.roots);
        for (unit, _) in of.filter(|(_, root)| root.stmt_list == Some(at)) {
            failed.insert((unit.section, unit.start), error.clone());
        }
    }

    /// Ends the changes of a section: where units stay as they are, all old bytes stay in their places.
    fn settle(&mut self, section: Section) {
        if self.behind {
            let behind = self.changes.get(section).behind(self.sections.get(section));
            *self.changes.get_mut(section) = behind;
        }
    }

    fn lose(&mut self, loss: Loss, error: &Error) {
        self.report.lose(loss);
        self.report.reasons.push(error.to_string());
    }

    /// Pass 3. Returns outcomes by unit and user.
    fn pools(&mut self, plans: &mut [Plan]) -> Result<Vec<Vec<Outcome>>, Error> {
        let mut of_pool: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (i, root) in self.roots.iter().enumerate() {
            if let Some(base) = root.addr_base.filter(|_| !plans[i].users.is_empty()) {
                of_pool.entry(base).or_default().push(i);
            }
        }
        let section = self.sections.get(Section::Addr);
        let resolved: Vec<_> = of_pool
            .par_iter()
            .map(|(base, units)| {
                let users: Vec<User> = units
                    .iter()
                    .flat_map(|i| plans[*i].users.iter().copied())
                    .collect();
                (*base, pool::resolve(section, *base, &users))
            })
            .collect();
        let mut outcomes = vec![Vec::new(); plans.len()];
        let mut pools = BTreeMap::new();
        for ((base, (resolved, mut of_users)), units) in resolved.into_iter().zip(of_pool.values())
        {
            pools.insert(base, resolved);
            for i in units {
                let rest = of_users.split_off(plans[*i].users.len());
                outcomes[*i] = std::mem::replace(&mut of_users, rest);
            }
        }
        pool::splice(section, &pools, self.changes.get_mut(Section::Addr));
        self.settle(Section::Addr);
        plans
            .par_iter_mut()
            .zip(&outcomes)
            .enumerate()
            .try_for_each(|(i, (plan, outcomes))| self.without_addresses(i, plan, outcomes))?;
        Ok(outcomes)
    }

    /// Scopes that lost their index get an abbreviation without one.
    fn without_addresses(
        &self,
        unit: usize,
        plan: &mut Plan,
        outcomes: &[Outcome],
    ) -> Result<(), Error> {
        for scope in std::mem::take(&mut plan.indexed) {
            if outcomes.get(scope.user as usize) != Some(&Outcome::Without) {
                continue;
            }
            let (start, end) = match scope.is {
                Indexed::Conversion(c) => {
                    plan.conversions[c as usize].demand.without_address = true;
                    continue;
                }
                Indexed::Interval { start, end } => (start, end),
            };
            let (u, root) = (&self.units[unit], &self.roots[unit]);
            let data = self.sections.get(u.section);
            let at = u.start + scope.at as usize;
            let Some(entry) = Entries::at(u, self.tables.of(unit), data, at).next()? else {
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
            crate::lists::put_ranges(&mut plan.ranges.bytes, u.encoding, root.base, ranges);
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
                },
                list,
                entry: start,
                slot: None,
                first_len: end - start,
            });
        }
        Ok(())
    }

    /// Pass 4. Returns additions by table.
    fn abbreviations(&mut self, plans: &mut [Plan]) -> Result<BTreeMap<usize, Additions>, Error> {
        let numbered = plans
            .iter()
            .enumerate()
            .map(|(i, p)| (self.tables.of_unit[i], p));
        let demands = finish::demands(numbered.filter(|(_, p)| !p.conversions.is_empty()));
        let mut additions: BTreeMap<usize, Additions> = BTreeMap::new();
        for (t, demands) in &demands {
            additions.insert(*t, self.tables.list[*t].meet(demands, self.encoding(*t)));
        }
        for (i, plan) in plans.iter_mut().enumerate() {
            if let Some(additions) = additions.get(&self.tables.of_unit[i]) {
                self.redefined_root(i, plan, additions)?;
                finish::give_slots(plan, additions);
            }
        }
        let mut order: Vec<usize> = additions.keys().copied().collect();
        order.sort_by_key(|t| self.tables.list[*t].start);
        let mut end = 0;
        for t in order {
            let table = &self.tables.list[t];
            if table.start < end {
                let what = "abbreviations that are part of another table, or used by units of two versions";
                return Err(Error::new(Section::Abbrev.name(), table.start, what));
            }
            end = table.end;
            table.splice(
                &additions[&t],
                self.encoding(t),
                self.changes.get_mut(Section::Abbrev),
            );
        }
        self.settle(Section::Abbrev);
        Ok(additions)
    }

    /// A root whose declaration is replaced for other units' sake: it gets a list of what it had.
    fn redefined_root(
        &self,
        i: usize,
        plan: &mut Plan,
        additions: &Additions,
    ) -> Result<(), Error> {
        let (unit, table) = (&self.units[i], self.tables.of(i));
        let data = self.sections.get(unit.section);
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
                section: self.sections.get(Section::Addr),
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

    fn encoding(&self, table: usize) -> crate::forms::Encoding {
        let unit = self
            .tables
            .of_unit
            .iter()
            .position(|t| *t == table)
            .unwrap_or(0);
        self.units[unit].encoding
    }

    /// Pass 5, for the sections of one kind of lists: that of DWARF 2 to 4, and that of 5.
    fn lists(
        &mut self,
        [old, new]: [Section; 2],
        contributions: &[Contribution],
        plans: &[Plan],
        of: impl Fn(&Plan) -> &NewLists,
    ) -> Result<UnitLists, Error> {
        let mut out = UnitLists {
            at: vec![0; plans.len()],
            first_slot: vec![0; plans.len()],
        };
        // Places are relative to where the lists of their contribution, or the section's end, will be.
        let mut growths: BTreeMap<usize, Growth> = BTreeMap::new();
        let (mut behind, mut alone) = (Vec::new(), Vec::new());
        for (i, plan) in plans.iter().enumerate() {
            let lists = of(plan);
            if lists.bytes.is_empty() && lists.slots.is_empty() {
                continue;
            }
            if self.units[i].encoding.version < 5 {
                out.at[i] = self.sections.get(old).len() as u64 + behind.len() as u64;
                behind.extend_from_slice(&lists.bytes);
            } else if let Some(home) = lists.home {
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
        if !behind.is_empty() {
            let end = self.sections.get(old).len() as u64;
            self.changes.get_mut(old).push(end..end, &behind);
        }
        let section = self.sections.get(new);
        let splices = self.changes.get_mut(new);
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
            if !self.behind {
                alone_at = splices.start_of(splices.len() - 1);
            }
        }
        self.settle(new);
        let splices = self.changes.get(new);
        let start = |home: usize| -> Option<u64> {
            Some(splices.shift(contributions[home].start)? + distances.get(&home)?)
        };
        for (i, plan) in plans
            .iter()
            .enumerate()
            .filter(|(i, _)| self.units[*i].encoding.version == 5)
        {
            out.at[i] += match of(plan).home {
                Some(home) => start(home).unwrap_or(0),
                None => alone_at,
            };
        }
        Ok(out)
    }

    /// Macro units name line programs. Where units stay as they are, the old programs are still there, with the same
    /// tables of files, and that is all that macros need of them.
    fn macros(&mut self) -> Result<(), Error> {
        if self.behind {
            return Ok(());
        }
        let mut offsets: Vec<u64> = self.roots.iter().filter_map(|r| r.macros).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let section = self.sections.get(Section::Macro);
        for at in offsets {
            let Some((field, old)) = index::macro_line(section, at)? else {
                continue;
            };
            let Some(new) = self.changes.get(Section::Line).shift(old) else {
                let what = format!("the line program at {old:#x}, where none begins");
                return Err(Error::new(Section::Macro.name(), field.start, what));
            };
            if new != old {
                let bytes = new.to_le_bytes();
                let len = (field.end - field.start) as usize;
                self.changes
                    .get_mut(Section::Macro)
                    .push(field, bytes.get(..len).unwrap_or(&bytes));
            }
        }
        Ok(())
    }

    /// Pass 6. Returns units that cannot be written: they name the middle of something.
    fn entries(
        &mut self,
        plans: &mut [Plan],
        outcomes: &[Vec<Outcome>],
        additions: &BTreeMap<usize, Additions>,
        lists: &Lists,
    ) -> Passed {
        let none = Additions::default();
        let changes = &self.changes;
        progress::expect(plans.len());
        let pieces: Vec<Result<Pieces, Error>> = plans
            .par_iter_mut()
            .enumerate()
            .map(|(i, plan)| {
                progress::did();
                let places = Places {
                    changes,
                    ranges: lists.ranges.at[i],
                    locations: lists.locations.at[i],
                    first_slot: lists.ranges.first_slot[i],
                    outcomes: &outcomes[i],
                };
                let additions = additions.get(&self.tables.of_unit[i]).unwrap_or(&none);
                finish::unit(
                    self.sections,
                    &self.units[i],
                    self.tables.of(i),
                    additions,
                    plan,
                    &places,
                )
            })
            .collect();
        let mut failed = Passed::new();
        for (unit, pieces) in self.units.iter().zip(pieces) {
            let splices = self.changes.get_mut(unit.section);
            match pieces {
                Ok(pieces) => pieces
                    .into_iter()
                    .for_each(|(range, bytes)| splices.push(range, &bytes)),
                Err(error) => drop(failed.insert((unit.section, unit.start), error)),
            }
        }
        failed
    }

    fn indexes(&mut self) {
        let aranges = self.sections.get(Section::Aranges);
        let gdb_index = self.sections.get(Section::GdbIndex);
        let own = self.units.iter().filter(|u| u.section == Section::Info);
        let updated: BTreeSet<u64> = own.map(|u| u.start as u64).collect();
        let mut try_one = |section,
                           data,
                           update: fn(
            &[u8],
            &AddressMap,
            &index::Updated,
            &mut _,
        ) -> Result<(), Error>| {
            let mut splices = Default::default();
            match update(data, self.map, &updated, &mut splices) {
                Ok(()) => *self.changes.get_mut(section) = splices,
                Err(error) => {
                    self.report.lose(Loss::Index);
                    self.report.reasons.push(error.to_string());
                }
            }
        };
        try_one(Section::Aranges, aranges, index::aranges);
        try_one(Section::GdbIndex, gdb_index, index::gdb_index);
    }
}

//! The whole update: which pass makes what.
//!
//! | pass | by | makes |
//! |---|---|---|
//! | 1 | unit or part of one, in parallel | patches, conversions, new lists, users of pools ([`crate::walk`]) |
//! | 2 | line program, in parallel, beside 1 | what changes in programs ([`crate::line`]) |
//! | 3 | pool that several units share; others in pass 1 | values of entries, and who must do without ([`crate::pool`]) |
//! | 4 | table | alternate abbreviations ([`crate::abbrev`]) |
//! | 5 | section, units in order | places of new lists ([`crate::contribution`]) |
//! | 6 | unit, in parallel | new bytes of entries ([`crate::finish`]) |
//!
//! Units are in several *sets* of sections: number 0 is the program's, the others those of files with split units
//! ([`crate::split`]). Addresses, line programs and range lists of DWARF 4 are in set 0 alone, for all.
//!
//! Passes 3 to 5 go through units in their order, so that the result does not depend on threads.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes are numbers of units, tables and contributions, which the readers gave to what they found; a file says none of them"
)]

mod lists;
mod pools;
mod units;

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use crate::Error;
use crate::abbrev::Additions;
use crate::finish::{self, Places};
use crate::frame;
use crate::index;
use crate::map::AddressMap;
use crate::pool::{Extents, Outcome};
use crate::progress;
use crate::report::{Loss, Report};
use crate::sections::{Changes, Reading, Section, Sections};
use crate::splice::{Pieces, Splices};
use crate::split::{self, SplitFile};
use crate::unit::{Root, Stale, Unit};
use crate::walk::{Plan, Shared};
use lists::{Kind, Lists};
use units::{Programs, Tables, Walked, walk_all, without_headers};

/// The result of an update.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// What changes in each section.
    pub changes: Changes,
    /// What changes in each file of split units, in the order in which they were given; `None`: it stays as it is.
    pub files: Vec<Option<Changes>>,
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
    update_split(sections, &[], map)
}

/// Makes debug information describe moved code whose units may be in files of their own (split DWARF).
///
/// # Errors
///
/// Like [`update()`]. Units whose file is not among those that are given stay as they are; so do those of files that
/// cannot be read.
pub fn update_split(
    sections: &Sections<'_>,
    files: &[SplitFile<'_>],
    map: &AddressMap,
) -> Result<Update, Error> {
    update_in_parts(sections, files, map, None)
}

/// The same, for tests: units are cut into parts of at least so many bytes, not of as many as suits the threads.
///
/// # Errors
///
/// Like [`update_split`].
#[doc(hidden)]
pub fn update_in_parts(
    sections: &Sections<'_>,
    files: &[SplitFile<'_>],
    map: &AddressMap,
    part: Option<usize>,
) -> Result<Update, Error> {
    let mut passed = Passed::default();
    loop {
        match attempt(sections, files, map, (&passed, part))? {
            Attempt::Done(update) => return Ok(*update),
            // Few rounds: those of one round are all found in it.
            Attempt::Without(more) => {
                let (known, error) = (passed.len(), more.values().next().cloned());
                passed.extend(more);
                // A unit that cannot be left out would be found again for ever.
                if let Some(error) = error.filter(|_| passed.len() == known) {
                    return Err(error);
                }
            }
        }
    }
}

/// Units that stay as they are: set, section, start, and why. One of a file makes all of the file stay.
type Passed = BTreeMap<(usize, Section, usize), Error>;

/// What came of an attempt.
enum Attempt {
    Done(Box<Update>),
    /// More units have to stay as they are, at least one.
    Without(Passed),
}

/// The sections of each set, as its units see them.
fn sets<'a, 'd>(
    sections: &Sections<'d>,
    files: &'d [SplitFile<'_>],
    map: &'a AddressMap,
    part: Option<usize>,
) -> Result<(Vec<Shared<'a, 'd>>, Passed), Error> {
    let mut failed = Passed::new();
    let mut out = vec![Shared::new(*sections, map)?];
    let part = part.or_else(|| part_of(sections, files));
    let pools = Extents::with_headers(sections.get(Section::Addr));
    out.iter_mut()
        .for_each(|shared| shared.pools = pools.clone());
    let version = split::version_of(files);
    for (i, file) in files.iter().enumerate() {
        if file.version() != version {
            let what = format!(
                "units of DWARF {} beside others of {version}; a package has those of one version",
                file.version()
            );
            failed.insert(
                (i + 1, Section::Info, 0),
                Error::new(".debug_info.dwo", 0, what),
            );
        }
        let shared = Shared::new(file.with_program(sections), map).or_else(|error| {
            failed.insert((i + 1, Section::Info, 0), error);
            Shared::new(Sections::default(), map)
        });
        out.push(shared?);
    }
    out.iter_mut().for_each(|shared| shared.part = part);
    Ok((out, failed))
}

/// Bytes of a part of a unit, if units are to be cut: several for each thread, and none so small that putting them
/// together takes longer than it saves.
fn part_of(sections: &Sections<'_>, files: &[SplitFile<'_>]) -> Option<usize> {
    const LEAST: usize = 32 << 10;
    const PARTS_PER_THREAD: usize = 8;
    let threads = rayon::current_num_threads();
    let entries = |s: &Sections<'_>| s.get(Section::Info).len() + s.get(Section::Types).len();
    let others = files
        .iter()
        .map(|file| entries(&file.with_program(sections)));
    let all = entries(sections) + others.sum::<usize>();
    (threads > 1).then(|| LEAST.max(all / (PARTS_PER_THREAD * threads)))
}

/// Updates all units but those that stay as they are.
fn attempt(
    sections: &Sections<'_>,
    files: &[SplitFile<'_>],
    map: &AddressMap,
    (passed, part): (&Passed, Option<usize>),
) -> Result<Attempt, Error> {
    let (sets, mut failed) = sets(sections, files, map, part)?;
    failed.extend(passed.clone());
    let of_files: u64 = files.iter().map(|file| file.own().size()).sum();
    let reading = Reading::new(sections, of_files);
    let Walked {
        units,
        tables,
        roots,
        mut plans,
        programs,
        stale,
        more,
    } = walk_all(&sets, &failed, &reading);
    if !more.is_empty() {
        return Ok(Attempt::Without(more));
    }
    if let (true, Some(first)) = (units.is_empty(), stale.first()) {
        return Err(first.why.clone());
    }
    let own = units.iter().zip(&roots).filter(|(unit, _)| unit.set == 0);
    let bases = own.filter_map(|(unit, root)| Some((unit.encoding.version, root.addr_base?)));
    let extents = Extents::new(sections.get(Section::Addr), bases);
    if !stale.is_empty() {
        let more = without_headers(sections, &extents, &units, &roots, &plans);
        if !more.is_empty() {
            return Ok(Attempt::Without(more));
        }
    }
    let mut job = Job {
        sets: &sets,
        map,
        units: &units,
        tables: &tables,
        roots: &roots,
        reading: &reading,
        extents,
        behind: !stale.is_empty(),
        changes: vec![Changes::default(); sets.len()],
        report: Report::default(),
    };
    let why = stale.iter().map(|s| &s.why);
    why.for_each(|error| job.lose(Loss::Unit, error));
    let more = job.lines(programs);
    if !more.is_empty() {
        return Ok(Attempt::Without(more));
    }
    reading.freed();
    let (outcomes, more) = job.pools(&mut plans)?;
    if !more.is_empty() {
        return Ok(Attempt::Without(more));
    }
    let additions = job.abbreviations(&mut plans)?;
    let places = Lists {
        ranges: job.lists(Kind::Ranges, &mut plans)?,
        locations: job.lists(Kind::Locations, &mut plans)?,
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
    drop((plans, outcomes, additions, places));
    reading.freed();
    let mut changes = std::mem::take(&mut job.changes).into_iter();
    let updated: BTreeSet<usize> = units.iter().map(|u| u.set).collect();
    Ok(Attempt::Done(Box::new(Update {
        changes: changes.next().unwrap_or_default(),
        files: (1..)
            .zip(changes)
            .map(|(set, c)| updated.contains(&set).then_some(c))
            .collect(),
        stale,
        report: job.report,
    })))
}

struct Job<'a, 'd> {
    sets: &'a [Shared<'a, 'd>],
    map: &'a AddressMap,
    units: &'a [Unit],
    tables: &'a Tables<'d>,
    roots: &'a [Root],
    reading: &'a Reading<'d>,
    /// Pools without headers.
    extents: Extents,
    /// Some units of the program stay as they are, so old bytes of other sections have to stay in their places.
    behind: bool,
    /// By set.
    changes: Vec<Changes>,
    report: Report,
}

impl<'d> Job<'_, 'd> {
    /// The program's sections.
    fn program(&self) -> &Sections<'d> {
        &self.sets[0].sections
    }

    /// Changes of a section of the program.
    fn change(&mut self, section: Section) -> &mut Splices {
        self.changes[0].get_mut(section)
    }

    /// Takes the changes of the line programs of units that are updated. Returns units whose line programs cannot be
    /// written.
    fn lines(&mut self, programs: Programs) -> Passed {
        let mut failed = Passed::new();
        let named: BTreeSet<u64> = self.roots.iter().filter_map(|r| r.stmt_list).collect();
        let sizes = programs.iter().filter_map(|(_, program)| {
            let new = program.as_ref().ok()?.new.as_ref();
            new.map(Pieces::size)
        });
        let sizes = sizes.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        self.change(Section::Line).reserve(sizes.0, sizes.1);
        let mut end = 0;
        for (at, program) in programs {
            match program {
                _ if !named.contains(&at) => {}
                // A program inside of another is not one.
                Ok(program) if program.old.start >= end => {
                    end = program.old.end;
                    if let Some(new) = program.new {
                        let splices = self.change(Section::Line);
                        let first = splices.len();
                        splices.take(&new);
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
                Err(error) => self.without_program(at, &error, &mut failed),
            }
        }
        self.settle(0, Section::Line);
        failed
    }

    /// Units with a line program that cannot be written have to stay.
    fn without_program(&self, at: u64, error: &Error, failed: &mut Passed) {
        let of = self.units.iter().zip(self.roots);
        for (unit, _) in of.filter(|(_, root)| root.stmt_list == Some(at)) {
            failed.insert((unit.set, unit.section, unit.start), error.clone());
        }
    }

    /// Ends the changes of a section: where units stay as they are, all old bytes stay in their places.
    /// In files of split units there are none such.
    fn settle(&mut self, set: usize, section: Section) {
        if self.behind && set == 0 {
            let changes = &mut self.changes[0];
            let behind = changes
                .get(section)
                .behind(self.sets[0].sections.get(section));
            *changes.get_mut(section) = behind;
        }
    }

    fn lose(&mut self, loss: Loss, error: &Error) {
        self.report.lose(loss);
        self.report.reasons.push(error.to_string());
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
        let section = self.program().get(Section::Macro);
        for at in offsets {
            let Some((field, old)) = index::macro_line(section, at)? else {
                continue;
            };
            let Some(new) = self.changes[0].get(Section::Line).shift(old) else {
                let what = format!("the line program at {old:#x}, where none begins");
                return Err(Error::new(Section::Macro.name(), field.start, what));
            };
            if new != old {
                let bytes = new.to_le_bytes();
                let len = (field.end - field.start) as usize;
                self.change(Section::Macro)
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
        let ranges_base = |i: usize| -> u64 {
            let root = &self.roots[i];
            if root.is_split { root.ranges_base } else { 0 }
        };
        // The header in front of it keeps its length, and nothing is in front of the header.
        let views_base = |i: usize| self.roots[i].views_base(&self.units[i]);
        progress::expect(plans.len());
        let pieces: Vec<Result<Pieces, Error>> = plans
            .par_iter_mut()
            .enumerate()
            .map(|(i, plan)| {
                let unit = &self.units[i];
                let places = Places {
                    changes: &changes[unit.set],
                    of_program: &changes[0],
                    ranges_base: ranges_base(i),
                    ranges: lists.ranges.at[i],
                    locations: lists.locations.at[i],
                    views_base: views_base(i),
                    first_slot: lists.ranges.first_slot[i],
                    outcomes: &outcomes[i],
                };
                let additions = additions.get(&self.tables.of_unit[i]).unwrap_or(&none);
                let pieces = finish::unit(
                    &self.sets[unit.set].sections,
                    unit,
                    self.tables.of(i),
                    additions,
                    plan,
                    &places,
                );
                // What is written of all units is in memory next.
                (plan.patches, plan.conversions) = Default::default();
                self.reading.done(unit.len());
                progress::did();
                pieces
            })
            .collect();
        let mut sizes: BTreeMap<(usize, Section), (usize, usize)> = BTreeMap::new();
        for (unit, pieces) in self.units.iter().zip(&pieces) {
            let (list, bytes) = pieces.as_ref().map_or((0, 0), Pieces::size);
            let of = sizes.entry((unit.set, unit.section)).or_default();
            *of = (of.0 + list, of.1 + bytes);
        }
        for ((set, section), (list, bytes)) in sizes {
            self.changes[set].get_mut(section).reserve(list, bytes);
        }
        let mut failed = Passed::new();
        for (unit, pieces) in self.units.iter().zip(pieces) {
            let splices = self.changes[unit.set].get_mut(unit.section);
            match pieces {
                Ok(pieces) => splices.take(&pieces),
                Err(error) => drop(failed.insert((unit.set, unit.section, unit.start), error)),
            }
        }
        failed
    }

    fn indexes(&mut self) {
        let aranges = self.program().get(Section::Aranges);
        let gdb_index = self.program().get(Section::GdbIndex);
        let own = self
            .units
            .iter()
            .filter(|u| (u.set, u.section) == (0, Section::Info));
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
                Ok(()) => *self.changes[0].get_mut(section) = splices,
                Err(error) => {
                    self.report.lose(Loss::Index);
                    self.report.reasons.push(error.to_string());
                }
            }
        };
        try_one(Section::Aranges, aranges, index::aranges);
        try_one(Section::GdbIndex, gdb_index, index::gdb_index);
        let mut entries = Splices::default();
        match frame::update(self.program().get(Section::Frame), self.map, &mut entries) {
            Ok(()) => *self.change(Section::Frame) = entries,
            Err(error) => self.lose(Loss::Frame, &error),
        }
    }
}

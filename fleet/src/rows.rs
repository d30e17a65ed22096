//! A profile of any format as rows.
//!
//! ```text
//! counters ────────► counter, call … rows of the profiled build, under the digest of its counter map
//! fdata ───────────► branch, sample, memory rows by function and offset
//! perf.data, text of perf script, pre-aggregated
//!   └─ modules ───► one group for each program and library: branches and runs, by address
//! ```
//!
//! A recording is of a machine or of a process, not of a file: every module in it gets rows. A branch from one module
//! to another becomes two rows, one of each, whose other end is outside (null). Addresses of modules are offsets in
//! files, which become addresses as linked where the file is at hand (`--binary`); the others are kept as they are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use postlink_aggregate::Error as AggregateError;
use postlink_aggregate::Placer;
use postlink_elf::elf::Elf;
use postlink_profile::address::{
    AddressKind as Addresses, AddressProfile, Collector, Module, ModuleId, Origin, Place, Trace,
};
use postlink_profile::any::{self, Model};
use postlink_profile::samples::Options;
use postlink_profile::symbolic::{Collection, Location, Names, SymbolicProfile};
use postlink_profile::{Error, Format, Identity, Profile, Weighted, fdata};

use crate::schema::{AddressKind, Kind, OUTSIDE, Row, Rows, to_text};

/// A program or library that is at hand.
#[derive(Debug)]
pub struct Binary {
    pub path: PathBuf,
    contents: Vec<u8>,
}

impl Binary {
    /// Reads a file; it must be one that can be linked against or run.
    pub fn open(path: &Path) -> Result<Binary> {
        let contents =
            std::fs::read(path).with_context(|| format!("{}: cannot read", path.display()))?;
        let binary = Binary {
            path: path.to_owned(),
            contents,
        };
        binary.elf()?;
        Ok(binary)
    }

    /// The file, parsed.
    pub fn elf(&self) -> Result<Elf<'_>> {
        Elf::parse(&self.contents).with_context(|| self.path.display().to_string())
    }

    /// Its identity as it stands in the column `build_id`.
    pub fn identity(&self) -> Result<Identity> {
        let elf = self.elf()?;
        let by_note = elf.build_id.and_then(Identity::from_build_id);
        Ok(by_note.unwrap_or_else(|| Identity::of_contents(&self.contents)))
    }

    /// Its name without folders.
    pub fn name(&self) -> String {
        to_text(self.path.file_name().unwrap_or_default().as_encoded_bytes())
    }
}

/// What a profile was turned to.
#[derive(Debug)]
pub struct Read {
    pub rows: Rows,
    /// Name of the format.
    pub source: &'static str,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Reads a profile. `None` if nothing was recorded in it yet.
///
/// `build_id` is that of profiles that do not say it and are of none of the `binaries`.
pub fn read(input: &Weighted, binaries: &[Binary], build_id: Option<&str>) -> Result<Option<Read>> {
    let format = any::format_of(&input.path)?;
    let mut read = Read {
        rows: Rows::default(),
        source: source(format),
        warnings: vec![],
    };
    match Model::of(format) {
        Model::Counters => match postlink_profile::merge(std::slice::from_ref(input)) {
            Ok(merged) => counters(&merged.profile, input.weight, binaries, &mut read.rows)?,
            Err(Error::NoInputs { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        },
        Model::Symbols => {
            let profile = fdata::merge(std::slice::from_ref(input))?;
            let (id, name) = sole(input, binaries, build_id)?;
            symbols(&profile, input.weight, (&id, &name), &mut read.rows);
        }
        Model::Addresses => {
            let profile = any::merge_addresses(std::slice::from_ref(input), &Options::default())?;
            addresses(input, &profile, binaries, build_id, &mut read)?;
        }
        Model::Blocks | Model::Lines | Model::Steps => bail!(
            "{}: a {format} has no rows by address: postlink convert {} --binary APP -o APP.fdata makes a profile that has",
            input.path.display(),
            input.path.display()
        ),
    }
    Ok(Some(read))
}

fn source(format: Format) -> &'static str {
    match format {
        Format::Raw => "raw",
        Format::Plprof => "plprof",
        Format::PerfData => "perf.data",
        Format::BoltYaml => "yaml",
        Format::Fdata => "fdata",
        Format::PreAggregated => "pre-aggregated",
        Format::PerfScript => "perf-script",
        Format::Pprof => "pprof",
        Format::Otlp => "otlp",
        Format::Simpleperf => "simpleperf",
        Format::SampleProfile => "sample-profile",
        Format::Trace => "trace",
    }
}

/// The one file that a profile is of which does not say so itself.
fn sole(input: &Weighted, binaries: &[Binary], id: Option<&str>) -> Result<(String, String)> {
    Ok(match (binaries, id) {
        ([], id) => (id.unwrap_or_default().to_owned(), String::new()),
        ([binary], None) => (binary.identity()?.to_string(), binary.name()),
        ([binary], Some(id)) => {
            let known = binary.identity()?.to_string();
            if known != id {
                bail!(
                    "--build-id is {id}, that of {} is {known}",
                    binary.path.display()
                );
            }
            (known, binary.name())
        }
        (several, _) => bail!(
            "{}: does not say which binary it is of, and {} are given: name the one that it is of",
            input.path.display(),
            several.len()
        ),
    })
}

fn counters(profile: &Profile, weight: u64, binaries: &[Binary], rows: &mut Rows) -> Result<()> {
    let subject = profile.subject();
    let mut name = String::new();
    for binary in binaries {
        if binary.identity()? == subject.identity {
            name = binary.name();
        }
    }
    let file = rows.file(&subject.identity.to_string(), &name);
    let map = rows.name(&subject.digest.to_string());
    let row = Row {
        file,
        map: Some(map),
        address_kind: Some(AddressKind::Counter),
        event: rows.name(""),
        ..Row::default()
    };
    rows.rows.push(Row {
        kind: Some(Kind::Profile),
        from_address: Some(subject.counters),
        to_address: Some(subject.sites),
        count: weight,
        ..row
    });
    for (at, &count) in profile.counters().iter().enumerate() {
        if count > 0 {
            rows.rows.push(Row {
                kind: Some(Kind::Counter),
                from_address: Some(at as u64),
                count,
                ..row
            });
        }
    }
    for (at, site) in profile.sites() {
        let of_site = Row {
            from_address: Some(at),
            ..row
        };
        let targets = site
            .targets()
            .iter()
            .map(|&(to, count)| (Kind::Call, Some(to), count));
        let others = [
            (Kind::CallExternal, None, site.external),
            (Kind::CallOverflow, None, site.overflow),
        ];
        for (kind, to_address, count) in targets.chain(others) {
            if count > 0 {
                rows.rows.push(Row {
                    kind: Some(kind),
                    to_address,
                    count,
                    ..of_site
                });
            }
        }
    }
    Ok(())
}

/// How an fdata profile was taken, as it stands in the column `map`: such profiles are added up only with their like.
pub fn collection_name(collection: Option<Collection>) -> &'static str {
    match collection.map(|c| (c.branches, c.bolted)) {
        None => "empty",
        Some((true, false)) => "branches",
        Some((true, true)) => "branches,bolted",
        Some((false, false)) => "samples",
        Some((false, true)) => "samples,bolted",
    }
}

/// The reverse of [`collection_name`].
pub fn collection_named(name: &str) -> Option<Option<Collection>> {
    let collection = |branches, bolted| Some(Some(Collection { branches, bolted }));
    match name {
        "empty" => Some(None),
        "branches" => collection(true, false),
        "branches,bolted" => collection(true, true),
        "samples" => collection(false, false),
        "samples,bolted" => collection(false, true),
        _ => None,
    }
}

/// Rows that say which profiles there were: one for each event. Gives the event of the other rows: the only one there
/// is.
fn heads(events: &BTreeSet<Vec<u8>>, weight: u64, row: Row, rows: &mut Rows) -> u32 {
    let names: Vec<u32> = events
        .iter()
        .map(|event| rows.name(&to_text(event)))
        .collect();
    let none = rows.name("");
    let used = if names.is_empty() {
        vec![none]
    } else {
        names.clone()
    };
    for event in used {
        rows.rows.push(Row {
            kind: Some(Kind::Profile),
            event,
            count: weight,
            ..row
        });
    }
    match names[..] {
        [event] => event,
        _ => none,
    }
}

fn symbols(profile: &SymbolicProfile, weight: u64, file: (&str, &str), rows: &mut Rows) {
    let mut row = Row {
        file: rows.file(file.0, file.1),
        map: Some(rows.name(collection_name(profile.collection))),
        address_kind: Some(AddressKind::Function),
        ..Row::default()
    };
    row.event = heads(&profile.events, weight, row, rows);
    let names = profile.names();
    let of = |rows: &mut Rows, names: &Names, at: Location| {
        let name = to_text(names.get(at.name));
        let name = if at.in_symbol {
            rows.name(&name)
        } else {
            rows.name(&format!("{OUTSIDE}{name}"))
        };
        (Some(name), Some(at.offset))
    };
    for branch in profile.branches() {
        let (from, to) = (of(rows, names, branch.from), of(rows, names, branch.to));
        rows.rows.push(Row {
            kind: Some(Kind::Branch),
            from_function: from.0,
            from_address: from.1,
            to_function: to.0,
            to_address: to.1,
            count: branch.count,
            mispredictions: branch.mispredictions,
            ..row
        });
    }
    for sample in profile.samples() {
        let at = of(rows, names, sample.at);
        rows.rows.push(Row {
            kind: Some(Kind::Sample),
            from_function: at.0,
            from_address: at.1,
            count: sample.count,
            ..row
        });
    }
    for access in profile.memory() {
        let (at, target) = (of(rows, names, access.at), of(rows, names, access.address));
        rows.rows.push(Row {
            kind: Some(Kind::Memory),
            from_function: at.0,
            from_address: at.1,
            to_function: target.0,
            to_address: target.1,
            count: access.count,
            ..row
        });
    }
}

/// The rows of one file in a recording.
struct Group {
    build_id: String,
    name: String,
    kind: AddressKind,
    collector: Collector,
}

/// Which group each module is of, and how places of it are addressed there.
struct Groups {
    groups: Vec<Group>,
    /// By module: its group.
    of_module: Vec<usize>,
    /// By group: of those whose file is at hand, how offsets become addresses.
    placers: Vec<Option<Placer>>,
}

impl Groups {
    fn place(&self, place: Place) -> Option<(usize, u64)> {
        let group = *self.of_module.get(place.module.0 as usize)?;
        match self.placers.get(group)? {
            Some(placer) => Some((group, placer.address(place)?)),
            None => Some((group, place.address)),
        }
    }
}

fn groups(
    input: &Weighted,
    profile: &AddressProfile,
    binaries: &[Binary],
    build_id: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<Groups> {
    let modules = profile.modules();
    let mut all = Groups {
        groups: vec![],
        of_module: vec![usize::MAX; modules.len()],
        placers: vec![],
    };
    let says_nothing = |module: &Module| module.path.is_empty() && module.build_id.is_empty();
    if modules.iter().any(says_nothing) {
        // Not a guess between several: an error.
        sole(input, binaries, build_id)?;
    }
    for binary in binaries {
        let elf = binary.elf()?;
        let placer = match Placer::of_file(&binary.path, &elf, profile, false) {
            Ok(placer) => placer,
            Err(AggregateError::NotSampled { .. }) => continue,
            Err(error @ AggregateError::BuildId { .. }) => {
                warnings.push(format!(
                    "{}: {error}; what it has of the other build is kept under that build-id",
                    input.path.display()
                ));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for (at, of_module) in all.of_module.iter_mut().enumerate() {
            if placer.is_binary(at) {
                *of_module = all.groups.len();
            }
        }
        all.groups.push(Group {
            build_id: binary.identity()?.to_string(),
            name: binary.name(),
            kind: AddressKind::Linked,
            collector: Collector::default(),
        });
        all.placers.push(Some(placer));
    }
    for (module, of_module) in modules.iter().zip(&mut all.of_module) {
        if *of_module != usize::MAX {
            continue;
        }
        let id = Identity::from_build_id(&module.build_id).map(|id| id.to_string());
        let id = match build_id {
            Some(given) if says_nothing(module) => given.to_owned(),
            _ => id.unwrap_or_default(),
        };
        let name = module.path.rsplit(|byte| *byte == b'/').next();
        let name = to_text(name.unwrap_or_default());
        let kind = match module.kind {
            Addresses::LinkTime => AddressKind::Linked,
            Addresses::FileOffset => AddressKind::FileOffset,
            Addresses::RunTime => AddressKind::RunTime,
        };
        // The same library in two folders is one file if its build-id says so.
        let same = |group: &Group| (&group.build_id, &group.name, group.kind) == (&id, &name, kind);
        *of_module = match all.groups.iter().position(same) {
            Some(at) if !id.is_empty() => at,
            _ => {
                all.groups.push(Group {
                    build_id: id,
                    name,
                    kind,
                    collector: Collector::default(),
                });
                all.placers.push(None);
                all.groups.len() - 1
            }
        };
    }
    Ok(all)
}

fn addresses(
    input: &Weighted,
    profile: &AddressProfile,
    binaries: &[Binary],
    build_id: Option<&str>,
    read: &mut Read,
) -> Result<()> {
    let mut all = groups(input, profile, binaries, build_id, &mut read.warnings)?;
    share_out(profile, &mut all);
    let rows = &mut read.rows;
    for (at, group) in all.groups.iter_mut().enumerate() {
        let file = rows.file(&group.build_id, &group.name);
        let one = std::mem::take(&mut group.collector).finish(&[Module::default()]);
        of_file(profile, &one, (file, group.kind, input.weight), rows);
        let mapped = profile
            .mapped
            .iter()
            .filter(|(module, _)| {
                let number = profile.modules().binary_search(module);
                number.is_ok_and(|number| all.of_module.get(number) == Some(&at))
            })
            .fold(0u64, |sum, (_, seen)| sum.saturating_add(seen.samples));
        statistic(
            file,
            "mapped_samples",
            mapped.saturating_mul(input.weight),
            rows,
        );
    }
    let recording = rows.file("", "");
    let seen = &profile.statistics;
    for (name, count) in [
        ("samples", seen.samples),
        ("samples_with_branches", seen.with_branches),
        ("branch_entries", seen.entries),
        ("branches", seen.branches),
        ("pairs", seen.pairs),
        ("mismatched_runs", seen.mismatched),
        ("outside", seen.outside),
        ("lost", seen.lost),
    ] {
        statistic(recording, name, count.saturating_mul(input.weight), rows);
    }
    Ok(())
}

fn statistic(file: u32, name: &str, count: u64, rows: &mut Rows) {
    if count > 0 {
        let row = Row {
            file,
            kind: Some(Kind::Statistic),
            from_function: Some(rows.name(name)),
            event: rows.name(""),
            count,
            ..Row::default()
        };
        rows.rows.push(row);
    }
}

/// Gives each group what is in its file, and the ways into and out of it.
fn share_out(profile: &AddressProfile, all: &mut Groups) {
    let inside = |group: usize, place: Option<(usize, u64)>| match place {
        Some((at, address)) if at == group => Place {
            module: ModuleId(0),
            address,
        },
        _ => Place::OUTSIDE,
    };
    for (trace, counts) in profile.traces().iter() {
        let start = all.place(trace.start);
        let from = match trace.origin {
            Origin::Branch(from) | Origin::Return(from) => all.place(from),
            Origin::Unknown | Origin::External | Origin::ExternalReturn => None,
        };
        let end = trace.end.and_then(|address| {
            all.place(Place {
                address,
                ..trace.start
            })
        });
        let groups = [start.map(|s| s.0), from.map(|f| f.0)];
        for (at, group) in groups.into_iter().enumerate() {
            let Some(group) = group.filter(|_| at == 0 || groups[0] != groups[1]) else {
                continue;
            };
            let origin = match trace.origin {
                Origin::Branch(_) => Origin::Branch(inside(group, from)),
                Origin::Return(_) => Origin::Return(inside(group, from)),
                other => other,
            };
            let trace = Trace {
                origin,
                start: inside(group, start),
                end: end.filter(|end| end.0 == group).map(|end| end.1),
            };
            if let Some(group) = all.groups.get_mut(group) {
                group.collector.trace(trace, counts);
            }
        }
    }
    for &(place, count) in profile.samples() {
        if let Some((at, address)) = all.place(place)
            && let Some(group) = all.groups.get_mut(at)
        {
            let module = ModuleId(0);
            group.collector.sample(Place { module, address }, count);
        }
    }
    for &((place, target), count) in profile.memory() {
        if let Some((at, address)) = all.place(place) {
            let target = match all.place(target) {
                Some((same, address)) if same == at => Place {
                    module: ModuleId(0),
                    address,
                },
                _ => Place {
                    module: ModuleId::NONE,
                    address: target.address,
                },
            };
            let module = ModuleId(0);
            if let Some(group) = all.groups.get_mut(at) {
                let place = Place { module, address };
                group.collector.access(place, target, count);
            }
        }
    }
}

/// The rows of one file; `profile` has one module.
fn of_file(
    whole: &AddressProfile,
    profile: &AddressProfile,
    (file, kind, weight): (u32, AddressKind, u64),
    rows: &mut Rows,
) {
    let mut row = Row {
        file,
        address_kind: Some(kind),
        ..Row::default()
    };
    row.event = heads(&whole.events, weight, row, rows);
    let inside = |place: Place| (!place.is_outside()).then_some(place.address);
    for (trace, counts) in profile.traces().iter() {
        let (kind, from) = match trace.origin {
            Origin::Branch(from) => (Kind::Branch, inside(from)),
            Origin::Return(from) => (Kind::Return, inside(from)),
            Origin::Unknown => (Kind::FallThrough, None),
            Origin::External => (Kind::FallThroughExternal, None),
            Origin::ExternalReturn => (Kind::FallThroughExternalReturn, None),
        };
        rows.rows.push(Row {
            kind: Some(kind),
            from_address: from,
            to_address: inside(trace.start),
            // The reader has left out runs that end before they start.
            run: trace.end.map(|end| end.saturating_sub(trace.start.address)),
            count: counts.count,
            mispredictions: counts.mispredictions,
            ..row
        });
    }
    for &(place, count) in profile.samples() {
        rows.rows.push(Row {
            kind: Some(Kind::Sample),
            from_address: inside(place),
            count,
            ..row
        });
    }
    for &((at, target), count) in profile.memory() {
        // An address outside of the file is one of the process, and `to_function` says so.
        let outside = target.is_outside().then(|| rows.name(OUTSIDE));
        rows.rows.push(Row {
            kind: Some(Kind::Memory),
            from_address: inside(at),
            to_function: outside,
            to_address: Some(target.address),
            count,
            ..row
        });
    }
}

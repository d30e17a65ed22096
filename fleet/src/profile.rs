//! The rows of one build as the profile file that `postlink merge` makes of the same profiles, byte for byte.
//!
//! The engine groups and adds; what comes is put in its place, whatever the order in which it comes. In memory is one
//! profile of one build.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use datafusion::arrow::array::RecordBatch;
use postlink_aggregate::Placer;
use postlink_elf::elf::Elf;
use postlink_profile::address::{
    AddressKind as Addresses, AddressProfile, Collector, Counts, Module, ModuleId, Origin, Place,
    Trace,
};
use postlink_profile::preaggregated::{self, Dialect};
use postlink_profile::symbolic::{
    BasicSample, Branch, Location, MemoryAccess, NameId, Records, SymbolicProfile,
};
use postlink_profile::{Digest, Identity, IdentityKind, Profile, Site, Subject, fdata, plprof};

use crate::engine::{Engine, TABLE, at, numbers, quoted, strings, sum};
use crate::rows::collection_named;
use crate::schema::{AddressKind, Kind, OUTSIDE, from_text};

/// Which rows are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub build_id: String,
    /// Of counters: the digest of the counter map; of fdata: how it was taken.
    pub map: Option<String>,
    /// Conditions in SQL, each of one column.
    pub conditions: Vec<String>,
    /// The file, for rows whose addresses are offsets in it.
    pub binary: Option<PathBuf>,
}

impl Wanted {
    fn filter(&self, kinds: &[AddressKind]) -> String {
        let kinds: Vec<String> = kinds.iter().map(|kind| quoted(kind.name())).collect();
        let mut filter = format!(
            "WHERE build_id = {} AND address_kind IN ({})",
            quoted(&self.build_id),
            kinds.join(", ")
        );
        let map = self
            .map
            .as_ref()
            .map(|map| format!("map = {}", quoted(map)));
        for condition in map.iter().chain(&self.conditions) {
            filter += &format!(" AND {condition}");
        }
        filter
    }
}

/// A format that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Plprof,
    Preaggregated,
    Fdata,
}

impl Target {
    /// By the extension of the output's name.
    pub fn of(path: &Path) -> Result<Target> {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        Ok(match &*extension {
            "plprof" => Target::Plprof,
            "preagg" | "pa" | "txt" => Target::Preaggregated,
            "fdata" => Target::Fdata,
            other => bail!(
                "{}: a profile ends in .plprof (counters), .preagg (addresses) or .fdata (functions), not in {other:?}",
                path.display()
            ),
        })
    }

    fn kinds(self) -> &'static [AddressKind] {
        match self {
            Target::Plprof => &[AddressKind::Counter],
            Target::Preaggregated => &[
                AddressKind::Linked,
                AddressKind::FileOffset,
                AddressKind::RunTime,
            ],
            Target::Fdata => &[AddressKind::Function],
        }
    }
}

/// Writes the profile of a build.
pub async fn write(engine: &Engine, wanted: &Wanted, path: &Path) -> Result<()> {
    let target = Target::of(path)?;
    match target {
        Target::Plprof => plprof::write(path, &counters(engine, wanted).await?)?,
        Target::Fdata => fdata::write(path, &symbols(engine, wanted).await?)?,
        Target::Preaggregated => {
            let mut text = Vec::new();
            addresses(engine, wanted, &mut text).await?;
            postlink_profile::write_atomically(path, |out| out.write_all(&text))?;
        }
    }
    Ok(())
}

/// What there is of a build, for the error when there is not what is wanted.
async fn nothing(engine: &Engine, wanted: &Wanted, target: Target) -> anyhow::Error {
    let mut there = Vec::new();
    let sql = format!(
        "SELECT address_kind, count(*) AS count FROM {TABLE} WHERE build_id = {} AND address_kind IS NOT NULL \
         GROUP BY address_kind ORDER BY address_kind",
        quoted(&wanted.build_id)
    );
    let read = engine
        .each(&sql, |batch| {
            let (kinds, counts) = (strings(batch, "address_kind")?, numbers(batch, "count")?);
            for row in 0..batch.num_rows() {
                let kind = at(&kinds, row).unwrap_or("none");
                there.push(format!("{} of {kind}", at(&counts, row).unwrap_or(0)));
            }
            Ok(())
        })
        .await;
    if let Err(error) = read {
        return error;
    }
    let kinds: Vec<&str> = target.kinds().iter().map(|kind| kind.name()).collect();
    let there = if there.is_empty() {
        "it has none at all".to_owned()
    } else {
        format!("without conditions it has {} rows", there.join(", "))
    };
    anyhow!(
        "the build {} has no rows of {} that fit: {there}",
        wanted.build_id,
        kinds.join(" or ")
    )
}

fn identity(text: &str) -> Result<Identity> {
    let (kind, hex) = match text.strip_prefix("content:") {
        Some(hex) => (IdentityKind::ContentHash, hex),
        None => (IdentityKind::BuildId, text),
    };
    let bytes = hex.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Option<Vec<u8>> = bytes.collect();
    bytes
        .and_then(|bytes| Identity::new(kind, &bytes))
        .with_context(|| {
            format!(
                "{text:?} is no build-id: must be 2 to {} hexadecimal digits, with content: before a hash",
                2 * Identity::MAX
            )
        })
}

/// What the rows say of one kind of profile: map, number of counters, number of call sites; and the events.
struct Heads {
    maps: BTreeSet<(String, u64, u64)>,
    events: BTreeSet<Vec<u8>>,
    kinds: BTreeSet<String>,
}

async fn heads(engine: &Engine, wanted: &Wanted, target: Target) -> Result<Heads> {
    let mut heads = Heads {
        maps: BTreeSet::new(),
        events: BTreeSet::new(),
        kinds: BTreeSet::new(),
    };
    let sql = format!(
        "SELECT DISTINCT map, from_address, to_address, event, address_kind FROM {TABLE} {} AND kind = 'profile'",
        wanted.filter(target.kinds())
    );
    engine
        .each(&sql, |batch| {
            let (maps, events) = (strings(batch, "map")?, strings(batch, "event")?);
            let kinds = strings(batch, "address_kind")?;
            let (from, to) = (
                numbers(batch, "from_address")?,
                numbers(batch, "to_address")?,
            );
            for row in 0..batch.num_rows() {
                heads.maps.insert((
                    at(&maps, row).unwrap_or_default().to_owned(),
                    at(&from, row).unwrap_or(0),
                    at(&to, row).unwrap_or(0),
                ));
                heads
                    .kinds
                    .insert(at(&kinds, row).unwrap_or_default().to_owned());
                let event = at(&events, row).unwrap_or_default();
                if !event.is_empty() {
                    heads.events.insert(from_text(event)?);
                }
            }
            Ok(())
        })
        .await?;
    if heads.maps.is_empty() {
        return Err(nothing(engine, wanted, target).await);
    }
    Ok(heads)
}

/// The only map, or an error that names all of them.
fn only(heads: &Heads, wanted: &Wanted) -> Result<(String, u64, u64)> {
    let mut maps = heads.maps.iter();
    match (maps.next(), maps.next()) {
        (Some(only), None) => Ok(only.clone()),
        _ => {
            let names: Vec<String> = heads
                .maps
                .iter()
                .map(|(map, counters, sites)| match counters {
                    0 => map.clone(),
                    _ => format!("{map} ({counters} counters, {sites} call sites)"),
                })
                .collect();
            bail!(
                "the build {} has profiles that cannot be added up: {} (two builds with one build-id, or one that was profiled in several ways); --map takes one of them",
                wanted.build_id,
                names.join(", ")
            )
        }
    }
}

/// The columns of an answer, by row.
struct Answer {
    kinds: datafusion::arrow::array::StringArray,
    from: datafusion::arrow::array::UInt64Array,
    to: datafusion::arrow::array::UInt64Array,
    counts: datafusion::arrow::array::UInt64Array,
}

impl Answer {
    fn new(batch: &RecordBatch) -> Result<Answer> {
        Ok(Answer {
            kinds: strings(batch, "kind")?,
            from: numbers(batch, "from_address")?,
            to: numbers(batch, "to_address")?,
            counts: numbers(batch, "count")?,
        })
    }

    fn kind(&self, row: usize) -> Result<Kind> {
        let name = at(&self.kinds, row).unwrap_or_default();
        Kind::named(name).with_context(|| format!("a row of the unknown kind {name:?}"))
    }

    fn from(&self, row: usize) -> Result<u64> {
        at(&self.from, row).with_context(|| {
            let kind = at(&self.kinds, row).unwrap_or_default();
            format!("a row of kind {kind} without from_address")
        })
    }

    fn count(&self, row: usize) -> u64 {
        at(&self.counts, row).unwrap_or(0)
    }
}

async fn counters(engine: &Engine, wanted: &Wanted) -> Result<Profile> {
    let heads = heads(engine, wanted, Target::Plprof).await?;
    let (map, counters, sites) = only(&heads, wanted)?;
    let digest = u64::from_str_radix(&map, 16)
        .ok()
        .filter(|_| map.len() == 16)
        .with_context(|| format!("the map {map:?} is no digest: must be 16 hexadecimal digits"))?;
    if counters > Subject::MAX_COUNTERS || sites > Subject::MAX_SITES {
        bail!(
            "the build {} says that it has {counters} counters and {sites} call sites; at most {} and {} are possible",
            wanted.build_id,
            Subject::MAX_COUNTERS,
            Subject::MAX_SITES
        );
    }
    let subject = Subject {
        identity: identity(&wanted.build_id)?,
        digest: Digest(digest),
        counters,
        sites,
    };
    let mut values = Vec::new();
    values
        .try_reserve_exact(counters as usize)
        .with_context(|| format!("no memory for {counters} counters"))?;
    values.resize(counters as usize, 0u64);
    let mut called: BTreeMap<u64, Site> = BTreeMap::new();
    let sql = format!(
        "SELECT kind, from_address, to_address, {} FROM {TABLE} {} AND kind <> 'profile' GROUP BY kind, from_address, to_address",
        sum("count"),
        wanted.filter(&[AddressKind::Counter])
    );
    engine
        .each(&sql, |batch| {
            let answer = Answer::new(batch)?;
            for row in 0..batch.num_rows() {
                let (kind, number, count) =
                    (answer.kind(row)?, answer.from(row)?, answer.count(row));
                let site = match kind {
                    Kind::Counter => {
                        let value = usize::try_from(number)
                            .ok()
                            .and_then(|at| values.get_mut(at));
                        *value.with_context(|| {
                            format!("a count of counter {number}, of {counters}")
                        })? = count;
                        continue;
                    }
                    Kind::Call => {
                        let to = at(&answer.to, row).context("a call without to_address")?;
                        Site::new([(to, count)], 0, 0)
                    }
                    Kind::CallExternal => Site::new([], count, 0),
                    Kind::CallOverflow => Site::new([], 0, count),
                    other => bail!("a row of kind {} among counters", other.name()),
                };
                if number >= sites {
                    bail!("a count of call site {number}, of {sites}");
                }
                called.entry(number).or_default().add(&site, 1);
            }
            Ok(())
        })
        .await?;
    Profile::from_parts(subject, values, called)
        .context("internal error: counters of another number than said")
}

async fn symbols(engine: &Engine, wanted: &Wanted) -> Result<SymbolicProfile> {
    let heads = heads(engine, wanted, Target::Fdata).await?;
    let (map, _, _) = only(&heads, wanted)?;
    let collection = collection_named(&map)
        .with_context(|| format!("{map:?} is no way in which an fdata profile is taken"))?;
    let mut names = Names::default();
    let mut records = Records::default();
    let keys = "kind, from_function, from_address, to_function, to_address";
    let sql = format!(
        "SELECT {keys}, {}, {} FROM {TABLE} {} AND kind <> 'profile' GROUP BY {keys}",
        sum("count"),
        sum("mispredictions"),
        wanted.filter(&[AddressKind::Function])
    );
    engine
        .each(&sql, |batch| {
            let answer = Answer::new(batch)?;
            let (from_names, to_names) = (
                strings(batch, "from_function")?,
                strings(batch, "to_function")?,
            );
            let missed = numbers(batch, "mispredictions")?;
            for row in 0..batch.num_rows() {
                let mut location = |name: Option<&str>, offset: Option<u64>| {
                    let name = name.context("a row without a function")?;
                    names.location(name, offset.context("a row without an offset")?)
                };
                let kind = answer.kind(row)?;
                let from = location(at(&from_names, row), at(&answer.from, row))?;
                let count = answer.count(row);
                match kind {
                    Kind::Sample => records.samples.push(BasicSample { at: from, count }),
                    Kind::Branch => records.branches.push(Branch {
                        from,
                        to: location(at(&to_names, row), at(&answer.to, row))?,
                        mispredictions: at(&missed, row).unwrap_or(0),
                        count,
                    }),
                    Kind::Memory => records.memory.push(MemoryAccess {
                        at: from,
                        address: location(at(&to_names, row), at(&answer.to, row))?,
                        count,
                    }),
                    other => bail!("a row of kind {} among functions", other.name()),
                }
            }
            Ok(())
        })
        .await?;
    let (names, events) = (names.list, heads.events);
    Ok(SymbolicProfile::new(collection, events, &names, records))
}

/// Names by their numbers.
#[derive(Default)]
struct Names {
    list: Vec<Vec<u8>>,
    numbers: HashMap<String, NameId>,
}

impl Names {
    fn location(&mut self, text: &str, offset: u64) -> Result<Location> {
        let (in_symbol, name) = match text.strip_prefix(OUTSIDE) {
            Some(name) => (false, name),
            None => (true, text),
        };
        let name = match self.numbers.get(text) {
            Some(number) => *number,
            None => {
                let number = NameId(u32::try_from(self.list.len())?);
                self.list.push(from_text(name)?);
                self.numbers.insert(text.to_owned(), number);
                number
            }
        };
        Ok(Location {
            in_symbol,
            name,
            offset,
        })
    }
}

/// Module of rows with addresses as linked, and of those with offsets.
const LINKED: ModuleId = ModuleId(0);
const BY_OFFSET: ModuleId = ModuleId(1);

async fn addresses(engine: &Engine, wanted: &Wanted, out: &mut impl Write) -> Result<()> {
    let heads = heads(engine, wanted, Target::Preaggregated).await?;
    let others = heads.kinds.iter().find(|kind| *kind != "linked");
    let build_id = match identity(&wanted.build_id) {
        Ok(identity) => identity.bytes().to_vec(),
        // Rows of no known build: what is linked can be written nevertheless.
        Err(_) if wanted.build_id.is_empty() => vec![],
        Err(error) => return Err(error),
    };
    let other = match others.map(String::as_str) {
        Some("run_time") => Addresses::RunTime,
        _ => Addresses::FileOffset,
    };
    let modules = [
        Module::default(),
        Module {
            path: wanted
                .binary
                .as_ref()
                .and_then(|path| path.file_name())
                .unwrap_or_default()
                .as_encoded_bytes()
                .to_vec(),
            build_id,
            kind: other,
        },
    ];
    let mut collector = Collector::default();
    collector.events = heads.events;
    let keys = "address_kind, kind, from_address, to_address, run";
    let sql = format!(
        "SELECT {keys}, {}, {} FROM {TABLE} {} AND kind NOT IN ('profile', 'statistic') GROUP BY {keys}",
        sum("count"),
        sum("mispredictions"),
        wanted.filter(Target::Preaggregated.kinds())
    );
    engine
        .each(&sql, |batch| {
            let answer = Answer::new(batch)?;
            let address_kinds = strings(batch, "address_kind")?;
            let (runs, missed) = (numbers(batch, "run")?, numbers(batch, "mispredictions")?);
            for row in 0..batch.num_rows() {
                let module = match at(&address_kinds, row) {
                    Some("linked") => LINKED,
                    _ => BY_OFFSET,
                };
                let counts = Counts {
                    count: answer.count(row),
                    mispredictions: at(&missed, row).unwrap_or(0),
                };
                let (to, run) = (at(&answer.to, row), at(&runs, row));
                record(&mut collector, &answer, row, (module, to, run), counts)?;
            }
            Ok(())
        })
        .await?;
    let profile = collector.finish(&modules);
    translated(&profile, wanted, others.map(String::as_str), out)
}

/// Puts one row where it belongs.
fn record(
    collector: &mut Collector,
    answer: &Answer,
    row: usize,
    (module, to, run): (ModuleId, Option<u64>, Option<u64>),
    counts: Counts,
) -> Result<()> {
    let place =
        |address: Option<u64>| address.map_or(Place::OUTSIDE, |address| Place { module, address });
    let from = at(&answer.from, row);
    let origin = match answer.kind(row)? {
        Kind::Branch => Origin::Branch(place(from)),
        Kind::Return => Origin::Return(place(from)),
        Kind::FallThrough => Origin::Unknown,
        Kind::FallThroughExternal => Origin::External,
        Kind::FallThroughExternalReturn => Origin::ExternalReturn,
        Kind::Sample => {
            collector.sample(place(Some(answer.from(row)?)), counts.count);
            return Ok(());
        }
        // No format that is written has them.
        Kind::Memory => return Ok(()),
        other => bail!("a row of kind {} among addresses", other.name()),
    };
    let end = match (to, run) {
        (Some(to), Some(run)) => Some(to.checked_add(run).with_context(|| {
            format!("a run of {run} bytes from {to:#x} on ends beyond all addresses")
        })?),
        _ => None,
    };
    let start = place(to);
    collector.trace(Trace { origin, start, end }, counts);
    Ok(())
}

/// Writes the text, with addresses of the binary.
fn translated(
    profile: &AddressProfile,
    wanted: &Wanted,
    other: Option<&str>,
    out: &mut impl Write,
) -> Result<()> {
    let Some(path) = &wanted.binary else {
        if let Some(kind) = other {
            bail!(
                "the build {} has rows whose addresses are of the kind {kind}: --binary FILE turns them to addresses of the file",
                wanted.build_id
            );
        }
        let translate = |place: Place| (!place.is_outside()).then_some(place.address);
        preaggregated::write_to(out, profile, Dialect::V22, translate)?;
        return Ok(());
    };
    let contents =
        std::fs::read(path).with_context(|| format!("{}: cannot read", path.display()))?;
    let elf = Elf::parse(&contents).with_context(|| path.display().to_string())?;
    let placer = Placer::of_file(path, &elf, profile, false)?;
    preaggregated::write_to(out, profile, Dialect::V22, |place| placer.address(place))?;
    Ok(())
}

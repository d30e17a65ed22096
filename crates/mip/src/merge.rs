//! Raw files into a profile.
//!
//! # The way
//!
//! Ten thousand raws of a hundred kilobytes are a gigabyte, of which hardly a bit is news. What must be quick
//! is the counters' inner loop; what must be small is memory, whatever the number of files. So each thread
//! has one buffer and one set of sums, takes file after file, and the sums are added at the end.
//!
//! * With function coverage all counters are bytes and the sum is over positions in the file, not over
//!   functions: up to 255 files of one weight are counted in bytes (which the compiler turns into vector
//!   instructions), then added to the wide sums.
//! * With call counts it is one pass over the functions of each file, without branches (which functions ran
//!   cannot be predicted) and without saturation: sums of files of one weight are kept apart until there
//!   could be an overflow.
//!
//! A run's order of first calls is worth more than the sum of places, so some are kept as they are: those
//! whose hash is smallest. The hash is taken along with the counts and costs a multiplication; the order
//! itself is only made when the hash is small enough.
//!
//! Nothing depends on the order in which files are read: sums are commutative, and of errors the one of the
//! first file counts.

#![warn(clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use postlink_profile::{Error, Mismatch, Weighted};
use rustc_hash::FxHashMap;

use crate::header::{Header, Kind, Types};
use crate::mip;
use crate::model::{Edge, MAX_TRACE_LENGTH, MAX_TRACES, MovedCaller, Profile, Trace};
use crate::raw::{Raw, le_u32};

/// How to merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The first bad file ends it, and nothing changes.
    pub strict: bool,
    /// Keep first-call orders of single runs.
    pub traces: bool,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Merged {
    /// Files that were taken.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files that were left out, in the order they were given.
    pub refused: Vec<Error>,
    /// Samples whose function is not in the profile.
    pub strays: u64,
}

/// Adds raw files to a profile; other profiles of the same program may be among them. In strict mode the
/// profile is as it was if there is an error.
pub fn merge(profile: &mut Profile, files: &[Weighted], options: Options) -> Result<Merged, Error> {
    let plan = Plan::new(profile, options);
    let next = AtomicUsize::new(0);
    let first_bad = AtomicUsize::new(usize::MAX);
    let errors = Mutex::new(Vec::new());
    let workers = rayon::current_num_threads().min(files.len()).max(1);
    let sums: Vec<Sums> = postlink_parallel::map_range(workers, |_| {
        let mut sums = Sums::new(&plan);
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(index) else {
                break;
            };
            if options.strict && index > first_bad.load(Ordering::Relaxed) {
                break;
            }
            if let Err(error) = sums.add_file(&plan, index, file) {
                first_bad.fetch_min(index, Ordering::Relaxed);
                errors
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .push((index, error));
            }
        }
        sums.flush(&plan);
        sums
    });
    let mut errors = errors
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut sums = sums.into_iter().reduce(Sums::and).unwrap_or_default();
    // Profiles are rare; one after the other, so that one at a time is in memory.
    let mut others: Option<Profile> = None;
    sums.profiles.sort_unstable();
    for &index in &sums.profiles {
        let Some(file) = files.get(index) else {
            continue;
        };
        let into = others.get_or_insert_with(|| profile.clone());
        let names = (Path::new("the profile"), file.path.as_path());
        let added =
            mip::open(&file.path).and_then(|other| add_profile(into, &other, file.weight, names));
        match added {
            Ok(()) => sums.files += 1,
            Err(error) => errors.push((index, error)),
        }
    }
    errors.sort_by_key(|(index, _)| *index);
    let mut errors = errors.into_iter().map(|(_, error)| error);
    if options.strict
        && let Some(error) = errors.next()
    {
        return Err(error);
    }
    if let Some(others) = others {
        *profile = others;
    }
    sums.apply(profile, &plan.places, plan.coverage);
    if !options.traces {
        profile.traces.clear();
    }
    Ok(Merged {
        files: sums.files,
        bytes: sums.bytes,
        refused: errors.collect(),
        strays: sums.strays,
    })
}

/// Adds the counts of another profile of the same program, `weight` times. Nothing is changed if there is an error.
pub fn add_profile(
    into: &mut Profile,
    other: &Profile,
    weight: u64,
    names: (&Path, &Path),
) -> Result<(), Error> {
    let differ = |what, a: String, b: String| {
        Err(Error::Mismatch(Box::new(Mismatch {
            first: names.0.to_owned(),
            second: names.1.to_owned(),
            what,
            a,
            b,
            hint: ": they are of different builds",
        })))
    };
    if into.module_hash != other.module_hash {
        return differ(
            "the module hash is",
            format!("{:#010X}", into.module_hash),
            format!("{:#010X}", other.module_hash),
        );
    }
    if into.types != other.types {
        return differ(
            "the profile type is",
            format!("{:#x}", into.types.0),
            format!("{:#x}", other.types.0),
        );
    }
    if into.identity != 0 && other.identity != 0 && into.identity != other.identity {
        return differ(
            "the build id begins with",
            format!("{:#018x}", into.identity),
            format!("{:#018x}", other.identity),
        );
    }
    if into.functions.len() != other.functions.len() {
        return differ(
            "the number of functions is",
            into.functions.len().to_string(),
            other.functions.len().to_string(),
        );
    }
    for (a, b) in into.functions.iter().zip(&other.functions) {
        if (a.signature, a.raw_offset, a.blocks.len())
            != (b.signature, b.raw_offset, b.blocks.len())
        {
            return differ(
                "a function is",
                format!("{} with counters at {:#x}", a.display_name(), a.raw_offset),
                format!("{} with counters at {:#x}", b.display_name(), b.raw_offset),
            );
        }
    }
    if into.callers != other.callers {
        return differ(
            "what calls are in another place, are",
            into.callers.len().to_string(),
            other.callers.len().to_string(),
        );
    }
    if into.identity == 0 {
        into.identity = other.identity;
    }
    let coverage = !into.types.has(Types::CALL_GRAPH);
    for (a, b) in into.functions.iter_mut().zip(&other.functions) {
        let raws = u64::from(b.raw_count).saturating_mul(weight);
        let raws = u32::try_from(raws).unwrap_or(u32::MAX);
        a.raw_count = a.raw_count.saturating_add(raws);
        a.call_count = if coverage {
            a.call_count.max(b.call_count)
        } else {
            let calls = b.call_count.saturating_mul(weight);
            a.call_count.saturating_add(calls)
        };
        let order = b.order_sum.saturating_mul(weight);
        a.order_sum = a.order_sum.saturating_add(order);
        for (block, other) in a.blocks.iter_mut().zip(&b.blocks) {
            block.covered |= other.covered;
        }
        let edges = b.edges.iter();
        let edges = edges.map(|edge| (edge.source, edge.weight.saturating_mul(weight)));
        add_edges(&mut a.edges, edges);
    }
    let traces = other.traces.iter().map(|trace| Trace {
        weight: trace.weight.saturating_mul(weight),
        ..trace.clone()
    });
    into.add_traces(traces.collect());
    Ok(())
}

fn add_edges(edges: &mut Vec<Edge>, more: impl IntoIterator<Item = (i64, u64)>) {
    edges.extend(
        more.into_iter()
            .map(|(source, weight)| Edge { source, weight }),
    );
    edges.sort_unstable_by_key(|edge| (edge.source, edge.weight));
    edges.dedup_by(|next, kept| {
        let same = next.source == kept.source;
        if same {
            kept.weight = kept.weight.saturating_add(next.weight);
        }
        same
    });
}

/// Where the counters of a function are.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    blocks: usize,
}

/// What all threads know.
struct Plan {
    types: Types,
    module_hash: u32,
    identity: u64,
    /// Only bytes, or counts as well.
    coverage: bool,
    /// Length that files must have at least.
    len: u64,
    places: Vec<Place>,
    /// With coverage: entries that follow from other counters, and where those are in `sources`.
    implied: Vec<(usize, std::ops::Range<usize>)>,
    /// Offsets of counters.
    sources: Vec<usize>,
    /// By function: a random number, for the hash of an order.
    marks: Vec<u64>,
    /// Functions by raw offset, for samples.
    by_offset: FxHashMap<u32, u32>,
    /// Calls that are in another place in the program that ran, for samples.
    callers: Vec<MovedCaller>,
    traces: bool,
}

impl Plan {
    fn new(profile: &Profile, options: Options) -> Plan {
        let coverage = !profile.types.has(Types::CALL_GRAPH);
        // A profile with counters further away than memory reaches has no raw that is long enough; `len` sees to that.
        let places = profile.functions.iter().map(|f| Place {
            offset: usize::try_from(f.raw_offset).unwrap_or(usize::MAX),
            blocks: f.blocks.len(),
        });
        let (mut implied, mut sources) = (Vec::new(), Vec::new());
        for function in &profile.functions {
            let Some(from) = function.entry_sources().filter(|_| coverage) else {
                continue;
            };
            let entry = usize::try_from(function.raw_offset).unwrap_or(usize::MAX);
            let start = sources.len();
            // Numbers of counters were checked when the map was read; what is outside of all files counts nothing.
            sources.extend(from.iter().map(|&n| entry.saturating_add(n as usize)));
            implied.push((entry, start..sources.len()));
        }
        let by_offset = profile
            .functions
            .iter()
            .zip(0u32..)
            .filter_map(|(f, index)| Some((u32::try_from(f.raw_offset).ok()?, index)));
        Plan {
            types: profile.types,
            module_hash: profile.module_hash,
            identity: profile.identity,
            coverage,
            len: profile.raw_len(),
            places: places.collect(),
            implied,
            sources,
            marks: if coverage {
                Vec::new()
            } else {
                (0..profile.functions.len() as u64).map(mix).collect()
            },
            by_offset: by_offset.collect(),
            callers: profile.callers.clone(),
            traces: options.traces && !coverage,
        }
    }

    /// The return address in the input of a sample's. What is not listed is in code that did not move.
    fn source(&self, ran: i64) -> i64 {
        let found = self.callers.binary_search_by_key(&ran, |caller| caller.ran);
        let caller = found.ok().and_then(|index| self.callers.get(index));
        caller.map_or(ran, |caller| caller.source)
    }

    /// Whether a raw belongs to the profile.
    fn check(&self, raw: &Raw<'_>) -> Result<(), Error> {
        let wrong = |at: u64, what: String| Err(crate::reader::bad(raw.path(), at, what));
        let header = &raw.header;
        if header.module_hash != self.module_hash {
            return wrong(
                12,
                format!(
                    "the module hash is {:#010X}, expected {:#010X} as in the profile: this is from another program, or from another build of it",
                    header.module_hash, self.module_hash
                ),
            );
        }
        if self.identity != 0
            && header.version > crate::header::VERSION
            && header.word != 0
            && header.word != self.identity
        {
            return wrong(
                16,
                format!(
                    "the build id begins with {:#018x}, expected {:#018x} as in the profile: this is from another build",
                    header.word, self.identity
                ),
            );
        }
        if header.kind == Kind::Samples {
            return Ok(());
        }
        let parts = Types::FUNCTION_COVERAGE
            .with(Types::BLOCK_COVERAGE)
            .with(Types::CALL_GRAPH)
            .with(Types::ZERO_FILLED)
            .with(Types::COUNTS_DOWN);
        if header.types.0 & parts.0 != self.types.0 & parts.0 {
            return wrong(
                8,
                format!(
                    "the profile type is {:#x}, and that of the profile {:#x}: they record different things",
                    header.types.0, self.types.0
                ),
            );
        }
        if (raw.counters.len() as u64) < self.len {
            return Err(Error::CutShort {
                path: raw.path().to_owned(),
                what: "a run of this program".to_owned(),
                expected: self.len,
                found: raw.counters.len() as u64,
            });
        }
        Ok(())
    }
}

/// Counts of one function.
#[derive(Clone, Copy, Default)]
struct Counts {
    raws: u64,
    calls: u64,
    order: u64,
}

/// The number of all edges to no function.
const STRAY: u32 = u32::MAX;

/// The sums of one thread.
#[derive(Default)]
struct Sums {
    files: usize,
    bytes: u64,
    strays: u64,
    /// Numbers of files that are profiles.
    profiles: Vec<usize>,
    buffer: Vec<u8>,
    /// With coverage: files that covered a byte, not yet in `positions`; of the same weight.
    stage: Vec<u8>,
    /// With call counts: what is not yet in `counts`, of files of the same weight.
    stage_counts: Vec<Counts>,
    /// How many files are staged, and their weight.
    staged: (u32, u64),
    /// With coverage: weighted number of files that covered each byte.
    positions: Vec<u64>,
    /// With call counts: by function.
    counts: Vec<Counts>,
    /// With call counts and block coverage: whether each byte was covered.
    covered: Vec<bool>,
    /// Offset of the callee's counters and source, as samples have them, to the number of the edge; [`STRAY`]
    /// if there is no such function. One look for each sample.
    numbers: FxHashMap<(u32, i32), u32>,
    /// (callee, source) and calls, by number.
    edges: Vec<((u32, i64), u64)>,
    /// By key, at most [`MAX_TRACES`].
    traces: BTreeMap<u64, Trace>,
}

impl Sums {
    fn new(plan: &Plan) -> Sums {
        Sums {
            counts: if plan.coverage {
                Vec::new()
            } else {
                vec![Counts::default(); plan.places.len()]
            },
            ..Sums::default()
        }
    }

    fn add_file(&mut self, plan: &Plan, index: usize, file: &Weighted) -> Result<(), Error> {
        let path = &file.path;
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = read_into(path, &mut buffer).and_then(|()| {
            if Header::read(path, &buffer, buffer.len() as u64)?.kind == Kind::Profile {
                self.profiles.push(index);
                return Ok(());
            }
            let raw = Raw::parse(path, &buffer)?;
            plan.check(&raw)?;
            self.add(plan, &raw, file.weight)?;
            self.files += 1;
            Ok(())
        });
        self.bytes += buffer.len() as u64;
        self.buffer = buffer;
        result
    }

    fn add(&mut self, plan: &Plan, raw: &Raw<'_>, weight: u64) -> Result<(), Error> {
        if raw.header.kind == Kind::Raw {
            if plan.coverage {
                self.add_bytes(plan, raw, weight);
            } else {
                self.add_counts(plan, raw, weight)?;
            }
        }
        for sample in raw.samples() {
            let calls = sample.weight.saturating_mul(weight);
            let edges = &mut self.edges;
            let number = *self
                .numbers
                .entry((sample.callee, sample.source))
                .or_insert_with(|| match plan.by_offset.get(&sample.callee) {
                    Some(&callee) if edges.len() < STRAY as usize => {
                        edges.push(((callee, plan.source(sample.source.into())), 0));
                        edges.len() as u32 - 1
                    }
                    _ => STRAY,
                });
            let sum = match self.edges.get_mut(number as usize) {
                Some((_, sum)) => sum,
                None => &mut self.strays,
            };
            *sum = sum.saturating_add(calls);
        }
        Ok(())
    }

    fn add_bytes(&mut self, plan: &Plan, raw: &Raw<'_>, weight: u64) {
        self.begin(plan, u8::MAX.into(), weight);
        // `check` saw that the file is long enough, and a file in memory has a length in memory.
        let counters = raw.counters.get(..plan.len as usize).unwrap_or_default();
        self.stage.resize(counters.len(), 0);
        if raw.covered(0) {
            for (sum, &byte) in self.stage.iter_mut().zip(counters) {
                *sum += u8::from(byte == 0);
            }
        } else {
            for (sum, &byte) in self.stage.iter_mut().zip(counters) {
                *sum += u8::from(byte != 0);
            }
        }
        let ran = |at: usize| counters.get(at).is_some_and(|&byte| raw.covered(byte));
        for (entry, sources) in &plan.implied {
            let sources = plan.sources.get(sources.clone()).unwrap_or_default();
            if !ran(*entry)
                && sources.iter().any(|&source| ran(source))
                && let Some(sum) = self.stage.get_mut(*entry)
            {
                // The entry itself has added nothing for this file. In a damaged map, two functions may have
                // the same entry.
                *sum = sum.saturating_add(1);
            }
        }
    }

    /// Makes space for another file of a weight, where so many can be staged.
    fn begin(&mut self, plan: &Plan, most: u32, weight: u64) {
        if self.staged.0 >= most || self.staged.1 != weight {
            self.flush(plan);
            self.staged.1 = weight;
        }
        self.staged.0 += 1;
    }

    /// Brings what is staged into the wide sums.
    fn flush(&mut self, plan: &Plan) {
        let (files, weight) = self.staged;
        if files == 0 {
            return;
        }
        if !plan.coverage {
            for (sum, staged) in self.counts.iter_mut().zip(&mut self.stage_counts) {
                let staged = std::mem::take(staged);
                let add = |sum: &mut u64, staged: u64| {
                    *sum = sum.saturating_add(staged.saturating_mul(weight))
                };
                add(&mut sum.raws, staged.raws);
                add(&mut sum.calls, staged.calls);
                add(&mut sum.order, staged.order);
            }
            self.staged.0 = 0;
            return;
        }
        self.positions.resize(self.stage.len(), 0);
        for (sum, staged) in self.positions.iter_mut().zip(&mut self.stage) {
            let add = u64::from(std::mem::take(staged)).saturating_mul(weight);
            *sum = sum.saturating_add(add);
        }
        self.staged.0 = 0;
    }

    fn add_counts(&mut self, plan: &Plan, raw: &Raw<'_>, weight: u64) -> Result<(), Error> {
        let never = if raw.header.types.has(Types::ZERO_FILLED) {
            0
        } else {
            u32::MAX
        };
        let down = raw.header.types.has(Types::COUNTS_DOWN);
        let counters = raw.counters;
        let pair = |place: &Place| -> (u32, u32) {
            // `check` saw that all counters are inside.
            let bytes = counters.get(place.offset..).unwrap_or_default();
            (le_u32(bytes, 0), le_u32(bytes, 4))
        };
        // First all checks, so that a bad file leaves no trace.
        let half = |place: &Place| {
            let (count, time) = pair(place);
            (count == never) != (time == never)
        };
        let (mut bad, mut ran) = (false, false);
        for place in &plan.places {
            bad |= half(place);
            ran |= pair(place).0 != never;
        }
        if bad && let Some(place) = plan.places.iter().find(|place| half(place)) {
            let (count, time) = pair(place);
            return Err(raw.half_set(place.offset as u64, count, time));
        }
        // Sums of so many numbers of 32 bits fit into 64.
        self.begin(plan, 1 << 31, weight);
        self.stage_counts
            .resize(plan.places.len(), Counts::default());
        let mut key = 0u64;
        let sums = plan
            .places
            .iter()
            .zip(&plan.marks)
            .zip(&mut self.stage_counts);
        for ((place, mark), sums) in sums {
            let (count, time) = pair(place);
            let ran = u64::from(count != never);
            let all = ran.wrapping_neg();
            let count = if down { count.wrapping_neg() } else { count };
            sums.raws = sums.raws.wrapping_add(ran);
            sums.calls = sums.calls.wrapping_add(u64::from(count) & all);
            sums.order = sums.order.wrapping_add(u64::from(time) & all);
            key = key.wrapping_add(mark.wrapping_mul(u64::from(time) | 1 << 32) & all);
        }
        if raw.header.types.has(Types::BLOCK_COVERAGE) {
            self.covered.resize(plan.len as usize, false);
            for place in plan.places.iter().filter(|place| place.blocks > 0) {
                let blocks = place.offset + 8..place.offset + 8 + place.blocks;
                let bytes = counters.get(blocks.clone()).unwrap_or_default();
                let sums = self.covered.get_mut(blocks).unwrap_or_default();
                for (sum, &byte) in sums.iter_mut().zip(bytes) {
                    *sum |= raw.covered(byte);
                }
            }
        }
        if plan.traces && ran {
            self.add_trace(mix(key), weight, || {
                let mut order: Vec<(u32, u32)> = plan
                    .places
                    .iter()
                    .zip(0u32..)
                    .filter_map(|(place, index)| {
                        let (count, time) = pair(place);
                        (count != never).then_some((time, index))
                    })
                    .collect();
                order.sort_unstable();
                order.truncate(MAX_TRACE_LENGTH);
                order.into_iter().map(|(_, index)| index).collect()
            });
        }
        Ok(())
    }

    /// Counts a trace, if its key is among the smallest. What was once pushed out never comes back, so its
    /// weight is complete or not wanted.
    fn add_trace(&mut self, key: u64, weight: u64, functions: impl FnOnce() -> Vec<u32>) {
        if let Some(trace) = self.traces.get_mut(&key) {
            trace.weight = trace.weight.saturating_add(weight);
            return;
        }
        let full = self.traces.len() >= MAX_TRACES;
        if full
            && self
                .traces
                .last_key_value()
                .is_some_and(|(last, _)| key > *last)
        {
            return;
        }
        let trace = Trace {
            key,
            functions: functions(),
            weight,
        };
        self.traces.insert(key, trace);
        if full {
            self.traces.pop_last();
        }
    }

    /// The sums of two threads.
    fn and(mut self, other: Sums) -> Sums {
        self.files += other.files;
        self.bytes += other.bytes;
        self.profiles.extend(other.profiles);
        self.strays = self.strays.saturating_add(other.strays);
        let len = self.positions.len().max(other.positions.len());
        self.positions.resize(len, 0);
        for (sum, more) in self.positions.iter_mut().zip(&other.positions) {
            *sum = sum.saturating_add(*more);
        }
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            sum.raws = sum.raws.saturating_add(more.raws);
            sum.calls = sum.calls.saturating_add(more.calls);
            sum.order = sum.order.saturating_add(more.order);
        }
        let len = self.covered.len().max(other.covered.len());
        self.covered.resize(len, false);
        for (sum, more) in self.covered.iter_mut().zip(&other.covered) {
            *sum |= *more;
        }
        // The same edge may come twice; it is put together at the end.
        self.edges.extend(other.edges);
        for (key, trace) in other.traces {
            self.add_trace(key, trace.weight, || trace.functions);
        }
        self
    }

    /// Adds the sums to the profile.
    fn apply(&self, profile: &mut Profile, places: &[Place], coverage: bool) {
        // Without any file that has them there are no positions; then nothing is covered.
        let blocks_recorded = profile.types.has(Types::BLOCK_COVERAGE);
        for (index, (function, place)) in profile.functions.iter_mut().zip(places).enumerate() {
            let raws;
            let entry;
            if coverage {
                raws = self.positions.get(place.offset).copied().unwrap_or(0);
                function.call_count = function.call_count.max(u64::from(raws > 0));
                entry = 1;
            } else {
                let counts = self.counts.get(index).copied().unwrap_or_default();
                raws = counts.raws;
                function.call_count = function.call_count.saturating_add(counts.calls);
                function.order_sum = function.order_sum.saturating_add(counts.order);
                entry = 8;
            }
            let raws = u32::try_from(raws).unwrap_or(u32::MAX);
            function.raw_count = function.raw_count.saturating_add(raws);
            if blocks_recorded {
                let first = place.offset.saturating_add(entry);
                if coverage {
                    let sums = self.positions.get(first..).unwrap_or_default();
                    for (block, &files) in function.blocks.iter_mut().zip(sums) {
                        block.covered |= files > 0;
                    }
                } else {
                    let sums = self.covered.get(first..).unwrap_or_default();
                    for (block, &covered) in function.blocks.iter_mut().zip(sums) {
                        block.covered |= covered;
                    }
                }
            }
        }
        let mut edges = self.edges.clone();
        edges.sort_unstable();
        for same in edges.chunk_by(|a, b| a.0.0 == b.0.0) {
            let of = same.first().map(|first| first.0.0 as usize);
            if let Some(function) = of.and_then(|of| profile.functions.get_mut(of)) {
                let more = same.iter().map(|((_, source), calls)| (*source, *calls));
                add_edges(&mut function.edges, more);
            }
        }
        profile.add_traces(self.traces.values().cloned().collect());
    }
}

/// Spreads a number over all bits.
fn mix(number: u64) -> u64 {
    let mut hash = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// Reads a file into a buffer that is used again.
fn read_into(path: &Path, buffer: &mut Vec<u8>) -> Result<(), Error> {
    let failed = |doing: &str, source| Error::Io {
        path: path.to_owned(),
        doing: doing.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(|error| failed("open", error))?;
    let len = file
        .metadata()
        .map_err(|error| failed("open", error))?
        .len();
    buffer.clear();
    let len = usize::try_from(len)
        .map_err(|_| failed("read", std::io::ErrorKind::FileTooLarge.into()))?;
    buffer
        .try_reserve(len)
        .map_err(|_| failed("read", std::io::ErrorKind::OutOfMemory.into()))?;
    file.read_to_end(buffer)
        .map_err(|error| failed("read", error))?;
    Ok(())
}

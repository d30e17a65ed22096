//! From samples by address to a profile by names: what `perf2bolt` does.
//!
//! ```text
//!  AddressProfile ──► Placer ──► branches, runs ──► returns dropped ──► names and offsets ──► SymbolicProfile
//!  (one or many        link-time                     runs cut into
//!   recordings)        addresses                     block edges
//! ```
//!
//! | file | subject |
//! |---|---|
//! | [`blocks`] | the blocks of a function |
//! | [`binary`] | the binary; which addresses of a recording are in it |
//! | [`translate`] | the seam for binaries that were optimised before |
//! | [`bat`] | translation by `.note.bolt_bat` |
//! | [`padding`] | whether what follows a function is padding |
//! | [`quality`] | how good the samples are |
//! | [`steps`] | branches and runs of a trace of single steps |
//! | [`yaml`] | between profiles by names and by blocks |
//!
//! A taken branch becomes a record between two places; one whose source is a return says nothing about edges
//! and is dropped. A run between two branches becomes a record for each block boundary that it crosses. A run
//! that leaves its function, or crosses a boundary over which control cannot go, is counted and otherwise
//! ignored. All this is as in BOLT 22, so that the same samples give the same text. The one thing more: a run
//! of an optimised binary that continues from one part of the code to the part after it is followed there,
//! unless [`Options::only_explained`] asks for what perf2bolt does. An optimiser that lays out hot code in
//! chains makes such runs of what were jumps; without them the profile of the second round lacks the hottest
//! jumps between functions and their cold parts.
//!
//! Functions are disassembled only if there are runs in them, each on its own and in parallel.

#![deny(clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, reason = "a test that fails may panic")
)]

mod bat;
mod binary;
pub mod blocks;
mod padding;
mod quality;
pub mod steps;
mod translate;
pub mod yaml;

pub use binary::{Binary, Placer};
pub use quality::Quality;
pub use translate::is_translated;

use std::collections::BTreeSet;
use std::path::PathBuf;

use postlink_bolt_symbols::Function;
use postlink_elf::FormatError;
use postlink_isa::{Flow, Isa, with_isa};
use postlink_profile::address::{AddressProfile, Counts, Origin, Place};
use postlink_profile::symbolic::{
    BasicSample, Branch, Collection, Location, MemoryAccess, NameId, Records, SymbolicProfile,
};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use blocks::{Arrival, References, Surroundings};

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The binary is not as it should be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Code of another machine.
    #[error("{}: machine {machine}: samples can be aggregated for x86-64 (62) and AArch64 (183)", path.display())]
    Machine {
        /// The binary.
        path: PathBuf,
        /// `e_machine`
        machine: u16,
    },
    /// Nothing to attribute samples to.
    #[error("{}: has neither function symbols nor unwind entries: samples cannot be attributed to functions", path.display())]
    NoFunctions {
        /// The binary.
        path: PathBuf,
    },
    /// The recording is of another version.
    #[error("{}: the build-id is {ours} in the binary and {theirs} in the recording: it was made with another version of the file (--ignore-build-id takes it nevertheless)", path.display())]
    BuildId {
        /// The binary.
        path: PathBuf,
        /// Its build-id.
        ours: String,
        /// That of the file of the same name in the recording.
        theirs: String,
    },
    /// The recording does not know the binary.
    #[error("{}: is not among the sampled files: {others}", path.display())]
    NotSampled {
        /// The binary.
        path: PathBuf,
        /// Some of the files that are.
        others: String,
    },
    /// Addresses of processes that cannot be attributed.
    #[error("{}: is position-independent, and the samples do not say where it was loaded: `perf script --show-mmap-events` does", path.display())]
    NoMappings {
        /// The binary.
        path: PathBuf,
    },
    /// There are no samples of the binary.
    #[error("{}: {what}", path.display())]
    Empty {
        /// The binary.
        path: PathBuf,
        /// What was looked at and why nothing is left.
        what: String,
    },
}

/// What may be chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Take a recording of a file of the same name with another build-id.
    pub ignore_build_id: bool,
    /// Keep memory accesses to what is no object of the binary: stack and heap.
    pub all_memory: bool,
    /// Do not believe in runs in functions of which BOLT has no blocks, nor in those that continue from one part of
    /// an optimised binary to the next.
    pub only_explained: bool,
}

/// A profile and how good it is.
#[derive(Clone, Debug)]
pub struct Aggregated {
    /// The profile.
    pub profile: SymbolicProfile,
    /// How it was made.
    pub quality: Quality,
}

/// Aggregates samples of a binary.
///
/// Errors: samples of another binary; no sample in any function.
pub fn aggregate(
    binary: &Binary<'_, '_>,
    samples: &AddressProfile,
    options: Options,
) -> Result<Aggregated, Error> {
    with_isa!(binary.machine, I => aggregate_with::<I>(binary, samples, options))
}

/// A taken branch: link-time addresses, `None` outside of the binary.
type Taken = (End, End, Counts);

/// An end of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// In a function: its index, address.
    In(u32, u64),
    /// In none.
    Out,
}

/// A run: first and last address, how control came to the first, how often.
type Run = (u64, u64, Arrival, u64);

fn aggregate_with<I: Isa>(
    binary: &Binary<'_, '_>,
    samples: &AddressProfile,
    options: Options,
) -> Result<Aggregated, Error> {
    let placer = Placer::new(binary, samples, options.ignore_build_id)?;
    let mut quality = Quality::new(samples, &placer);
    let Placed {
        taken,
        runs,
        crossed,
    } = place::<I>(binary, samples, &placer, options, &mut quality);
    let mut names = Names::default();
    let mut records = Records::default();
    let falls = fall_throughs::<I>(binary, &runs, options, &mut quality);
    for (function, from, to, count) in falls {
        let name = names.of(binary, function);
        records.branches.push(Branch {
            from: within(name, from),
            to: within(name, to),
            mispredictions: 0,
            count,
        });
    }
    cross_falls(binary, &crossed, &mut names, &mut records);
    branches(binary, &taken, &mut names, &mut records);
    let lbr = !samples.traces().is_empty() || samples.samples().is_empty();
    if !lbr {
        basic::<I>(
            binary,
            samples,
            &placer,
            &mut names,
            &mut records,
            &mut quality,
        );
    }
    memory::<I>(binary, samples, &placer, options, &mut names, &mut records);
    quality.functions = names.functions.len();
    if records.branches.is_empty() && records.samples.is_empty() && records.memory.is_empty() {
        return Err(Error::Empty {
            path: binary.path.clone(),
            what: quality.why_empty(),
        });
    }
    let collection = Collection {
        branches: lbr,
        bolted: binary.translate.is_some(),
    };
    let events: BTreeSet<Vec<u8>> = samples.events.clone();
    let profile = SymbolicProfile::new(Some(collection), events, &names.list, records);
    Ok(Aggregated { profile, quality })
}

fn within(name: NameId, offset: u64) -> Location {
    Location {
        in_symbol: true,
        name,
        offset,
    }
}

/// Names of functions and objects that records mention, numbered as they come.
#[derive(Default)]
struct Names<'d> {
    list: Vec<std::borrow::Cow<'d, [u8]>>,
    functions: FxHashMap<u32, NameId>,
    objects: FxHashMap<usize, NameId>,
    unknown: Option<NameId>,
}

impl<'d> Names<'d> {
    fn push(
        list: &mut Vec<std::borrow::Cow<'d, [u8]>>,
        name: std::borrow::Cow<'d, [u8]>,
    ) -> NameId {
        list.push(name);
        NameId(list.len() as u32 - 1)
    }

    fn of(&mut self, binary: &Binary<'_, 'd>, function: u32) -> NameId {
        *self.functions.entry(function).or_insert_with(|| {
            let name = binary
                .functions
                .name(function as usize, binary.translate.is_some());
            Names::push(&mut self.list, name)
        })
    }

    fn unknown(&mut self) -> NameId {
        *self
            .unknown
            .get_or_insert_with(|| Names::push(&mut self.list, b"[unknown]".as_slice().into()))
    }
}

/// A run that continues from one part of the code to the part after it: both, how often.
type Crossed = (u32, u32, u64);

/// Most parts that a run is followed through.
const MOST_PARTS: usize = 16;

/// What was found in the binary.
#[derive(Default)]
struct Placed {
    taken: Vec<Taken>,
    runs: Vec<Run>,
    crossed: Vec<Crossed>,
}

/// The parts of the code that a run goes through when it begins in one and ends in another, both without
/// gaps, and none of them ends in what does not continue. The optimiser puts blocks of several functions one
/// after the other; what was a jump in the binary that went in is a run in the one that came out. perf2bolt
/// drops such runs.
fn parts_of_run<I: Isa>(
    binary: &Binary<'_, '_>,
    start: End,
    end: End,
) -> Option<std::ops::RangeInclusive<u32>> {
    let translate = binary.translate.as_deref()?;
    let (End::In(first, from), End::In(last, _)) = (start, end) else {
        return None;
    };
    let list = binary.functions.list();
    let parts = list.get(first as usize..=last as usize)?;
    if parts.len() < 2 || parts.len() > MOST_PARTS {
        return None;
    }
    for (index, pair) in parts.windows(2).enumerate() {
        let [part, next] = pair else { continue };
        let from = if index == 0 { from } else { part.start };
        let end = part.start.checked_add(part.size)?;
        let known = |part: &Function| translate.block_at(part.start, 0).is_some();
        if end != next.start || from >= end || !known(part) || !known(next) {
            return None;
        }
        let bytes = binary.elf.bytes_at(from, end - from)?;
        let mut flow = None;
        let stopped = I::sweep(bytes, from, |insn| {
            flow = Some(insn.flow);
            true
        });
        let goes_on = !matches!(
            flow?,
            Flow::Jump { .. } | Flow::IndirectJump | Flow::Return | Flow::Stop
        );
        if stopped.is_some() || !goes_on {
            return None;
        }
    }
    Some(first..=last)
}

/// Records of runs that went on from one part of the code to another: edges of the binary that went in.
fn cross_falls<'d>(
    binary: &Binary<'_, 'd>,
    crossed: &[Crossed],
    names: &mut Names<'d>,
    records: &mut Records,
) {
    let functions = &binary.functions;
    let Some(translate) = binary.translate.as_deref() else {
        return;
    };
    let mut block = |part: u32, offset: u64| -> Option<Location> {
        let start = functions.list().get(part as usize)?.start;
        let offset = translate.block_at(start, offset)?;
        let parent = translate.parent(start).and_then(|at| functions.at(at));
        let function = parent.map_or(part, |index| index as u32);
        Some(within(names.of(binary, function), offset))
    };
    for &(part, next, count) in crossed {
        let Some(function) = functions.list().get(part as usize) else {
            continue;
        };
        let last = function.size.saturating_sub(1);
        if let (Some(from), Some(to)) = (block(part, last), block(next, 0)) {
            records.branches.push(Branch {
                from,
                to,
                mispredictions: 0,
                count,
            });
        }
    }
}

/// Finds branches and runs in the binary, summed and sorted.
fn place<I: Isa>(
    binary: &Binary<'_, '_>,
    samples: &AddressProfile,
    placer: &Placer,
    options: Options,
    quality: &mut Quality,
) -> Placed {
    let functions = &binary.functions;
    let end = |place: Place| {
        let found = placer.address(place);
        let found = found.and_then(|address| Some((function_at::<I>(binary, address)?, address)));
        found.map_or(End::Out, |(index, address)| End::In(index as u32, address))
    };
    // A record that says of its branch that it is a return says it of all branches from there.
    let is_somewhere = |place: &Place| placer.address(*place).is_some_and(|address| address != 0);
    let said: FxHashSet<Place> = samples.traces().returns().filter(is_somewhere).collect();
    let chunks: Vec<(Placed, Quality)> = postlink_parallel::map_owned(
        samples.traces().parts(1 << 15),
        |chunk| {
            let Placed {
                mut taken,
                mut runs,
                mut crossed,
            } = Placed::default();
            let mut seen = Quality::default();
            let mut recent: Option<(Place, (End, bool))> = None;
            for (trace, counts) in chunk {
                let start = end(trace.start);
                let arrival = match trace.origin {
                    Origin::Branch(from) | Origin::Return(from) => {
                        // Traces are sorted by where they come from.
                        let (source, returns) = match recent {
                            Some((place, known)) if place == from => known,
                            _ => {
                                let source = end(from);
                                let returns =
                                    said.contains(&from) || is_return::<I>(binary, source);
                                recent.insert((from, (source, returns))).1
                            }
                        };
                        let returned = returns || matches!(trace.origin, Origin::Return(_));
                        if !returned && (source, start) != (End::Out, End::Out) {
                            // One branch, and many runs after it.
                            match taken.last_mut() {
                                Some((a, b, sum)) if (*a, *b) == (source, start) => sum.add(counts),
                                _ => taken.push((source, start, counts)),
                            }
                        }
                        let own = |a: u32, address: u64| {
                            let list = functions.list();
                            list.get(a as usize)
                                .is_some_and(|own| own.contains(address))
                        };
                        let stays = matches!((source, start), (End::In(a, address), End::In(b, _)) if a == b && own(a, address));
                        Arrival {
                            foreign: !stays,
                            returned,
                        }
                    }
                    Origin::Unknown => Arrival::default(),
                    Origin::External | Origin::ExternalReturn => Arrival {
                        foreign: true,
                        returned: trace.origin == Origin::ExternalReturn,
                    },
                };
                let Some(last) = trace.end else { continue };
                let last = Place {
                    address: last,
                    ..trace.start
                };
                let last_end = end(last);
                match (start, last_end) {
                    (End::In(a, from), End::In(b, to)) => {
                        if a == b {
                            seen.runs = seen.runs.saturating_add(counts.count);
                            runs.push((from, to, arrival, counts.count));
                        } else if !options.only_explained
                            && let Some(parts) = parts_of_run::<I>(binary, start, last_end)
                        {
                            seen.runs = seen.runs.saturating_add(counts.count);
                            for part in parts {
                                let Some(f) = functions.list().get(part as usize) else {
                                    continue;
                                };
                                let from = from.max(f.start);
                                let end = to.min(f.start + (f.size - 1)); // it has code
                                let start = if part == a {
                                    arrival
                                } else {
                                    Arrival::default()
                                };
                                runs.push((from, end, start, counts.count));
                                if part < b {
                                    crossed.push((part, part + 1, counts.count));
                                }
                            }
                        } else {
                            seen.mismatching = seen.mismatching.saturating_add(counts.count);
                        }
                    }
                    _ => seen.out_of_range = seen.out_of_range.saturating_add(counts.count),
                }
            }
            add_runs(&mut runs);
            let placed = Placed {
                taken,
                runs,
                crossed,
            };
            (placed, seen)
        },
    );
    quality.add(&backward(binary, samples, end));
    let mut all = Placed::default();
    for (mut more, seen) in chunks {
        all.taken.append(&mut more.taken);
        all.runs.append(&mut more.runs);
        all.crossed.append(&mut more.crossed);
        quality.add(&seen);
    }
    let Placed {
        mut taken,
        mut runs,
        crossed,
    } = all;
    taken.par_sort_unstable_by_key(|t: &Taken| (t.0, t.1));
    taken.dedup_by(|next, kept| {
        let same = (next.0, next.1) == (kept.0, kept.1);
        if same {
            kept.2.add(next.2);
        }
        same
    });
    add_runs(&mut runs);
    Placed {
        taken,
        runs,
        crossed,
    }
}

/// What runs are that end before they begin: wrong in a function, unless its table is asked, which knows no edges for
/// them.
fn backward(
    binary: &Binary<'_, '_>,
    samples: &AddressProfile,
    end: impl Fn(Place) -> End,
) -> Quality {
    let mut seen = Quality::default();
    let list = samples.backward();
    for &((start, address), count) in list {
        let last = Place { address, ..start };
        let sum = match (end(start), end(last)) {
            (End::In(a, _), End::In(b, _)) => {
                let function = binary.functions.list().get(a as usize);
                let tables = binary.translate.as_deref().filter(|_| a == b);
                let knows = tables
                    .zip(function)
                    .is_some_and(|(tables, f)| tables.knows(f.start));
                if knows {
                    &mut seen.runs
                } else {
                    &mut seen.mismatching
                }
            }
            _ => &mut seen.out_of_range,
        };
        *sum = sum.saturating_add(count);
    }
    let counted = list.iter().fold(0u64, |sum, run| sum.saturating_add(run.1));
    // The others begin in one module and end in another.
    let others = samples.statistics.mismatched.saturating_sub(counted);
    seen.out_of_range = seen.out_of_range.saturating_add(others);
    seen
}

/// Sorts runs and adds up equal ones.
fn add_runs(runs: &mut Vec<Run>) {
    runs.par_sort_unstable();
    runs.dedup_by(|next: &mut Run, kept: &mut Run| {
        let same = (next.0, next.1, next.2) == (kept.0, kept.1, kept.2);
        if same {
            kept.3 = kept.3.saturating_add(next.3);
        }
        same
    });
}

/// A fall-through: function, offsets from and to, how often.
type Fall = (u32, u64, u64, u64);

/// Cuts runs into fall-throughs.
fn fall_throughs<I: Isa>(
    binary: &Binary<'_, '_>,
    runs: &[Run],
    options: Options,
    quality: &mut Quality,
) -> Vec<Fall> {
    let functions = &binary.functions;
    let index_of = |run: &Run| functions.at(run.0);
    let groups: Vec<&[Run]> = runs.chunk_by(|a, b| index_of(a) == index_of(b)).collect();
    // Code without a translation table is what it was in the input.
    let table_of = |function: &Function| {
        let tables = binary.translate.as_deref();
        tables.filter(|tables| tables.knows(function.start))
    };
    let cut = groups.iter().filter_map(|group| {
        let index = index_of(group.first()?)?;
        let function = functions.list().get(index)?;
        (!function.stub && table_of(function).is_none()).then_some(index)
    });
    let cut: Vec<usize> = cut.collect();
    let crossings = if cut.is_empty() {
        Vec::new()
    } else {
        crossings_of::<I>(binary, cut)
    };
    let references = References::new(binary.elf);
    let parts: Vec<(Vec<Fall>, u64)> = postlink_parallel::map(&groups, |group| {
        let index = group.first().and_then(index_of);
        let function = index.and_then(|index| functions.list().get(index));
        let (Some(index), Some(function)) = (index, function) else {
            return (Vec::new(), 0);
        };
        let start = function.start;
        let mut sums: FxHashMap<(u64, u64), u64> = FxHashMap::default();
        let mut wrong = 0u64;
        let mut add = |from: u64, to: u64, count: u64| {
            let sum = sums.entry((from, to)).or_default();
            *sum = sum.saturating_add(count);
        };
        let mut owner = index;
        if function.stub {
            // It has no blocks, and its runs are as they should be.
        } else if let Some(tables) = table_of(function) {
            for &(from, to, arrival, count) in *group {
                // What a return leads to goes on from the block of the call, the last byte of which is before it. No
                // call is before a function: perf2bolt leaves such runs out.
                let Some(from) = (from - start).checked_sub(arrival.returned.into()) else {
                    continue;
                };
                tables.fall_throughs(start, from, to - start, &mut |a, b| add(a, b, count));
            }
            let parent = tables.parent(start).and_then(|at| functions.at(at));
            owner = parent.unwrap_or(index);
        } else {
            let around = Surroundings {
                elf: binary.elf,
                functions,
                unwind: &binary.unwind,
                crossings: &crossings,
                references: &references,
            };
            let mut blocks = blocks::blocks::<I>(&around, index);
            // With kept relocations perf2bolt leaves a function alone that is followed by what is no padding.
            blocks.explained &=
                !binary.elf.has_kept_relocs() || padding::is_padded::<I>(binary.elf, function);
            blocks.explained |= !options.only_explained;
            for &(from, to, arrival, count) in *group {
                let (from, to) = (from - start, to - start);
                if !blocks.run(from, to, arrival, |a, b| {
                    add(u64::from(a), u64::from(b), count)
                }) {
                    wrong = wrong.saturating_add(count);
                }
            }
        }
        let falls = sums
            .into_iter()
            .map(|((from, to), count)| (owner as u32, from, to, count))
            .collect();
        (falls, wrong)
    });
    let mut falls = Vec::new();
    for (mut more, wrong) in parts {
        falls.append(&mut more);
        quality.impossible = quality.impossible.saturating_add(wrong);
    }
    falls
}

/// Addresses inside functions to which other functions jump, mostly between a function and its split-off parts: as
/// seen from some functions and all fragments.
fn crossings_of<I: Isa>(binary: &Binary<'_, '_>, mut wanted: Vec<usize>) -> Vec<u64> {
    let functions = &binary.functions;
    let fragments = functions.list().iter().enumerate();
    wanted.extend(
        fragments
            .filter(|(_, f)| f.fragment)
            .map(|(index, _)| index),
    );
    wanted.sort_unstable();
    wanted.dedup();
    let around = Surroundings {
        elf: binary.elf,
        functions,
        unwind: &binary.unwind,
        crossings: &[],
        references: &References::default(),
    };
    let mut found: Vec<u64> = postlink_parallel::flat_map(&wanted, |&function| {
        let mut out = Vec::new();
        blocks::outside::<I>(&around, function, |target| {
            let to = functions.at(target).and_then(|to| functions.list().get(to));
            if to.is_some_and(|to| to.start != target && to.contains(target) && !to.stub) {
                out.push(target);
            }
        });
        out
    });
    found.par_sort_unstable();
    found.dedup();
    found
}

/// Turns taken branches to records.
fn branches<'d>(
    binary: &Binary<'_, 'd>,
    taken: &[Taken],
    names: &mut Names<'d>,
    records: &mut Records,
) {
    let functions = &binary.functions;
    let translate = binary.translate.as_deref();
    // Function and offset, translated.
    let place = |end: End, is_branch: bool| -> Option<(u32, u64)> {
        let End::In(index, address) = end else {
            return None;
        };
        let start = functions.list().get(index as usize)?.start;
        let offset = address - start;
        let Some(translate) = translate else {
            return Some((index, offset));
        };
        let offset = translate.input_offset(start, offset, is_branch);
        let parent = translate.parent(start).and_then(|at| functions.at(at));
        Some((parent.map_or(index, |parent| parent as u32), offset))
    };
    for &(from, to, counts) in taken {
        let (a, b) = (place(from, true), place(to, false));
        let mut location = |found: Option<(u32, u64)>| match found {
            Some((function, offset)) => within(names.of(binary, function), offset),
            None => Location {
                in_symbol: false,
                name: names.unknown(),
                offset: 0,
            },
        };
        let (from, to) = (location(a), location(b));
        records.branches.push(Branch {
            from,
            to,
            mispredictions: counts.mispredictions,
            count: counts.count,
        });
    }
}

/// The function that an address is in, or in the padding after it. Kept relocations are taken to tell of all code.
fn function_at<I: Isa>(binary: &Binary<'_, '_>, address: u64) -> Option<usize> {
    let index = binary.functions.at(address)?;
    let function = binary.functions.list().get(index)?;
    let is_in = function.contains(address)
        || function.stub
        || binary.elf.has_kept_relocs()
        || padding::is_padded::<I>(binary.elf, function);
    is_in.then_some(index)
}

/// Whether a branch is a return.
fn is_return<I: Isa>(binary: &Binary<'_, '_>, end: End) -> bool {
    let End::In(index, address) = end else {
        return false;
    };
    let Some(function) = binary.functions.list().get(index as usize) else {
        return false;
    };
    // perf2bolt decodes no padding.
    let left = function.size.saturating_sub(address - function.start);
    binary
        .elf
        .bytes_at(address, left.min(16))
        .and_then(|bytes| I::decode(bytes, address))
        .is_some_and(|insn| insn.flow == Flow::Return)
}

/// Samples of addresses.
fn basic<'d, I: Isa>(
    binary: &Binary<'_, 'd>,
    samples: &AddressProfile,
    placer: &Placer,
    names: &mut Names<'d>,
    records: &mut Records,
    quality: &mut Quality,
) {
    let functions = &binary.functions;
    for &(place, count) in samples.samples() {
        let Some(address) = placer.address(place) else {
            continue;
        };
        quality.basic = quality.basic.saturating_add(count);
        let function = function_at::<I>(binary, address);
        let function = function.and_then(|at| Some((at, functions.list().get(at)?)));
        let Some((index, function)) = function else {
            quality.basic_outside = quality.basic_outside.saturating_add(count);
            continue;
        };
        let start = function.start;
        let (mut owner, mut offset) = (index, address - start);
        if let Some(translate) = &binary.translate {
            offset = translate.input_offset(start, offset, false);
            if let Some(parent) = translate.parent(start).and_then(|at| functions.at(at)) {
                owner = parent;
            }
        }
        records.samples.push(BasicSample {
            at: within(names.of(binary, owner as u32), offset),
            count,
        });
    }
}

/// Memory accesses.
fn memory<'d, I: Isa>(
    binary: &Binary<'_, 'd>,
    samples: &AddressProfile,
    placer: &Placer,
    options: Options,
    names: &mut Names<'d>,
    records: &mut Records,
) {
    let functions = &binary.functions;
    for &((at, target), count) in samples.memory() {
        let Some((address, index)) = placer
            .address(at)
            .and_then(|address| Some((address, function_at::<I>(binary, address)?)))
        else {
            continue;
        };
        let Some(function) = functions.list().get(index) else {
            continue;
        };
        // What has no contents in the file is mapped without it. Of a program that is not moved its address says what
        // it is.
        let known = placer.address(target).or_else(|| {
            let is_itself = target.is_outside() && binary.is_fixed();
            is_itself.then_some(target.address)
        });
        let object = known.and_then(|address| Some((address, functions.object_at(address)?)));
        let to = match object {
            Some((address, object)) => {
                let Some((start, name)) = functions.object(object) else {
                    continue;
                };
                let name = *names
                    .objects
                    .entry(object)
                    .or_insert_with(|| Names::push(&mut names.list, name));
                within(name, address - start)
            }
            None if options.all_memory => Location {
                in_symbol: false,
                name: names.unknown(),
                offset: known.unwrap_or(target.address),
            },
            None => continue,
        };
        let offset = address - function.start;
        records.memory.push(MemoryAccess {
            at: within(names.of(binary, index as u32), offset),
            address: to,
            count,
        });
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! A profile by addresses: what sampling gives before anybody has looked at the binary.
//!
//! A [`Place`] is an address in a [`Module`] (an executable or a shared object). What the number means is
//! said by the module's [`AddressKind`]: perf knows places as offsets in files, pre-aggregated texts as
//! addresses of the binary as it was linked. The reader of the binary's program headers translates.
//!
//! Branch records become [`Trace`]s: control came from somewhere ([`Origin`]), arrived at `start`, and went
//! on without a taken branch up to the branch at `end`. A branch stack of n entries is n traces; the newest
//! has no end. This is the most precise form: plain counts of branches and of fall-throughs are sums over it
//! ([`AddressProfile::branches`], [`AddressProfile::fall_throughs`]).
//!
//! Lists are sorted and without repetition, modules too, so that equal profiles are equal values. Merging is
//! a commutative monoid with [`AddressProfile::default`] as identity; counts saturate.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::symbolic::merge_sorted;
use crate::traces::{Tally, Traces};

/// What the addresses of a module are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressKind {
    /// Addresses of the file as it was linked (a position-independent one at load address 0).
    #[default]
    LinkTime,
    /// Offsets in the file.
    FileOffset,
    /// Addresses in the process: nothing is known of its mappings.
    RunTime,
}

/// An executable or a shared object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Module {
    /// Its path; empty for the binary that a pre-aggregated profile is about.
    pub path: Vec<u8>,
    /// Its build-id; empty if not known.
    pub build_id: Vec<u8>,
    /// What addresses in it mean.
    pub kind: AddressKind,
}

/// Number of a module in [`AddressProfile::modules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

impl ModuleId {
    /// In no module: the kernel, or memory that no file is mapped to.
    pub const NONE: ModuleId = ModuleId(u32::MAX);
}

/// An address in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The module.
    pub module: ModuleId,
    /// The address, as the module's [`AddressKind`] says.
    pub address: u64,
}

impl Place {
    /// Any place in no module.
    pub const OUTSIDE: Place = Place {
        module: ModuleId::NONE,
        address: 0,
    };

    /// Whether it is in no module.
    pub fn is_outside(&self) -> bool {
        self.module == ModuleId::NONE
    }
}

/// How control got to the start of a trace.
///
/// With `Branch` and `Return` the trace counts the branch and the run after it. With the others it counts the
/// run alone: the branch, if it was recorded, is in another trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// By a branch, call or return here; [`Place::OUTSIDE`] if that is in no module.
    Branch(Place),
    /// By a return here.
    Return(Place),
    /// By a branch within the binary.
    Unknown,
    /// From outside.
    External,
    /// By a return from outside.
    ExternalReturn,
}

/// An arrival, and the straight run that followed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trace {
    /// Where control came from.
    pub origin: Origin,
    /// Where it arrived.
    pub start: Place,
    /// The branch that ended the run, in the module of `start`; `None` if that is not recorded.
    pub end: Option<u64>,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times.
    pub count: u64,
    /// Of these, mispredicted.
    pub mispredictions: u64,
}

impl Counts {
    /// Adds, saturating.
    pub fn add(&mut self, other: Counts) {
        self.count = self.count.saturating_add(other.count);
        self.mispredictions = self.mispredictions.saturating_add(other.mispredictions);
    }
}

/// What a reader saw on the way; for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Samples read.
    pub samples: u64,
    /// Samples with a branch stack.
    pub with_branches: u64,
    /// Entries of branch stacks, without those from or to the kernel.
    pub entries: u64,
    /// Of these, in a module at one end at least.
    pub branches: u64,
    /// Pairs of neighbouring entries: what may be runs.
    pub pairs: u64,
    /// Runs that end before they start: damaged stacks, signals, or mappings that changed.
    pub mismatched: u64,
    /// Samples or branch entries in no module at all.
    pub outside: u64,
    /// Entries that were left out: of a path that the processor began and gave up.
    pub wrong_path: u64,
    /// Records of pre-aggregated text.
    pub records: u64,
    /// Records that perf says it lost, or that a full buffer of trace data cut off.
    pub lost: u64,
    /// Bytes of trace data that are no packets, and the offset of the first of them in the file.
    pub undecoded: Option<(u64, u64)>,
}

impl Statistics {
    /// Adds.
    pub fn add(&mut self, other: &Statistics) {
        let pairs = [
            (&mut self.samples, other.samples),
            (&mut self.with_branches, other.with_branches),
            (&mut self.entries, other.entries),
            (&mut self.branches, other.branches),
            (&mut self.pairs, other.pairs),
            (&mut self.mismatched, other.mismatched),
            (&mut self.outside, other.outside),
            (&mut self.wrong_path, other.wrong_path),
            (&mut self.records, other.records),
            (&mut self.lost, other.lost),
        ];
        for (mine, theirs) in pairs {
            *mine = mine.saturating_add(theirs);
        }
        self.undecoded = match (self.undecoded, other.undecoded) {
            (Some((mine, first)), Some((theirs, _))) => Some((mine.saturating_add(theirs), first)),
            (mine, theirs) => mine.or(theirs),
        };
    }
}

/// What was seen of some processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Samples.
    pub samples: u64,
    /// Of these, with a branch stack.
    pub with_branches: u64,
    /// Entries of the stacks, without those from or to the kernel.
    pub entries: u64,
    /// Pairs of neighbouring entries.
    pub pairs: u64,
}

impl Seen {
    /// Adds, saturating.
    pub fn add(&mut self, other: Seen) {
        self.samples = self.samples.saturating_add(other.samples);
        self.with_branches = self.with_branches.saturating_add(other.with_branches);
        self.entries = self.entries.saturating_add(other.entries);
        self.pairs = self.pairs.saturating_add(other.pairs);
    }
}

/// A profile by addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressProfile {
    /// Names of the sampled events.
    pub events: BTreeSet<Vec<u8>>,
    /// What the reader saw; added up by merging.
    pub statistics: Statistics,
    /// What was seen of processes that had a file mapped, by file; added up by merging. Empty if the recording does
    /// not tell of mappings.
    pub mapped: BTreeMap<Module, Seen>,
    modules: Vec<Module>,
    traces: Traces,
    samples: Vec<(Place, u64)>,
    memory: Vec<((Place, Place), u64)>,
    backward: Vec<((Place, u64), u64)>,
}

impl AddressProfile {
    /// The modules that places refer to, sorted.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// A module by number; `None` for [`ModuleId::NONE`].
    pub fn module(&self, id: ModuleId) -> Option<&Module> {
        self.modules.get(id.0 as usize)
    }

    /// Arrivals and runs, sorted.
    pub fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Samples of single addresses (those without a branch stack), sorted.
    pub fn samples(&self) -> &[(Place, u64)] {
        &self.samples
    }

    /// Memory accesses: instruction, address, samples; sorted. An address in no module is [`ModuleId::NONE`]
    /// with its run-time value.
    pub fn memory(&self) -> &[((Place, Place), u64)] {
        &self.memory
    }

    /// Runs that end before they begin: where they begin, the branch at their end in the same module, how often.
    /// Stacks were damaged, or a mapping changed; for reports.
    pub fn backward(&self) -> &[((Place, u64), u64)] {
        &self.backward
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty() && self.samples.is_empty() && self.memory.is_empty()
    }

    /// Taken branches, whatever ran after them: from, to, and how often. Sorted.
    pub fn branches(&self) -> Vec<((Place, Place), Counts)> {
        let taken = self
            .traces
            .iter()
            .filter_map(|(trace, counts)| match trace.origin {
                Origin::Branch(from) | Origin::Return(from) => Some(((from, trace.start), counts)),
                Origin::Unknown | Origin::External | Origin::ExternalReturn => None,
            });
        summed(taken.collect())
    }

    /// Straight runs: start, end, whether control came from outside, and how often. Sorted.
    pub fn fall_throughs(&self) -> Vec<((Place, u64, bool), Counts)> {
        let runs = self.traces.iter().filter_map(|(trace, counts)| {
            let external = match trace.origin {
                Origin::Branch(from) | Origin::Return(from) => from.is_outside(),
                Origin::Unknown => false,
                Origin::External | Origin::ExternalReturn => true,
            };
            Some((
                (trace.start, trace.end?, external),
                Counts {
                    count: counts.count,
                    mispredictions: 0,
                },
            ))
        });
        summed(runs.collect())
    }

    /// The same without branches and runs.
    pub fn without_traces(self) -> AddressProfile {
        AddressProfile {
            traces: Traces::default(),
            ..self
        }
    }

    /// Multiplies all counts.
    pub fn scale(&mut self, weight: u64) {
        self.traces.scale(weight);
        for count in self
            .samples
            .iter_mut()
            .map(|(_, count)| count)
            .chain(self.memory.iter_mut().map(|(_, count)| count))
            .chain(self.backward.iter_mut().map(|(_, count)| count))
        {
            *count = count.saturating_mul(weight);
        }
    }

    /// The sum of two profiles.
    pub fn merge(mut self, mut other: AddressProfile) -> AddressProfile {
        let mut modules: Vec<Module> = self.modules.iter().chain(&other.modules).cloned().collect();
        modules.sort_unstable();
        modules.dedup();
        for profile in [&mut self, &mut other] {
            let ids = numbers(&profile.modules, &modules);
            // Module numbers keep their order, so the lists stay sorted.
            profile.renumber(&ids);
        }
        self.events.append(&mut other.events);
        self.statistics.add(&other.statistics);
        for (module, seen) in other.mapped {
            self.mapped.entry(module).or_default().add(seen);
        }
        AddressProfile {
            events: self.events,
            statistics: self.statistics,
            mapped: self.mapped,
            modules,
            traces: self.traces.merge(other.traces),
            samples: merge_sorted(
                self.samples,
                other.samples,
                |item| item.0,
                |kept, next| kept.1 = kept.1.saturating_add(next.1),
            ),
            memory: merge_sorted(
                self.memory,
                other.memory,
                |item| item.0,
                |kept, next| kept.1 = kept.1.saturating_add(next.1),
            ),
            backward: merge_sorted(
                self.backward,
                other.backward,
                |item| item.0,
                |kept, next| kept.1 = kept.1.saturating_add(next.1),
            ),
        }
    }

    /// What is in one binary, and the ways into and out of it: `translate` gives the link-time address of a
    /// place in it, `None` for places that are outside of it, which become [`Place::OUTSIDE`]. Records that
    /// differed in nothing but places outside are one record then.
    pub fn of_binary(&self, translate: impl Fn(Place) -> Option<u64>) -> AddressProfile {
        let place = |place: Place| {
            translate(place).map_or(Place::OUTSIDE, |address| Place {
                module: ModuleId(0),
                address,
            })
        };
        let mut out = Collector {
            events: self.events.clone(),
            statistics: self.statistics,
            ..Collector::default()
        };
        for (trace, counts) in self.traces.iter() {
            let origin = match trace.origin {
                Origin::Branch(from) => Origin::Branch(place(from)),
                Origin::Return(from) => Origin::Return(place(from)),
                other => other,
            };
            let end = trace.end.and_then(|address| {
                translate(Place {
                    address,
                    ..trace.start
                })
            });
            let start = place(trace.start);
            out.trace(Trace { origin, start, end }, counts);
        }
        for &(at, count) in &self.samples {
            if let Some(address) = translate(at) {
                let module = ModuleId(0);
                out.sample(Place { module, address }, count);
            }
        }
        for &((at, address), count) in &self.memory {
            let at = place(at);
            if !at.is_outside() {
                let target = match translate(address) {
                    Some(_) => place(address),
                    None => Place {
                        module: ModuleId::NONE,
                        ..address
                    },
                };
                out.access(at, target, count);
            }
        }
        for &((start, end), count) in &self.backward {
            let last = translate(Place {
                address: end,
                ..start
            });
            if let (Some(first), Some(last)) = (translate(start), last) {
                let module = ModuleId(0);
                let start = Place {
                    module,
                    address: first,
                };
                out.backward(start, last, count);
            }
        }
        out.finish(&[Module::default()])
    }

    fn renumber(&mut self, ids: &[ModuleId]) {
        let new = |place: &mut Place| {
            place.module = ids
                .get(place.module.0 as usize)
                .copied()
                .unwrap_or(ModuleId::NONE);
        };
        self.traces.renumber(ids);
        for (place, _) in &mut self.samples {
            new(place);
        }
        for ((at, address), _) in &mut self.memory {
            new(at);
            new(address);
        }
        for ((start, _), _) in &mut self.backward {
            new(start);
        }
    }
}

/// Where each of `old` is in the sorted list `all`.
fn numbers(old: &[Module], all: &[Module]) -> Vec<ModuleId> {
    old.iter()
        .map(|module| {
            all.binary_search(module)
                .map_or(ModuleId::NONE, |at| ModuleId(at as u32))
        })
        .collect()
}

fn summed<K: Ord + Copy + Send>(mut list: Vec<(K, Counts)>) -> Vec<(K, Counts)> {
    list.par_sort_unstable_by_key(|item| item.0);
    list.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1.add(next.1);
        }
        same
    });
    list
}

/// Adds up records as they come. Module numbers are those of the list given to [`Collector::finish`].
#[derive(Debug, Default)]
pub struct Collector {
    /// Names of the sampled events.
    pub events: BTreeSet<Vec<u8>>,
    /// What was seen.
    pub statistics: Statistics,
    /// What was seen of each process.
    pub processes: FxHashMap<Option<i32>, Seen>,
    traces: Tally,
    samples: FxHashMap<Place, u64>,
    memory: FxHashMap<(Place, Place), u64>,
    backward: FxHashMap<(Place, u64), u64>,
}

impl Collector {
    /// Adds an arrival. Nothing is added by a branch that is outside at both ends, or by no branch and no run.
    #[inline]
    pub fn trace(&mut self, mut trace: Trace, counts: Counts) {
        if trace.start.is_outside() {
            trace.start = Place::OUTSIDE;
            trace.end = None;
        }
        let counted = match trace.origin {
            Origin::Branch(from) | Origin::Return(from) => {
                !from.is_outside() || !trace.start.is_outside()
            }
            Origin::Unknown | Origin::External | Origin::ExternalReturn => trace.end.is_some(),
        };
        if !counted {
            return;
        }
        self.traces.add(&trace, counts);
    }

    /// Adds one taken branch, not outside at both ends, and the run after it, which must be in the module of `to`.
    #[inline]
    pub(crate) fn branch(&mut self, from: Place, to: Place, end: Option<u64>, mispredicted: bool) {
        let trace = Trace {
            origin: Origin::Branch(from),
            start: to,
            end,
        };
        let counts = Counts {
            count: 1,
            mispredictions: mispredicted.into(),
        };
        self.traces.add(&trace, counts);
    }

    /// Adds samples of an address.
    #[inline]
    pub fn sample(&mut self, place: Place, count: u64) {
        let sum = self.samples.entry(place).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Adds memory accesses.
    pub fn access(&mut self, at: Place, address: Place, count: u64) {
        let sum = self.memory.entry((at, address)).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Adds runs that end before they begin, in the module of `start`.
    pub fn backward(&mut self, start: Place, end: u64, count: u64) {
        let sum = self.backward.entry((start, end)).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Adds what another one (with the same module numbers) collected.
    pub fn absorb(&mut self, mut other: Collector) {
        self.traces.absorb(other.traces);
        for (place, count) in other.samples {
            self.sample(place, count);
        }
        for ((at, address), count) in other.memory {
            self.access(at, address, count);
        }
        for ((start, end), count) in other.backward {
            self.backward(start, end, count);
        }
        self.events.append(&mut other.events);
        self.statistics.add(&other.statistics);
        for (process, seen) in other.processes {
            self.processes.entry(process).or_default().add(seen);
        }
    }

    /// The sorted profile. `modules` may be in any order and have repetitions; those that no place refers to
    /// are left out.
    pub fn finish(mut self, modules: &[Module]) -> AddressProfile {
        let mut used = vec![false; modules.len()];
        let mut see = |place: Place| {
            if let Some(used) = used.get_mut(place.module.0 as usize) {
                *used = true;
            }
        };
        self.traces.see(&mut see);
        self.samples.keys().copied().for_each(&mut see);
        self.memory.keys().for_each(|&(at, address)| {
            see(at);
            see(address);
        });
        self.backward.keys().for_each(|&(start, _)| see(start));
        let mut sorted: Vec<Module> = modules
            .iter()
            .zip(&used)
            .filter(|(_, used)| **used)
            .map(|(module, _)| module.clone())
            .collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut profile = AddressProfile {
            events: self.events,
            statistics: self.statistics,
            mapped: BTreeMap::new(),
            modules: Vec::new(),
            traces: Traces::default(),
            samples: self.samples.into_iter().collect(),
            memory: self.memory.into_iter().collect(),
            backward: self.backward.into_iter().collect(),
        };
        let ids = numbers(modules, &sorted);
        profile.renumber(&ids);
        profile.modules = sorted;
        profile.traces = self.traces.finish(&ids);
        let sum = |kept: &mut u64, next: u64| *kept = kept.saturating_add(next);
        profile.samples.par_sort_unstable_by_key(|item| item.0);
        profile.samples.dedup_by(|next, kept| {
            next.0 == kept.0 && {
                sum(&mut kept.1, next.1);
                true
            }
        });
        profile.memory.par_sort_unstable_by_key(|item| item.0);
        profile.memory.dedup_by(|next, kept| {
            next.0 == kept.0 && {
                sum(&mut kept.1, next.1);
                true
            }
        });
        profile.backward.par_sort_unstable_by_key(|item| item.0);
        profile.backward.dedup_by(|next, kept| {
            next.0 == kept.0 && {
                sum(&mut kept.1, next.1);
                true
            }
        });
        profile
    }
}

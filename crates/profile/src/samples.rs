//! One sample, however it was stored, and what becomes of many.
//!
//! The readers of perf's formats hand over [`Sample`]s. [`Adder`] turns each one to counts: of its branch
//! stack the traces between neighbouring entries, of a memory sample the access, of any other the
//! instruction.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::address::{
    AddressKind, AddressProfile, Collector, Counts, Module, ModuleId, Origin, Place, Seen, Trace,
};
use crate::spaces::{KERNEL, Space, Spaces};

/// An entry of a branch stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BranchEntry {
    /// Run-time address of the branch; 0 if the machine did not record it.
    pub from: u64,
    /// Run-time address of its target; 0 if the machine did not record it.
    pub to: u64,
    /// The branch was mispredicted.
    pub mispredicted: bool,
    /// The branch is of a path that the processor began and gave up (AMD's LbrExtV2 keeps such branches).
    pub wrong_path: bool,
}

/// A sample. All addresses are those of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Process; `None` if not recorded.
    pub pid: Option<i32>,
    /// When, in a unit that all records of the file share: nanoseconds, or the offset in the file if no times
    /// were recorded.
    pub time: u64,
    /// The event that was sampled; may be empty.
    pub event: Vec<u8>,
    /// Instruction.
    pub ip: Option<u64>,
    /// Address of the memory access.
    pub address: Option<u64>,
    /// Return addresses, innermost first, without marks; starts with the instruction where perf does so.
    pub callchain: Vec<u64>,
    /// Taken branches, newest first.
    pub branches: Vec<BranchEntry>,
    /// The sample is of its newest branch, which a processor picked among all operations (Arm SPE), not of an
    /// instruction after that; `ip` is the branch. Another entry is the branch taken before, without its source.
    pub one_branch: bool,
}

impl Sample {
    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.pid = None;
        self.time = 0;
        self.event.clear();
        self.ip = None;
        self.address = None;
        self.callchain.clear();
        self.branches.clear();
        self.one_branch = false;
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.ip.is_none() && self.callchain.is_empty() && self.branches.is_empty()
    }
}

/// First address of the half of the address space that belongs to the kernel on x86-64; that of AArch64 is in it.
const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;

/// What of a recording is wanted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only samples of these processes; all if empty.
    pub pids: Vec<i32>,
    /// Only samples of events whose name contains one of these; all if empty.
    pub events: Vec<String>,
    /// Take the instruction of every sample, whether it has a branch stack or not.
    pub basic: bool,
    /// Take the sampled instruction for the end of the newest run. It is, where the sample is taken with the
    /// branch records.
    pub event_ip: bool,
    /// From the first sample with 32 branches on, leave out the two newest of every sample. Skylake
    /// processors sometimes record a branch twice; perf2bolt does this for them, whatever the x86-64 processor,
    /// where it cannot see by the code that a run is impossible: with translation tables.
    pub without_newest: bool,
    /// Count as many branches as runs: leave out the newest branch of a stack of several, whose run is not
    /// known. Else code that is reached by taken branches counts for more than code that is reached by
    /// falling through, by one in 31 with stacks of 32, and an optimiser that turns the one to the other will
    /// undo that when it sees a profile of what it did. perf2bolt counts them all, those of a wrong path too.
    pub even: bool,
}

/// Branches of the stack of a Skylake processor.
const FULL_STACK: usize = 32;
/// How many of them are left out by [`Options::without_newest`].
const NEWEST: u64 = 2;

/// Finds the first sample with a full stack, for [`Options::without_newest`].
#[derive(Debug)]
pub(crate) struct FirstFull<'a> {
    options: &'a Options,
    /// When that was; [`u64::MAX`] if there is none.
    pub(crate) time: u64,
}

impl<'a> FirstFull<'a> {
    pub(crate) fn new(options: &'a Options) -> FirstFull<'a> {
        let time = u64::MAX;
        FirstFull { options, time }
    }

    pub(crate) fn see(&mut self, sample: &Sample) {
        let in_program = |branch: &&BranchEntry| !in_kernel(branch);
        if sample.time < self.time
            && self.options.wants_process(sample)
            && sample.branches.iter().filter(in_program).count() == FULL_STACK
        {
            self.time = sample.time;
        }
    }
}

/// An interrupt, a fault or a system call.
fn in_kernel(branch: &BranchEntry) -> bool {
    branch.from >= KERNEL_HALF || branch.to >= KERNEL_HALF
}

impl Options {
    fn wants_process(&self, sample: &Sample) -> bool {
        self.pids.is_empty() || sample.pid.is_some_and(|pid| self.pids.contains(&pid))
    }
}

/// Adds samples up.
#[derive(Debug)]
pub struct Adder<'a> {
    /// The counts. Module numbers are those of [`modules()`].
    pub collector: Collector,
    spaces: &'a Spaces,
    options: &'a Options,
    /// The process of the sample before, and its space.
    recent: Option<(Option<i32>, Space<'a>)>,
    /// The time from which on the newest branches are left out.
    newest_until: u64,
}

/// The modules that an [`Adder`] with these spaces refers to.
pub fn modules(spaces: &Spaces) -> Vec<Module> {
    if spaces.is_empty() {
        // Without any mapping an address stands for itself.
        vec![Module {
            kind: AddressKind::RunTime,
            ..Module::default()
        }]
    } else {
        spaces.modules().to_vec()
    }
}

/// The sum of what several threads added up.
pub fn finish(adders: Vec<Collector>, spaces: &Spaces) -> AddressProfile {
    let mut collector = adders
        .into_par_iter()
        .reduce(Collector::default, |mut a, b| {
            a.absorb(b);
            a
        });
    let mut mapped: BTreeMap<Module, Seen> = BTreeMap::new();
    for (process, seen) in std::mem::take(&mut collector.processes) {
        for module in spaces.modules_of(process) {
            mapped.entry(module.clone()).or_default().add(seen);
        }
    }
    let mut profile = collector.finish(&modules(spaces));
    profile.mapped = mapped;
    profile
}

impl<'a> Adder<'a> {
    /// Nothing added up yet.
    pub fn new(spaces: &'a Spaces, options: &'a Options) -> Adder<'a> {
        Adder {
            collector: Collector::default(),
            spaces,
            options,
            recent: None,
            newest_until: u64::MAX,
        }
    }

    /// From a time on, leaves out the newest branches.
    pub(crate) fn without_newest_from(self, time: u64) -> Adder<'a> {
        let newest_until = time;
        Adder {
            newest_until,
            ..self
        }
    }

    /// Goes on with other address spaces, whose modules begin with those known so far.
    pub(crate) fn change_spaces(&mut self, spaces: &'a Spaces) {
        self.spaces = spaces;
        self.recent = None;
    }

    /// Adds a sample.
    pub fn add(&mut self, sample: &Sample) {
        let Adder {
            collector,
            spaces,
            options,
            recent,
            newest_until,
        } = self;
        if !options.wants_process(sample) {
            return;
        }
        let named = |name: &String| {
            sample
                .event
                .windows(name.len().max(1))
                .any(|window| window == name.as_bytes())
        };
        if !options.events.is_empty() && !options.events.iter().any(named) {
            return;
        }
        let statistics = &mut collector.statistics;
        statistics.samples += 1;
        collector.processes.entry(sample.pid).or_default().samples += 1;
        if !sample.event.is_empty() && !collector.events.contains(&sample.event) {
            collector.events.insert(sample.event.clone());
        }
        let (_, space) = match recent {
            Some(recent) if recent.0 == sample.pid => recent,
            _ => recent.insert((sample.pid, spaces.process(sample.pid))),
        };
        let plain = spaces.is_empty();
        let mut resolve = |address: u64| match plain {
            true if address == 0 || address >= KERNEL => Place::OUTSIDE,
            true => Place {
                module: ModuleId(0),
                address,
            },
            false => space.resolve(address, sample.time),
        };
        if !sample.branches.is_empty() && !options.basic {
            let before = collector.statistics;
            collector.statistics.with_branches += 1;
            // The branch that ended the run after the one at hand, and where it is.
            let sampled = sample
                .ip
                .filter(|&ip| options.event_ip && !sample.one_branch && ip < KERNEL_HALF);
            let mut next: Option<(u64, Place)> = sampled.map(|ip| (ip, resolve(ip)));
            let mut left_out = if (*newest_until..u64::MAX).contains(&sample.time) {
                NEWEST
            } else {
                0
            };
            for branch in &sample.branches {
                // The run continues where it was left.
                if in_kernel(branch) {
                    continue;
                }
                if branch.wrong_path && options.even {
                    collector.statistics.wrong_path += 1;
                    continue;
                }
                collector.statistics.entries += 1;
                if left_out > 0 {
                    left_out -= 1;
                    continue;
                }
                collector.statistics.pairs += u64::from(next.is_some());
                let (from, to) = (resolve(branch.from), resolve(branch.to));
                if from.is_outside() && to.is_outside() {
                    collector.statistics.outside += 1;
                    next = Some((branch.from, from));
                    continue;
                }
                collector.statistics.branches += 1;
                let counts_once = options.even && sample.branches.len() > 1;
                if next.is_none() && counts_once && !sample.one_branch {
                    next = Some((branch.from, from));
                    continue;
                }
                let mut end = None;
                if let Some((address, place)) = next
                    && !to.is_outside()
                {
                    let same = place.module == to.module;
                    if same && address >= branch.to && place.address >= to.address {
                        end = Some(place.address);
                    } else if same {
                        collector.statistics.mismatched += 1;
                        collector.backward(to, place.address, 1);
                    }
                }
                if branch.from == 0 && counts_once && sample.one_branch {
                    // The branch was sampled, this arrival came with it: its run counts, it does not.
                    collector.trace(
                        Trace {
                            origin: Origin::Unknown,
                            start: to,
                            end,
                        },
                        Counts {
                            count: 1,
                            mispredictions: 0,
                        },
                    );
                } else {
                    collector.branch(from, to, end, branch.mispredicted);
                }
                next = Some((branch.from, from));
            }
            let after = collector.statistics;
            collector
                .processes
                .entry(sample.pid)
                .or_default()
                .add(Seen {
                    samples: 0,
                    with_branches: 1,
                    entries: after.entries - before.entries,
                    pairs: after.pairs - before.pairs,
                });
            return;
        }
        let Some(ip) = sample.ip.or(sample.callchain.first().copied()) else {
            return;
        };
        let place = resolve(ip);
        if place.is_outside() {
            collector.statistics.outside += 1;
            return;
        }
        match sample.address {
            Some(address) if sample.event.windows(9).any(|window| window == b"mem-loads") => {
                let mut target = resolve(address);
                if target.is_outside() {
                    target.address = address;
                }
                collector.access(place, target, 1);
            }
            _ => collector.sample(place, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(samples: &[Sample]) -> crate::address::AddressProfile {
        let (spaces, options) = (Spaces::default(), Options::default());
        let mut adder = Adder::new(&spaces, &options);
        samples.iter().for_each(|sample| adder.add(sample));
        adder.collector.finish(&modules(&spaces))
    }

    fn stack(branches: &[(u64, u64)]) -> Sample {
        let branches = branches
            .iter()
            .map(|&(from, to)| BranchEntry {
                from,
                to,
                mispredicted: from == 0x30,
                wrong_path: false,
            })
            .collect();
        Sample {
            branches,
            ..Sample::default()
        }
    }

    #[test]
    fn an_even_count_has_as_many_branches_as_runs() {
        let (spaces, options) = (
            Spaces::default(),
            Options {
                even: true,
                ..Options::default()
            },
        );
        let mut adder = Adder::new(&spaces, &options);
        // A loop of which one end is reached by a branch, the other by falling through.
        adder.add(&stack(&[(0x60, 0x10), (0x60, 0x10), (0x60, 0x10)]));
        adder.add(&stack(&[(0x90, 0x10)]));
        let profile = adder.collector.finish(&modules(&spaces));
        let mut taken = BTreeMap::new();
        let mut runs = 0;
        for (trace, counts) in profile.traces().iter() {
            *taken.entry(trace.origin).or_insert(0) += counts.count;
            runs += counts.count * u64::from(trace.end.is_some());
        }
        assert_eq!(runs, 2);
        assert_eq!(taken.into_values().collect::<Vec<u64>>(), [2, 1]);
    }

    #[test]
    fn a_branch_stack_is_traces_between_neighbours() {
        let profile = add(&[stack(&[(0x60, 0x10), (0x30, 0x50), (0, 0x20)])]);
        let place = |address| Place {
            module: ModuleId(0),
            address,
        };
        let from = |address| Origin::Branch(place(address));
        let once = Counts {
            count: 1,
            mispredictions: 0,
        };
        assert_eq!(
            profile.traces().iter().collect::<Vec<_>>(),
            [
                (
                    Trace {
                        origin: from(0x30),
                        start: place(0x50),
                        end: Some(0x60)
                    },
                    Counts {
                        count: 1,
                        mispredictions: 1
                    }
                ),
                (
                    Trace {
                        origin: from(0x60),
                        start: place(0x10),
                        end: None
                    },
                    once
                ),
                (
                    Trace {
                        origin: Origin::Branch(Place::OUTSIDE),
                        start: place(0x20),
                        end: Some(0x30)
                    },
                    once
                ),
            ]
        );
        assert_eq!(
            profile.fall_throughs().iter().filter(|run| run.0.2).count(),
            1
        );
    }

    #[test]
    fn stacks_that_run_backwards_lose_only_the_run() {
        let profile = add(&[stack(&[(0x40, 0x10), (0x20, 0x50)])]);
        assert_eq!(profile.statistics.mismatched, 1);
        let start = profile.branches()[0].0.1;
        assert_eq!(profile.backward(), [((start, 0x40), 1)]);
        assert_eq!(profile.branches().len(), 2);
        assert_eq!(profile.fall_throughs(), []);
    }
}

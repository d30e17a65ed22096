//! Samples added up as they come.
//!
//! Nothing of a sample is kept but what it adds to counters, so memory follows the program and not the
//! recording, and the order of samples does not matter: every thread has a tally of its own, and tallies are
//! added up at the end.
//!
//! A branch stack says two things: the branches, and that between the target of one and the source of the
//! next control ran straight on. Without call chains both go to one set of counters. With call chains the
//! branches are undone one by one, from the newest to the oldest, so that at every branch the chain of that
//! moment is known: undoing a call takes a frame off the chain, undoing a return puts one on, undoing
//! anything else only moves the innermost frame. What ran between two branches is counted for the chain of
//! that moment.
//!
//! # Chains
//!
//! A chain is a node of a tree of call addresses ([`Paths`]); counters are keyed by node. What is outside of
//! code that is not the program's is unknown to a compiler, so such a frame leads back to the root.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::context_key::ByAddress;
use crate::counters::Counters;
use crate::dwarf::{Frame, Lines};
use crate::program::{EXTERNAL, Program};
use crate::stack::{Branch, Sample};

/// What is done with samples.
#[derive(Clone, Copy, Debug)]
pub struct How<'a, 'd> {
    /// The code.
    pub program: &'a Program<'d>,
    /// Use call chains.
    pub chains: bool,
    /// With call chains: the debug information, if counters are kept by source lines. Runs are then cut where
    /// what is inlined changes.
    pub lines: Option<&'a Lines<'d>>,
    /// Only the instruction of a sample counts.
    pub ip_only: bool,
    /// Without call chains: every sample represents this many events.
    pub period: u64,
}

/// How often control ran from one instruction to another, and whether it can.
#[derive(Clone, Copy, Debug)]
struct Run {
    count: u64,
    possible: bool,
}

/// What was noticed.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Samples.
    pub samples: u64,
    /// Samples of which nothing could be used.
    pub unused: u64,
    /// Samples whose innermost frame is outside of the program.
    pub leaf_outside: u64,
    /// Return addresses in call chains that do not follow a call.
    pub bad_returns: FxHashSet<u64>,
    /// Samples cut short because of one.
    pub truncated: u64,
    /// Branches that were undone.
    pub branches: u64,
    /// Runs outside of the program, from one branch out to the next branch in.
    pub outside_runs: u64,
    /// Branches out of the program without one back in, or the other way round.
    pub unpaired: u64,
    /// Calls that do not match the frame around.
    pub odd_frames: u64,
    /// Calls from outside that do not match the frame around.
    pub odd_outside_frames: u64,
}

impl Notes {
    fn absorb(&mut self, other: Notes) {
        self.samples += other.samples;
        self.unused += other.unused;
        self.leaf_outside += other.leaf_outside;
        self.bad_returns.extend(other.bad_returns);
        self.truncated += other.truncated;
        self.branches += other.branches;
        self.outside_runs += other.outside_runs;
        self.unpaired += other.unpaired;
        self.odd_frames += other.odd_frames;
        self.odd_outside_frames += other.odd_outside_frames;
    }
}

type Counts<K> = FxHashMap<K, u64>;

fn add<K: std::hash::Hash + Eq>(counts: &mut Counts<K>, key: K, count: u64) {
    let sum = counts.entry(key).or_default();
    *sum = sum.saturating_add(count);
}

/// Chains of call addresses, and what was counted for each.
#[derive(Debug)]
struct Paths {
    /// Of each node: the node of its callers, and its address.
    nodes: Vec<(u32, u64)>,
    children: FxHashMap<(u32, u64), u32>,
    runs: Counts<(u32, u64, u64)>,
    branches: Counts<(u32, u64, u64)>,
}

impl Default for Paths {
    fn default() -> Self {
        Paths {
            nodes: vec![(0, EXTERNAL)],
            children: FxHashMap::default(),
            runs: Counts::default(),
            branches: Counts::default(),
        }
    }
}

impl Paths {
    fn child(&mut self, node: u32, address: u64) -> u32 {
        if address == EXTERNAL {
            return 0;
        }
        *self.children.entry((node, address)).or_insert_with(|| {
            // 2³² different chains would not fit into memory.
            self.nodes.push((node, address));
            (self.nodes.len() - 1) as u32
        })
    }

    fn chain(&self, mut node: u32) -> Vec<u64> {
        let mut chain = Vec::new();
        while node != 0 {
            let Some(&(callers, address)) = self.nodes.get(node as usize) else {
                break;
            };
            chain.push(address);
            node = callers;
        }
        chain.reverse();
        chain
    }

    /// Adds everything to counters by chain.
    fn add_to(self, all: &mut ByAddress) {
        let mut by_node: FxHashMap<u32, Counters> = FxHashMap::default();
        for (&(node, first, last), &count) in &self.runs {
            by_node.entry(node).or_default().run(first, last, count);
        }
        for (&(node, from, to), &count) in &self.branches {
            by_node.entry(node).or_default().branch(from, to, count);
        }
        for (node, counters) in by_node {
            let chain = self.chain(node);
            all.entry(chain).or_default().absorb(counters);
        }
    }
}

/// Counters of the samples so far.
#[derive(Debug, Default)]
pub struct Tally {
    runs: FxHashMap<(u64, u64), Run>,
    branches: Counts<(u64, u64)>,
    paths: Paths,
    /// What was noticed.
    pub notes: Notes,
    /// Where runs are cut, by run.
    cuts: FxHashMap<(u64, u64), Box<[(u64, u64)]>>,
    /// The chain at hand, outermost first, and the nodes of its beginning.
    path: Vec<u64>,
    path_nodes: Vec<u32>,
}

/// What came of all samples.
#[derive(Debug, Default)]
pub struct Total {
    /// Counters without regard to chains.
    pub flat: Counters,
    /// Counters by chain.
    pub by_chain: ByAddress,
    /// What was noticed.
    pub notes: Notes,
    /// Runs that control cannot have taken, and how often.
    pub impossible: Vec<((u64, u64), u64)>,
    /// All runs, possible or not.
    pub runs: u64,
}

impl Tally {
    /// Adds a sample that occurred `count` times.
    pub fn add(&mut self, how: &How<'_, '_>, sample: &Sample, count: u64) {
        if how.ip_only {
            let weight = count.saturating_mul(how.period.max(1));
            let run = self.runs.entry((sample.ip, sample.ip)).or_insert(Run {
                count: 0,
                possible: true,
            });
            run.count = run.count.saturating_add(weight);
        } else if how.chains {
            self.unwind(how, sample, count);
        } else {
            let mut weight = count.saturating_mul(how.period.max(1));
            if how.period > 1 && sample.branches.len() > 1 {
                // A stack tells of so many runs.
                weight /= sample.branches.len() as u64 - 1;
            }
            self.stack(how.program, &sample.branches, weight);
        }
    }

    /// Counts a run, and says whether control can have taken it.
    fn run(&mut self, program: &Program<'_>, first: u64, last: u64, count: u64) -> bool {
        let run = self.runs.entry((first, last)).or_insert_with(|| Run {
            count: 0,
            possible: first != EXTERNAL && last != EXTERNAL && program.falls_through(first, last),
        });
        run.count = run.count.saturating_add(count);
        run.possible
    }

    fn stack(&mut self, program: &Program<'_>, stack: &[Branch], count: u64) {
        let mut end = None;
        for branch in stack {
            if let Some(end) = end {
                self.run(program, branch.to, end, count);
            }
            if branch.to != EXTERNAL {
                add(&mut self.branches, (branch.from, branch.to), count);
            }
            end = Some(branch.from);
        }
    }

    /// The node of the outermost `len` frames of the chain at hand.
    fn node(&mut self, len: usize) -> u32 {
        for &address in self.path.iter().take(len).skip(self.path_nodes.len()) {
            let callers = self.path_nodes.last().copied().unwrap_or(0);
            let node = self.paths.child(callers, address);
            self.path_nodes.push(node);
        }
        let last = len
            .checked_sub(1)
            .and_then(|last| self.path_nodes.get(last));
        last.copied().unwrap_or(0)
    }

    fn pop(&mut self) {
        self.path.pop();
        self.path_nodes.truncate(self.path.len());
    }

    /// Puts the innermost frame somewhere else.
    fn move_to(&mut self, address: u64) {
        self.pop();
        self.path.push(address);
    }

    /// Undoes the branches of a sample.
    fn unwind(&mut self, how: &How<'_, '_>, sample: &Sample, count: u64) {
        self.path.clear();
        self.path_nodes.clear();
        self.path.extend(sample.chain.iter().rev());
        let Some(mut at) = self.path.last().copied() else {
            return;
        };
        let program = how.program;
        self.notes.branches += sample.branches.len() as u64;
        let mut valid = true;
        for (number, branch) in sample.branches.iter().enumerate() {
            let (from, to) = (branch.from, branch.to);
            if number > 0 {
                let possible = self.run(program, to, at, count);
                match (to == EXTERNAL, at == EXTERNAL) {
                    (true, true) => self.notes.outside_runs += 1,
                    (false, false) if possible => self.count_run(how, to, at, count),
                    // From a broken run on, nothing is known of the callers.
                    (false, false) => valid = false,
                    _ => {
                        self.notes.unpaired += 1;
                        valid = false;
                    }
                }
            }
            let call_before = if to == EXTERNAL {
                Some(EXTERNAL)
            } else {
                program.previous(to).filter(|&call| program.is_call(call))
            };
            let is_call = program.is_call(from) || (from == EXTERNAL && call_before.is_none());
            let is_return = from == EXTERNAL || program.is_return(from);
            if !valid {
                self.path.clear();
                self.path_nodes.clear();
                self.path.push(from);
            } else if is_call {
                let parent = self.path.iter().rev().nth(1).copied();
                if parent == Some(from) {
                    self.pop();
                } else {
                    self.move_to(from);
                    match (parent, from) {
                        (None, _) => {}
                        (_, EXTERNAL) => self.notes.odd_outside_frames += 1,
                        _ => self.notes.odd_frames += 1,
                    }
                }
            } else if is_return && let Some(call) = call_before {
                // What does not follow a call cannot be returned to: that is a jump in the clothes of a return.
                self.move_to(call);
                self.path.push(from);
            } else {
                self.move_to(from);
            }
            at = from;
            if to != EXTERNAL {
                let len = match (from == EXTERNAL, how.lines.is_some()) {
                    (true, _) => 0,
                    (false, true) => self.path.len(),
                    (false, false) => self.path.len() - 1,
                };
                let node = self.node(len);
                add(&mut self.paths.branches, (node, from, to), count);
            }
        }
    }

    /// Counts a run for the chain at hand.
    fn count_run(&mut self, how: &How<'_, '_>, first: u64, last: u64, count: u64) {
        let Some(lines) = how.lines else {
            let node = self.node(self.path.len() - 1);
            add(&mut self.paths.runs, (node, first, last), count);
            return;
        };
        let mut pieces = std::mem::take(&mut self.cuts);
        let cut = pieces
            .entry((first, last))
            .or_insert_with(|| cut(how.program, lines, first, last));
        for &(start, end) in cut.iter() {
            self.move_to(start);
            let node = self.node(self.path.len());
            add(&mut self.paths.runs, (node, start, end), count);
        }
        self.cuts = pieces;
    }

    /// Adds another tally's counters.
    pub fn absorb(&mut self, other: Tally) {
        for (key, run) in other.runs {
            let mine = self.runs.entry(key).or_insert(Run { count: 0, ..run });
            mine.count = mine.count.saturating_add(run.count);
        }
        for (key, count) in other.branches {
            add(&mut self.branches, key, count);
        }
        self.notes.absorb(other.notes);
    }

    /// Adds up tallies.
    pub fn total(tallies: Vec<Tally>, how: &How<'_, '_>) -> Total {
        let mut total = Total::default();
        let mut all = Tally::default();
        for mut tally in tallies {
            std::mem::take(&mut tally.paths).add_to(&mut total.by_chain);
            all.absorb(tally);
        }
        for (key, run) in all.runs {
            total.runs = total.runs.saturating_add(run.count);
            match run.possible {
                true if !how.chains => total.flat.run(key.0, key.1, run.count),
                true => {}
                false => total.impossible.push((key, run.count)),
            }
        }
        total.impossible.sort_unstable();
        for ((from, to), count) in all.branches {
            total.flat.branch(from, to, count);
        }
        total.notes = all.notes;
        total
    }
}

/// The pieces of a run over which what is inlined stays the same, the last one first.
fn cut(program: &Program<'_>, lines: &Lines<'_>, first: u64, last: u64) -> Box<[(u64, u64)]> {
    let code: Vec<u64> = program.between(first, last).collect();
    let (mut here, mut before) = (Vec::new(), Vec::new());
    let mut end = last;
    let mut pieces = Vec::new();
    lines.frames(last, &mut here);
    for (&address, &after) in code.iter().zip(code.iter().skip(1)).rev() {
        lines.frames(address, &mut before);
        if before.is_empty() || !same_function(&before, &here) {
            pieces.push((after, end));
            end = address;
        }
        std::mem::swap(&mut here, &mut before);
    }
    pieces.push((first, end));
    pieces.into()
}

/// Whether two inline stacks are the same but for the place in the innermost function.
fn same_function(a: &[Frame<'_>], b: &[Frame<'_>]) -> bool {
    a.len() == b.len()
        && a.first().map(|frame| frame.name) == b.first().map(|frame| frame.name)
        && a.get(1..) == b.get(1..)
}

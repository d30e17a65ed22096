//! Callers that are missing in call chains because they had jumped on, not called.
//!
//! A function whose last act is a call may jump instead; its frame is then gone before the callee runs. If
//! `a` calls `b`, and `b` jumps to `c`, a chain shows `c` called by `a` at the call of `b`. Where exactly one
//! way of such jumps leads from the functions that a call was seen to reach to the function that came next in
//! the chain, the jumps are put between the two.
//!
//! Which calls and jumps lead where is known from the sampled branches: an indirect call has no target in the
//! code, and a jump that was never taken explains nothing.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes are numbers that this module gave to elements of its own lists; a file says none of them"
)]

use std::collections::BTreeMap;

use postlink_isa::Flow;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::context_key::ByAddress;
use crate::program::Program;

/// Deepest search, whatever was asked for: it is recursive.
const DEPTH_LIMIT: u32 = 1000;

/// Finds missing callers.
#[derive(Debug)]
pub struct Frames<'a, 'd> {
    program: &'a Program<'d>,
    /// Functions that a call was seen to reach.
    calls: FxHashMap<u64, Vec<u32>>,
    /// Functions that a jump out of its function was seen to reach.
    jumps: BTreeMap<u64, Vec<u32>>,
    /// The jumps of each function.
    jumps_of: FxHashMap<u32, Vec<u64>>,
    /// Functions that are reached by such jumps.
    reached: FxHashSet<u32>,
    /// The only way from one function to another; none if there are none or several.
    known: FxHashMap<(u32, u32), (u64, Vec<u64>)>,
    visiting: FxHashSet<u32>,
    limit: u32,
}

impl<'a, 'd> Frames<'a, 'd> {
    /// Learns from the branches that were sampled.
    pub fn new(program: &'a Program<'d>, counters: &ByAddress, limit: u32) -> Frames<'a, 'd> {
        let mut frames = Frames {
            program,
            calls: FxHashMap::default(),
            jumps: BTreeMap::new(),
            jumps_of: FxHashMap::default(),
            reached: FxHashSet::default(),
            known: FxHashMap::default(),
            visiting: FxHashSet::default(),
            limit: limit.min(DEPTH_LIMIT),
        };
        for &(from, to) in counters.values().flat_map(|c| c.branches.keys()) {
            let Some(target) = program.function_of(to) else {
                continue;
            };
            if program.function_of(from).is_none() {
                continue;
            }
            if program.is_call(from) {
                frames.calls.entry(from).or_default().push(target);
                continue;
            }
            let here = program.function_of(from);
            let leaves = match program.flow(from) {
                Some(Flow::Jump { target }) => {
                    let there = program.function_of(target);
                    there.is_some() && there != here
                }
                Some(Flow::IndirectJump) => true,
                _ => false,
            };
            if leaves && program.range_of(from) != program.range_of(to) {
                frames.jumps.entry(from).or_default().push(target);
            }
        }
        for targets in frames.calls.values_mut().chain(frames.jumps.values_mut()) {
            targets.sort_unstable();
            targets.dedup();
        }
        for (&from, targets) in &frames.jumps {
            frames.reached.extend(targets);
            if let Some(function) = program.function_of(from) {
                frames.jumps_of.entry(function).or_default().push(from);
            }
        }
        frames
    }

    /// Completes a chain of call addresses, outermost first, that ends in the function `leaf`.
    pub fn complete(&mut self, chain: &[u64], leaf: Option<u32>) -> Vec<u64> {
        let mut all = Vec::with_capacity(chain.len());
        for (at, &from) in chain.iter().enumerate() {
            all.push(from);
            let to = match chain.get(at + 1) {
                Some(&next) => self.program.function_of(next),
                None => leaf,
            };
            let Some(to) = to else { continue };
            let Some(targets) = self.calls.get(&from) else {
                continue;
            };
            if targets.contains(&to) || !self.reached.contains(&to) {
                continue;
            }
            self.visiting.clear();
            let (mut ways, mut path) = (0, Vec::new());
            for target in targets.clone() {
                ways += self.search_function(target, to, &mut path, 0);
                if ways > 1 {
                    break;
                }
            }
            if ways == 1 {
                all.append(&mut path);
            }
        }
        all
    }

    /// The number of ways from one function to another, at most 2 or a few more; the jumps of the only one
    /// are added to `path`.
    fn search_function(&mut self, from: u32, to: u32, path: &mut Vec<u64>, depth: u32) -> u64 {
        if from == to {
            return 1;
        }
        // Going round in circles makes no further way.
        if self.visiting.contains(&from) {
            return 0;
        }
        if let Some((ways, known)) = self.known.get(&(from, to)) {
            path.extend(known);
            return *ways;
        }
        if depth >= self.limit {
            return 0;
        }
        let Some(jumps) = self.jumps_of.get(&from).cloned() else {
            return 0;
        };
        let start = path.len();
        self.visiting.insert(from);
        let mut ways = 0;
        for jump in jumps {
            ways += self.search_jump(jump, to, path, depth + 1);
            if ways > 1 {
                break;
            }
        }
        self.visiting.remove(&from);
        if ways != 1 {
            path.truncate(start);
        }
        self.known
            .insert((from, to), (ways, path[start..].to_vec()));
        ways
    }

    fn search_jump(&mut self, jump: u64, to: u32, path: &mut Vec<u64>, depth: u32) -> u64 {
        let start = path.len();
        path.push(jump);
        let mut ways = 0;
        for target in self.jumps.get(&jump).cloned().unwrap_or_default() {
            ways += self.search_function(target, to, path, depth);
            if ways > 1 {
                break;
            }
        }
        if ways != 1 {
            path.truncate(start);
        }
        ways
    }
}

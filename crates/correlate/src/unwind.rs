//! Branch stacks and call chains together: counters for every chain of callers.
//!
//! A sample with both says where the program was, who had called whom, and the last branches taken. Walking the branches from the newest
//! to the oldest undoes them one by one, so that at every branch the call chain of that moment is known: undoing a call takes a frame off the
//! chain, undoing a return puts one on, undoing anything else only moves the innermost frame. What ran between two branches is
//! counted for the chain of that moment.
//!
//! # Chains as keys
//!
//! By probes a key is the chain of call addresses without the innermost function, which the ranges imply. By lines it is the
//! chain of source locations including everything inlined, down to the function; runs are cut where what is inlined changes. In both,
//! repeated sequences of frames can be folded (recursion), and only the innermost frames kept.

use rustc_hash::FxHashMap;

use crate::counters::Counters;
use crate::dwarf::{Frame, Lines};
use crate::names;
use crate::program::{EXTERNAL, Program};
use crate::sample::{Context, Location, Names, Step};
use crate::script::Sample;

/// How chains become keys.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest sequence of frames that is folded; `None`: any, 0: none.
    pub fold: Option<usize>,
    /// Most callers that are kept; `None`: all.
    pub depth: Option<usize>,
}

/// Folds repeated sequences: first single frames, then pairs, and so on.
pub fn fold<T: Clone + PartialEq>(frames: &mut Vec<T>, limit: Option<usize>) {
    let mut len = 1;
    while len <= limit.unwrap_or(usize::MAX) && len <= frames.len() / 2 {
        let mut kept: Vec<T> = Vec::with_capacity(frames.len());
        for frame in frames.drain(..) {
            kept.push(frame);
            let n = kept.len();
            if n >= 2 * len && kept[n - 2 * len..n - len] == kept[n - len..] {
                kept.truncate(n - len);
            }
        }
        *frames = kept;
        len += 1;
    }
}

/// Keeps the innermost frames.
pub fn cut<T>(frames: &mut Vec<T>, depth: Option<usize>) {
    if let Some(depth) = depth
        && frames.len() > depth
    {
        frames.drain(..frames.len() - depth);
    }
}

/// Counters by chain of call addresses, outermost first.
pub type ByAddress = FxHashMap<Vec<u64>, Counters>;
/// Counters by chain of source locations, and whether the last function was inlined.
pub type ByLocation = FxHashMap<Context, (Counters, bool)>;

/// Undoes the branches of samples.
pub struct Unwinder<'a, 'd> {
    /// The code.
    pub program: &'a Program<'d>,
    /// Debug information, if keys are chains of source locations.
    pub lines: Option<&'a Lines<'d>>,
    /// Counters by chain. By lines, the chain ends with the instruction itself.
    pub counters: ByAddress,
}

impl Unwinder<'_, '_> {
    /// Adds a sample that occurred `count` times.
    pub fn add(&mut self, sample: &Sample, count: u64) {
        // Outermost first; the innermost frame is where control is.
        let mut chain: Vec<u64> = sample.chain.iter().rev().copied().collect();
        let Some(mut at) = chain.last().copied() else {
            return;
        };
        let by_lines = self.lines.is_some();
        let program = self.program;
        let mut valid = true;
        for (number, branch) in sample.branches.iter().enumerate() {
            if number > 0 {
                let run = match (branch.to == EXTERNAL, at == EXTERNAL) {
                    (true, true) => true,
                    (false, false) => program.falls_through(branch.to, at),
                    _ => false,
                };
                // From a broken run on, nothing is known of the callers.
                valid &= run;
                if run && branch.to != EXTERNAL {
                    match by_lines {
                        true => self.cut_run(&mut chain, branch.to, at, count),
                        false => self
                            .counters_of(&chain[..chain.len() - 1])
                            .run(branch.to, at, count),
                    }
                }
            }
            let (from, to) = (branch.from, branch.to);
            let after_call = program
                .previous(to)
                .is_some_and(|before| program.is_call(before));
            let is_call =
                program.is_call(from) || (from == EXTERNAL && to != EXTERNAL && !after_call);
            // What does not follow a call cannot be returned to: that was a jump in the clothes of a return.
            let is_return = match (from == EXTERNAL, to == EXTERNAL) {
                (true, true) => false,
                (true, false) => after_call,
                (false, true) => program.is_return(from),
                (false, false) => program.is_return(from) && after_call,
            };
            if !valid {
                chain.clear();
                chain.push(from);
            } else if is_call {
                let parent = chain.len().checked_sub(2).map(|at| chain[at]);
                chain.pop();
                if parent != Some(from) {
                    chain.push(from);
                }
            } else if is_return {
                chain.pop();
                chain.push(program.call_before(to).unwrap_or(EXTERNAL));
                chain.push(from);
            } else {
                chain.pop();
                chain.push(from);
            }
            at = from;
            if to != EXTERNAL {
                let key = match (from == EXTERNAL, by_lines) {
                    (true, _) => 0,
                    (false, true) => chain.len(),
                    (false, false) => chain.len() - 1,
                };
                self.counters_of(&chain[..key]).branch(from, to, count);
            }
        }
    }

    /// The counters of a chain. What is outside of code that is not the program's is unknown.
    fn counters_of(&mut self, chain: &[u64]) -> &mut Counters {
        let known = chain
            .iter()
            .rposition(|&frame| frame == EXTERNAL)
            .map_or(0, |at| at + 1);
        self.counters.entry(chain[known..].to_vec()).or_default()
    }

    /// Counts a run piece by piece, cut where what is inlined changes.
    fn cut_run(&mut self, chain: &mut [u64], first: u64, last: u64, count: u64) {
        let Some(lines) = self.lines else { return };
        let code = self.program.between(first, last);
        let (mut here, mut before) = (Vec::new(), Vec::new());
        let mut end = last;
        if let Some(leaf) = chain.last_mut() {
            *leaf = last;
        }
        lines.frames(last, &mut here);
        for pair in code.windows(2).rev() {
            let (address, after) = (pair[0], pair[1]);
            lines.frames(address, &mut before);
            if before.is_empty() || !same_function(&before, &here) {
                self.counters_of(chain).run(after, end, count);
                end = address;
                if let Some(leaf) = chain.last_mut() {
                    *leaf = address;
                }
            }
            std::mem::swap(&mut here, &mut before);
        }
        self.counters_of(chain).run(first, end, count);
    }
}

/// Whether two inline stacks are the same but for the place in the innermost function.
fn same_function(a: &[Frame<'_>], b: &[Frame<'_>]) -> bool {
    a.len() == b.len()
        && a.first().map(|frame| frame.name) == b.first().map(|frame| frame.name)
        && a.get(1..) == b.get(1..)
}

/// Turns keys of addresses to chains of source locations, and adds up what becomes equal.
pub fn by_location(
    counters: ByAddress,
    lines: &Lines<'_>,
    limits: Limits,
    flow_sensitive: bool,
    names: &mut Names,
) -> ByLocation {
    let mut all = ByLocation::default();
    let mut frames = Vec::new();
    for (chain, counters) in counters {
        let mut context = Context::new();
        let mut inlined = false;
        for address in chain {
            lines.frames(address, &mut frames);
            if frames.is_empty() {
                context.clear();
                break;
            }
            inlined = frames.len() > 1;
            context.extend(frames.iter().rev().map(|frame| Step {
                name: names.intern(names::canonical(frame.name)),
                at: Location {
                    offset: frame.line_offset,
                    discriminator: frame.discriminator.base(flow_sensitive),
                },
            }));
        }
        if let Some(mut leaf) = context.pop() {
            fold(&mut context, limits.fold);
            cut(&mut context, limits.depth);
            leaf.at = Location::default();
            context.push(leaf);
        }
        let entry = all.entry(context).or_default();
        entry.0.absorb(counters);
        entry.1 |= inlined;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_sequences_are_folded_up_to_the_limit() {
        let folded = |text: &str, limit| {
            let mut frames: Vec<char> = text.chars().collect();
            fold(&mut frames, limit);
            frames.into_iter().collect::<String>()
        };
        assert_eq!(folded("abbabba", Some(1)), "ababa");
        assert_eq!(folded("abbabba", Some(0)), "abbabba");
        assert_eq!(folded("abababc", None), "abc");
        assert_eq!(folded("aabcabca", None), "abca");
        assert_eq!(folded("", None), "");
    }
}

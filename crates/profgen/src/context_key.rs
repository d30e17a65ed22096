//! Chains of callers as keys of counters.
//!
//! By probes a key is the chain of call addresses without the innermost function, which the ranges imply. By
//! lines it is the chain of source locations including everything inlined, down to the function; runs are cut
//! where what is inlined changes. In both, repeated sequences of frames can be folded (recursion), and only
//! the innermost frames kept.

use rustc_hash::FxHashMap;

use crate::counters::Counters;
use crate::dwarf::Lines;
use crate::names;
use crate::sample::{Context, Location, Names, Step};

/// How chains become keys.
#[derive(Clone, Copy, Debug)]
pub struct ContextLimits {
    /// Longest sequence of frames that is folded; `None`: any, 0: none.
    pub fold: Option<usize>,
    /// Most callers that are kept; `None`: all.
    pub depth: Option<usize>,
    /// Most addresses that are kept of a chain before it has names; `None`: as many as `depth`.
    pub unsymbolized_depth: Option<usize>,
}

/// Folds repeated sequences: first single frames, then pairs, and so on.
pub fn fold<T: Clone + PartialEq>(frames: &mut Vec<T>, limit: Option<usize>) {
    let mut len = 1;
    while len <= limit.unwrap_or(usize::MAX) && len <= frames.len() / 2 {
        let mut kept: Vec<T> = Vec::with_capacity(frames.len());
        for frame in frames.drain(..) {
            kept.push(frame);
            let n = kept.len();
            if n >= 2 * len && kept.get(n - 2 * len..n - len) == kept.get(n - len..) {
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

/// Turns keys of addresses to chains of source locations, and adds up what becomes equal.
pub fn by_location(
    counters: ByAddress,
    lines: &Lines<'_>,
    limits: ContextLimits,
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

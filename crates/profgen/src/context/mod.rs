//! From counters by chain of callers to context-sensitive profiles.
//!
//! By probes, each call address of a chain becomes the inline path of its call probe; the probes of the runs
//! add their own inline path. By lines, chains already are source locations. Either way a profile's key is
//! the whole path down to a function, inlined or not, so that code inlined in one binary and called in the
//! next finds its counts under the same key.
//!
//! Afterwards chains are worked over as a tree ([`trie`]):
//!
//! | module | subject |
//! |---|---|
//! | [`frames`] | callers that are missing because they jumped on |
//! | [`preinline`] | which chains are worth keeping: what will be inlined |
//! | [`size`] | what inlining costs: bytes of code, by chain |
//! | [`nest`] | from chains to functions with inlined functions |

pub mod frames;
pub mod nest;
pub mod preinline;
mod queue;
pub mod size;
pub mod trie;

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use self::frames::Frames;
use crate::context_key::{ByAddress, ByLocation, ContextLimits, cut, fold};
use crate::counters::Counters;
use crate::dwarf::Lines;
use crate::names;
use crate::probe::{Loaded, NodeId, Probe};
use crate::program::{EXTERNAL, Program};
use crate::sample::{Context, Function, Location, Names, Profile, Step, WAS_INLINED};

fn at(offset: u32) -> Location {
    Location {
        offset,
        discriminator: 0,
    }
}

fn step(names: &mut Names, loaded: &Loaded<'_>, guid: crate::guid::Guid, site: u32) -> Step {
    let name = match loaded.descriptors.get(guid) {
        Some(descriptor) => names.intern(names::canonical(descriptor.name)),
        None => names.intern(guid.to_string().as_bytes()),
    };
    Step { name, at: at(site) }
}

/// Adds where a probe is to a chain: the functions it was inlined through, and its own, at the probe.
fn add_path(context: &mut Context, names: &mut Names, loaded: &Loaded<'_>, probe: &Probe) {
    for (guid, site) in loaded.probes.context(probe.node) {
        // An unknown call site makes everything outside of it unknown, callers included.
        match site {
            0 => context.clear(),
            _ => context.push(step(names, loaded, guid, site)),
        }
    }
    context.push(step(
        names,
        loaded,
        loaded.probes.node(probe.node).guid,
        probe.index,
    ));
}

/// A chain of callers and a probe become a key.
fn key(
    callers: &[Step],
    names: &mut Names,
    loaded: &Loaded<'_>,
    probe: &Probe,
    limits: ContextLimits,
) -> Context {
    let mut context = callers.to_vec();
    add_path(&mut context, names, loaded, probe);
    if let Some(mut leaf) = context.pop() {
        fold(&mut context, limits.fold);
        cut(&mut context, limits.depth);
        leaf.at = Location::default();
        context.push(leaf);
    }
    context
}

/// Makes a profile by probes. Also says how many chains were cut for want of a call probe. `frames` fills in
/// missing callers.
pub fn by_probes(
    program: &Program<'_>,
    loaded: &Loaded<'_>,
    counters: &ByAddress,
    limits: ContextLimits,
    mut frames: Option<Frames<'_, '_>>,
) -> (Profile, usize) {
    let mut profile = Profile {
        probe_based: true,
        context_sensitive: true,
        ..Profile::default()
    };
    let mut truncated = 0;
    // In one order, so that what is found on the way does not depend on chance.
    let mut chains: Vec<_> = counters.iter().collect();
    chains.sort_unstable_by_key(|entry| entry.0);
    for (chain, counters) in chains {
        let missing = |&&address: &&u64| loaded.probes.call_at(address).is_none();
        truncated += usize::from(chain.iter().find(missing).is_some());
        let mut callers = Callers {
            program,
            loaded,
            chain,
            frames: frames.as_mut(),
            known: FxHashMap::default(),
        };
        add_probes(&mut profile, &mut callers, counters, limits);
    }
    (profile, truncated)
}

/// The chain of callers of a set of counters, as source locations.
struct Callers<'a, 'f, 'g> {
    program: &'a Program<'a>,
    loaded: &'a Loaded<'a>,
    chain: &'a [u64],
    frames: Option<&'a mut Frames<'f, 'g>>,
    /// By the function that is called last: which callers are missing depends on it.
    known: FxHashMap<Option<u32>, Context>,
}

impl Callers<'_, '_, '_> {
    /// The callers of the code at an address.
    fn of(&mut self, names: &mut Names, address: u64) -> &Context {
        let function = self.frames.as_ref().and(self.program.function_of(address));
        let (loaded, chain) = (self.loaded, self.chain);
        let frames = &mut self.frames;
        self.known.entry(function).or_insert_with(|| {
            let completed;
            let chain = match frames {
                Some(frames) => {
                    completed = frames.complete(chain, function);
                    &completed[..]
                }
                None => chain,
            };
            // A call without a probe is unknown to the compiler, and with it everything outside.
            let calls: Vec<Probe> = chain
                .iter()
                .rev()
                .map_while(|&address| loaded.probes.call_at(address))
                .collect();
            let mut callers = Context::new();
            for call in calls.iter().rev() {
                add_path(&mut callers, names, loaded, call);
            }
            callers
        })
    }
}

fn add_probes(
    profile: &mut Profile,
    callers: &mut Callers<'_, '_, '_>,
    counters: &Counters,
    limits: ContextLimits,
) {
    let (program, loaded) = (callers.program, callers.loaded);
    let hash = |node: NodeId| {
        loaded
            .descriptors
            .get(loaded.probes.node(node).guid)
            .map_or(0, |d| d.hash)
    };
    // Keys by body: many probes share one.
    let mut keys: FxHashMap<NodeId, Context> = FxHashMap::default();
    let mut touched: FxHashSet<NodeId> = FxHashSet::default();
    for ((first, last), count) in counters.disjoint() {
        if count == 0 {
            continue;
        }
        for probe in loaded.probes.within(first, last.saturating_add(1)) {
            if probe.kind.is_call() || !program.is_code(probe.address) {
                continue;
            }
            let context = keys.entry(probe.node).or_insert_with(|| {
                let callers = callers.of(&mut profile.names, probe.address);
                key(callers, &mut profile.names, loaded, &probe, limits)
            });
            touched.insert(probe.node);
            let parent = loaded.probes.parent(probe.node);
            let function = profile.functions.entry(context.clone()).or_default();
            function.hash = hash(probe.node);
            if parent.is_some() {
                function.attributes |= WAS_INLINED;
            }
            let place = Location {
                offset: probe.index,
                discriminator: probe.discriminator,
            };
            function.add_body(place, count);
            function.add_total(count);
            if probe.index != 1 {
                continue;
            }
            function.add_head(count);
            // Entering inlined code is a call by the code around it.
            if let Some(parent) = parent
                && let [outer @ .., caller, leaf] = &context[..]
            {
                let (site, callee) = (caller.at, leaf.name);
                let mut outer = outer.to_vec();
                outer.push(Step {
                    name: caller.name,
                    at: Location::default(),
                });
                let function = profile.functions.entry(outer).or_default();
                function.hash = hash(parent);
                function.add_body(site, count);
                function.add_total(count);
                function.add_target(site, callee, count);
            }
        }
    }
    // What is there and was not run is zero, what is not there is unknown.
    for node in touched {
        let Some(context) = keys.get(&node) else {
            continue;
        };
        let function = profile.functions.entry(context.clone()).or_default();
        for probe in loaded.probes.of_node(node) {
            function.add_body(
                Location {
                    offset: probe.index,
                    discriminator: probe.discriminator,
                },
                0,
            );
        }
    }
    for (&(from, to), &count) in &counters.branches {
        let Some(probe) = loaded.probes.call_at(from) else {
            continue;
        };
        let callers = callers.of(&mut profile.names, from);
        let context = key(callers, &mut profile.names, loaded, &probe, limits);
        let callee = program
            .entry_at(to)
            .map(|name| profile.names.intern(names::canonical(name)));
        let function = profile.functions.entry(context).or_default();
        function.hash = hash(probe.node);
        if loaded.probes.parent(probe.node).is_some() {
            function.attributes |= WAS_INLINED;
        }
        function.add_body(at(probe.index), count);
        function.add_total(count);
        if let Some(callee) = callee {
            let place = Location {
                offset: probe.index,
                discriminator: probe.discriminator,
            };
            function.add_target(place, callee, count);
        }
    }
}

/// Makes a profile by lines. `names` are those of the keys.
pub fn by_lines(
    program: &Program<'_>,
    lines: &Lines<'_>,
    counters: &ByLocation,
    names: Names,
    flow_sensitive: bool,
    update_totals: bool,
) -> Profile {
    let mut profile = Profile {
        names,
        context_sensitive: true,
        flow_sensitive,
        ..Profile::default()
    };
    let mut frames = Vec::new();
    for (context, (counters, inlined)) in counters {
        if !context.is_empty() {
            let function = profile.functions.entry(context.clone()).or_default();
            if *inlined {
                function.attributes |= WAS_INLINED;
            }
            for ((first, last), count) in counters.disjoint() {
                if count == 0 {
                    continue;
                }
                for address in program.between(first, last) {
                    lines.frames(address, &mut frames);
                    let Some(leaf) = frames.first() else { continue };
                    let place = Location {
                        offset: leaf.line_offset,
                        discriminator: leaf.discriminator.base(flow_sensitive),
                    };
                    let copies = u64::from(leaf.discriminator.duplication(flow_sensitive));
                    function.raise_body(place, count.saturating_mul(copies));
                    function.add_total(count);
                }
            }
        }
        for (&(from, to), &count) in &counters.branches {
            let Some(callee) = program.entry_at(to) else {
                continue;
            };
            let callee = profile.names.intern(names::canonical(callee));
            let mut inner = Context::new();
            if from != EXTERNAL && !context.is_empty() {
                lines.frames(from, &mut frames);
                let Some(leaf) = frames.first() else { continue };
                let place = Location {
                    offset: leaf.line_offset,
                    discriminator: leaf.discriminator.base(flow_sensitive),
                };
                profile
                    .functions
                    .entry(context.clone())
                    .or_default()
                    .add_target(place, callee, count);
                inner.clone_from(context);
                if let Some(last) = inner.last_mut() {
                    // Entries are kept at the whole discriminator, as LLVM's tool does, and runs at the base
                    // one. Where the two differ, the callee is known at both.
                    last.at = Location {
                        discriminator: leaf.discriminator.0,
                        ..place
                    };
                }
            }
            inner.push(Step {
                name: callee,
                at: Location::default(),
            });
            profile.functions.entry(inner).or_default().add_head(count);
        }
    }
    infer_heads(&mut profile);
    if update_totals {
        profile
            .functions
            .values_mut()
            .for_each(Function::recompute_totals);
    }
    profile
        .functions
        .values_mut()
        .for_each(Function::raise_to_calls);
    profile
}

/// Code that is entered without a branch was inlined: its caller gets the entries as calls. Innermost functions first.
fn infer_heads(profile: &mut Profile) {
    let mut by_len: BTreeMap<usize, FxHashSet<Context>> = BTreeMap::new();
    for context in profile.functions.keys() {
        by_len
            .entry(context.len())
            .or_default()
            .insert(context.clone());
    }
    // Callers that are added on the way are one shorter, so their turn is still to come.
    while let Some((_, contexts)) = by_len.pop_last() {
        for context in contexts {
            let [outer @ .., caller, leaf] = &context[..] else {
                continue;
            };
            let function = profile.functions.get(&context);
            let Some(function) = function.filter(|function| function.head == 0) else {
                continue;
            };
            let mut count = function.estimated_head();
            if count == 0 && function.body.is_empty() {
                // It is in a chain, so it was there.
                count = 1;
            }
            let (site, callee) = (caller.at, leaf.name);
            let mut key = outer.to_vec();
            key.push(Step {
                name: caller.name,
                at: Location::default(),
            });
            let parent = profile.functions.entry(key.clone()).or_default();
            parent.add_target(site, callee, count);
            parent.add_body(site, count);
            parent.add_total(count);
            by_len.entry(key.len()).or_default().insert(key);
        }
    }
}

/// What is done with contexts that were hardly sampled.
#[derive(Clone, Copy, Debug)]
pub struct Cold {
    /// Contexts with a smaller sum are cold.
    pub threshold: u64,
    /// Fold them into shorter ones.
    pub merge: bool,
    /// Leave out what stays cold.
    pub trim: bool,
    /// How many frames folded contexts keep.
    pub depth: usize,
    /// Leave chains alone that the pre-inliner has kept.
    pub keep_chains: bool,
}

impl Cold {
    /// Works a profile over.
    pub fn apply(self, profile: &mut Profile) {
        if !self.merge && !self.trim {
            return;
        }
        let mut cold: Vec<Context> = profile
            .functions
            .iter()
            .filter(|(context, function)| {
                function.total < self.threshold
                    && (self.merge || !self.keep_chains || context.len() == 1)
            })
            .map(|(context, _)| context.clone())
            .collect();
        cold.sort_unstable();
        let mut folded: FxHashMap<Context, Function> = FxHashMap::default();
        for mut context in cold {
            let Some(function) = profile.functions.remove(&context) else {
                continue;
            };
            if self.merge {
                cut(&mut context, Some(self.depth.max(1)));
                // Code that was inlined somewhere is not what the shorter chain represents: attributes are left.
                folded.entry(context).or_default().merge(&function);
            }
        }
        for (context, function) in folded {
            if self.trim
                && function.total < self.threshold
                && !profile.functions.contains_key(&context)
            {
                continue;
            }
            Function::merge_into(profile.functions.entry(context), &function);
        }
    }
}

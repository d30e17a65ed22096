//! From counters to flat profiles: one profile a function, with what was inlined into it nested.
//!
//! Runs are first cut so that they do not overlap. Then every instruction (with debug information) or every
//! probe of a piece is looked up once, and gets the piece's count. Pieces of a sampled function that were
//! never run count zero: what is absent from a profile is unknown to the compiler, and that is something
//! else.
//!
//! By debug information several instructions share a location, so a location's count is the largest of them,
//! times the factor by which the optimiser duplicated the code. A probe has its own copies' counts added up.

use rustc_hash::FxHashSet;

use crate::accesses::Accesses;
use crate::counters::Counters;
use crate::dwarf::{Frame, Lines};
use crate::names;
use crate::probe::{Loaded, Probe};
use crate::program::{EXTERNAL, Program};
use crate::sample::{Function, Location, Profile};

/// How a flat profile is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Count zero for functions without any sample too.
    pub fill_all: bool,
    /// Counts are of instructions, not of runs: they are added up.
    pub ip_only: bool,
    /// Discriminators are single numbers.
    pub flow_sensitive: bool,
}

/// Adds runs of zero for the pieces of every function that was sampled.
fn filled(program: &Program<'_>, counters: &Counters, fill_all: bool) -> Counters {
    let mut sampled: FxHashSet<&[u8]> = FxHashSet::default();
    for &(first, _) in counters.runs.keys() {
        sampled.extend(program.range_of(first).map(|range| range.name));
    }
    let mut all = counters.clone();
    for range in program.ranges() {
        if (fill_all || sampled.contains(range.name)) && range.end > range.start {
            all.run(range.start, range.end - 1, 0);
        }
    }
    all
}

/// Where in its function a frame is.
pub(crate) fn location(frame: &Frame<'_>, flow_sensitive: bool) -> Location {
    Location {
        offset: frame.line_offset,
        discriminator: frame.discriminator.base(flow_sensitive),
    }
}

/// The profile of the innermost frame (`frames` are innermost first); `each` sees the profiles on the way,
/// the innermost last.
fn innermost<'p>(
    profile: &'p mut Profile,
    frames: &[Frame<'_>],
    flow_sensitive: bool,
    mut each: impl FnMut(&mut Function),
) -> Option<&'p mut Function> {
    let ids: Vec<_> = frames
        .iter()
        .map(|frame| profile.names.intern(names::canonical(frame.name)))
        .collect();
    let mut here = profile.function(*ids.last()?);
    each(here);
    for (caller, inlined) in frames.iter().skip(1).zip(&ids).rev() {
        here = here.inlinee(location(caller, flow_sensitive), *inlined);
        each(here);
    }
    Some(here)
}

/// Makes a profile by debug information.
pub fn by_lines(
    program: &Program<'_>,
    lines: &Lines<'_>,
    counters: &Counters,
    options: Options,
) -> Profile {
    let fs = options.flow_sensitive;
    let mut profile = Profile {
        flow_sensitive: fs,
        ..Profile::default()
    };
    let mut frames = Vec::new();
    for ((first, last), count) in filled(program, counters, options.fill_all).disjoint() {
        for address in program.between(first, last) {
            lines.frames(address, &mut frames);
            let Some(leaf) = frames.first().copied() else {
                continue;
            };
            let total = count.saturating_mul(program.len_at(address));
            let Some(function) = innermost(&mut profile, &frames, fs, |function| {
                function.add_total(total)
            }) else {
                continue;
            };
            let at = location(&leaf, fs);
            if options.ip_only {
                function.add_body(at, count);
            } else {
                let copies = u64::from(leaf.discriminator.duplication(fs));
                function.raise_body(at, count.saturating_mul(copies));
            }
        }
    }
    for (&(from, to), &count) in &counters.branches {
        let Some(callee) = program.entry_at(to) else {
            continue;
        };
        let callee = profile.names.intern(names::canonical(callee));
        if from != EXTERNAL {
            lines.frames(from, &mut frames);
            if let Some(leaf) = frames.first().copied()
                && let Some(function) = innermost(&mut profile, &frames, fs, |_| {})
            {
                function.add_target(location(&leaf, fs), callee, count);
            }
        }
        profile.function(callee).add_head(count);
    }
    profile
        .functions
        .values_mut()
        .for_each(Function::raise_to_calls);
    profile
}

/// Adds the virtual tables that were read, by debug information.
pub fn add_accesses(
    lines: &Lines<'_>,
    accesses: &Accesses,
    flow_sensitive: bool,
    profile: &mut Profile,
) {
    let mut frames = Vec::new();
    for (address, table, count) in accesses.counts() {
        lines.frames(address, &mut frames);
        let Some(leaf) = frames.first().copied() else {
            continue;
        };
        let table = profile.names.intern(names::canonical(table));
        if let Some(function) = innermost(profile, &frames, flow_sensitive, |_| {}) {
            function.add_vtable(location(&leaf, flow_sensitive), table, count);
        }
    }
}

/// A probe's functions, outermost first, each with the call probe through which the next was inlined.
pub(crate) fn path<'d>(loaded: &Loaded<'d>, probe: &Probe) -> Vec<(crate::guid::Guid, u32)> {
    let mut path = loaded.probes.context(probe.node);
    // An unknown call site makes what is outside of it unknown.
    if let Some(at) = path.iter().rposition(|step| step.1 == 0) {
        path.drain(..=at);
    }
    path.push((loaded.probes.node(probe.node).guid, probe.index));
    path
}

/// The profile that a probe belongs to.
fn function_of<'p>(
    profile: &'p mut Profile,
    loaded: &Loaded<'_>,
    probe: &Probe,
    mut each: impl FnMut(&mut Function),
) -> Option<&'p mut Function> {
    let path = path(loaded, probe);
    let known: Vec<_> = path
        .iter()
        .map(|&(guid, site)| {
            let name = loaded.descriptors.name(guid);
            let hash = loaded
                .descriptors
                .get(guid)
                .map_or(0, |descriptor| descriptor.hash);
            let raw = loaded
                .descriptors
                .get(guid)
                .map_or(name.as_bytes(), |descriptor| descriptor.name);
            (profile.names.intern(names::canonical(raw)), site, hash)
        })
        .collect();
    let (first, rest) = known.split_first()?;
    let mut here = profile.function(first.0);
    here.hash = first.2;
    each(here);
    let mut site = first.1;
    for &(name, next, hash) in rest {
        here = here.inlinee(
            Location {
                offset: site,
                discriminator: 0,
            },
            name,
        );
        here.hash = hash;
        each(here);
        site = next;
    }
    Some(here)
}

/// Makes a profile by probes.
pub fn by_probes(
    program: &Program<'_>,
    loaded: &Loaded<'_>,
    counters: &Counters,
    options: Options,
) -> Profile {
    let mut profile = Profile {
        probe_based: true,
        flow_sensitive: options.flow_sensitive,
        ..Profile::default()
    };
    for ((first, last), count) in filled(program, counters, options.fill_all).disjoint() {
        for probe in loaded.probes.within(first, last.saturating_add(1)) {
            if !program.is_code(probe.address) {
                continue;
            }
            let Some(function) = function_of(&mut profile, loaded, &probe, |function| {
                function.add_total(count)
            }) else {
                continue;
            };
            let at = Location {
                offset: probe.index,
                discriminator: probe.discriminator,
            };
            function.add_body(at, count);
            if probe.index == 1 {
                function.add_head(count);
            }
        }
    }
    for (&(from, to), &count) in &counters.branches {
        let Some(probe) = loaded.probes.call_at(from) else {
            continue;
        };
        let Some(callee) = program.entry_at(to) else {
            continue;
        };
        let callee = profile.names.intern(names::canonical(callee));
        let at = Location {
            offset: probe.index,
            discriminator: probe.discriminator,
        };
        if let Some(function) = function_of(&mut profile, loaded, &probe, |_| {}) {
            function.add_target(at, callee, count);
        }
    }
    profile
        .functions
        .values_mut()
        .for_each(Function::raise_to_calls);
    profile
}

/// A program whose discriminators are single numbers has a symbol of this name.
pub const FLOW_SENSITIVE_SYMBOL: &[u8] = b"__llvm_fs_discriminator__";

//! From a sample profile back to code: how often each instruction ran, by what the profile says of its location.
//!
//! A compiler's profile speaks of source lines (or probes) of functions and of what was inlined into them. The debug
//! information of a program, of the profiled build or of another one, says which instructions these are now.
//!
//! An instruction's chain of inlined functions is followed in the profile from the outermost function inwards. Where a
//! step is missing (the function was not inlined when the profile was taken) the callee's own profile is looked at. By
//! lines a count is shared by the copies that the optimiser made of the code, so each gets its part. An instruction of
//! which nothing is known goes with the one before it, unless control can leave there: compilers give instructions
//! lines of other places, or none, in the middle of a block.

use crate::FormatError;
use crate::dwarf::{Frame, Lines};
use crate::flat;
use crate::names;
use crate::probe::{self, Loaded};
use crate::program::Program;
use crate::sample::{Function, Location, NameId, Profile, Step};
use postlink_elf::elf::Elf;

/// Executions of the instructions at addresses, ascending.
///
/// # Errors
/// Pseudo probes that cannot be read; a profile by probes for a program without them, or by lines for one without debug
/// information; a profile with chains of callers.
pub fn spread(
    elf: &Elf<'_>,
    lines: &Lines<'_>,
    profile: &Profile,
) -> Result<Vec<(u64, u64)>, FormatError> {
    if profile.context_sensitive {
        return Err(FormatError::new(
            "the sample profile tells functions apart by their callers: llvm-profdata merge --sample --convert-sample-profile-layout=flat makes one that does not",
        ));
    }
    let loaded = if profile.probe_based {
        Some(probe::load(elf)?.ok_or_else(|| {
            FormatError::new("the sample profile is by pseudo probes, and the program has none")
        })?)
    } else {
        None
    };
    if loaded.is_none() && lines.is_empty() {
        return Err(FormatError::new(
            "the sample profile is by source lines, and the program has no debug information",
        ));
    }
    let program = Program::new(elf, lines);
    let mut out = Vec::new();
    let mut frames = Vec::new();
    for range in program.ranges() {
        let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) else {
            continue;
        };
        let mut before = None;
        for address in program.between(range.start, last) {
            let known = match &loaded {
                Some(loaded) => by_probes(loaded, profile, address),
                None => {
                    lines.frames(address, &mut frames);
                    by_lines(profile, &frames)
                }
            };
            let count = known.or(before);
            if let Some(count) = count.filter(|count| *count > 0) {
                out.push((address, count));
            }
            before = if program.is_transfer(address) {
                None
            } else {
                count
            };
        }
    }
    out.sort_unstable();
    // Ranges may overlap: an instruction ran once for all of them.
    out.dedup_by_key(|item| item.0);
    Ok(out)
}

/// The profile of a function that is not inlined.
fn alone(profile: &Profile, name: NameId) -> Option<&Function> {
    let at = Location::default();
    profile.functions.get(&[Step { name, at }][..])
}

fn by_lines(profile: &Profile, frames: &[Frame<'_>]) -> Option<u64> {
    let fs = profile.flow_sensitive;
    let leaf = frames.first()?;
    let mut function: Option<&Function> = None;
    let mut call: Option<Location> = None;
    for frame in frames.iter().rev() {
        let name = profile.names.find(names::canonical(frame.name));
        let inlined = call.and_then(|at| function?.inlinees.get(&at)?.get(&name?));
        function = inlined.or_else(|| alone(profile, name?));
        call = Some(flat::location(frame, fs));
    }
    let record = function?.body.get(&flat::location(leaf, fs))?;
    let copies = u64::from(leaf.discriminator.duplication(fs));
    Some(record.count / copies.max(1))
}

fn by_probes(loaded: &Loaded<'_>, profile: &Profile, address: u64) -> Option<u64> {
    let mut found: Option<u64> = None;
    for probe in loaded.probes.at(address) {
        let mut function: Option<&Function> = None;
        let mut call: Option<Location> = None;
        for (guid, index) in flat::path(loaded, &probe) {
            let name = loaded.descriptors.name(guid);
            let raw = loaded
                .descriptors
                .get(guid)
                .map_or(name.as_bytes(), |descriptor| descriptor.name);
            let name = profile.names.find(names::canonical(raw));
            let inlined = call.and_then(|at| function?.inlinees.get(&at)?.get(&name?));
            function = inlined.or_else(|| alone(profile, name?));
            call = Some(Location {
                offset: index,
                discriminator: 0,
            });
        }
        let at = Location {
            offset: probe.index,
            discriminator: probe.discriminator,
        };
        if let Some(record) = function.and_then(|function| function.body.get(&at)) {
            found = Some(found.unwrap_or(0).max(record.count));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discriminator::Discriminator;
    use crate::sample::text;

    fn frame(name: &'static str, line_offset: u32, discriminator: u32) -> Frame<'static> {
        Frame {
            name: name.as_bytes(),
            line_offset,
            discriminator: Discriminator(discriminator),
        }
    }

    #[test]
    fn a_location_is_found_through_inlined_functions_or_in_the_callees_own_profile() {
        let profile =
            text::read(b"main:100:1\n 2: 60\n 3: inner:40\n  1: 40\nother:7:1\n 1: 7\n").unwrap();
        // Innermost first.
        let count = |frames: &[Frame<'_>]| by_lines(&profile, frames);
        assert_eq!(count(&[frame("main", 2, 0)]), Some(60));
        assert_eq!(
            count(&[frame("inner", 1, 0), frame("main", 3, 0)]),
            Some(40)
        );
        assert_eq!(count(&[frame("other", 1, 0), frame("main", 4, 0)]), Some(7));
        assert_eq!(count(&[frame("inner", 1, 0), frame("main", 9, 0)]), None);
        assert_eq!(count(&[frame("main", 5, 0)]), None);
        assert_eq!(count(&[]), None);
        // A duplication factor of 4 in the second component, with no base discriminator.
        assert_eq!(Discriminator(1 | 4 << 2).duplication(false), 4);
        assert_eq!(count(&[frame("main", 2, 1 | 4 << 2)]), Some(15));
    }
}

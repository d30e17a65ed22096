//! Samples from `perf.data`, without perf.
//!
//! A recording says of every sample its process, and of every process what was mapped where and when. So
//! several processes of one program are told apart, each with its own load address. Which files are the
//! program is said by [`postlink_profile::modules`].

use std::path::Path;

use postlink_bytes::hex;
use postlink_elf::elf::Elf;
use postlink_profile::perf_data::PerfData;
use postlink_profile::{RecognisedBy, Space};
use rustc_hash::FxHashMap;

use crate::FormatError;
use crate::program::EXTERNAL;
use crate::script::{Options, Script};
use crate::stack::{Branch, Sample};
use crate::tally::{How, Tally};

/// What one thread has read.
#[derive(Default)]
struct Part<'s> {
    spaces: FxHashMap<Option<i32>, Space<'s>>,
    tally: Tally,
    /// Instructions of samples, in case that none has branches.
    ips: FxHashMap<u64, u64>,
    with_branches: u64,
    sample: Sample,
}

/// Reads a recording.
///
/// # Errors
/// A file that is none or is damaged; none of its mappings is of the program.
pub(super) fn read(
    bytes: &[u8],
    elf: &Elf<'_>,
    how: &How<'_, '_>,
    options: &Options,
) -> Result<Script, FormatError> {
    let name = Path::new("perf.data");
    let bad = |error: postlink_profile::Error| FormatError::new(error.to_string());
    let data = PerfData::new(name, bytes).map_err(bad)?;
    let spaces = data.spaces();
    let found = postlink_profile::modules_of_binary(
        spaces.modules(),
        options.file.as_bytes(),
        elf.build_id,
    );
    let wanted = found.modules;
    if found.by == RecognisedBy::Nothing {
        return Err(FormatError::new(
            "No relevant mmap event is found in perf data.",
        ));
    }
    let loads: Vec<(u64, u64, u64)> = elf
        .loads()
        .map(|load| (load.offset, load.file_size, load.addr))
        .collect();
    let program = how.program;
    let in_file = |space: &mut Space<'_>, address: u64, time: u64| {
        let place = space.resolve(address, time);
        if !wanted
            .get(place.module.0 as usize)
            .is_some_and(|wanted| *wanted)
        {
            return EXTERNAL;
        }
        let load = loads
            .iter()
            .find(|load| load.0 <= place.address && place.address - load.0 < load.1);
        let address = load.map_or(EXTERNAL, |load| {
            (place.address - load.0).wrapping_add(load.2)
        });
        if program.is_code(address) {
            address
        } else {
            EXTERNAL
        }
    };
    let chains = !options.ignore_chains
        && !options.ip_only
        && data
            .attributes()
            .iter()
            .any(|attribute| attribute.has_callchains());
    let how = How { chains, ..*how };
    let parts = data
        .map_samples(name, Part::default, |part: &mut Part<'_>, sample| {
            let pid = sample.pid.map(i64::from);
            let is_wanted = |wanted: &String| wanted.as_bytes() == &sample.event[..];
            if options.pid.is_some_and(|wanted| pid != Some(wanted))
                || (!options.events.is_empty() && !options.events.iter().any(is_wanted))
            {
                return;
            }
            let space = part
                .spaces
                .entry(sample.pid)
                .or_insert_with(|| spaces.process(sample.pid));
            part.tally.notes.samples += 1;
            let read = &mut part.sample;
            let ip = sample
                .ip
                .map_or(EXTERNAL, |ip| in_file(space, ip, sample.time));
            if ip != EXTERNAL {
                *part.ips.entry(ip).or_default() += 1;
            }
            if options.ip_only {
                return;
            }
            read.branches.clear();
            for branch in &sample.branches {
                let [from, to] =
                    [branch.from, branch.to].map(|address| in_file(space, address, sample.time));
                if from != EXTERNAL || to != EXTERNAL {
                    read.branches.push(Branch { from, to });
                }
            }
            part.with_branches += u64::from(!sample.branches.is_empty());
            let notes = &mut part.tally.notes;
            let Some(newest) = read.branches.first().copied() else {
                notes.unused += 1;
                return;
            };
            if how.chains {
                let chain = sample
                    .callchain
                    .iter()
                    .map(|&address| in_file(space, address, sample.time));
                if !frames(how.program, chain, read, notes) {
                    return;
                }
                if let Some(leaf) = read.chain.first_mut() {
                    *leaf = newest.to;
                }
            }
            part.tally.add(&how, &part.sample, 1);
        })
        .map_err(bad)?;
    let mut script = Script {
        mappings: spaces
            .mappings()
            .into_iter()
            .map(|(path, start)| (String::from_utf8_lossy(path).into_owned(), start))
            .collect(),
        ..Script::default()
    };
    if let RecognisedBy::OtherBuild(theirs) = found.by {
        script.warnings.push(format!(
            "The build-id of {} is {} in the binary and {} in the recording: it was made with another version of the file",
            options.file,
            hex(elf.build_id.unwrap_or_default()),
            hex(&theirs)
        ));
    }
    let with_branches: u64 = parts.iter().map(|part| part.with_branches).sum();
    let mut how = how;
    script.ips = options.ip_only || (with_branches == 0 && !options.branches_only);
    if script.ips {
        how.chains = false;
        how.ip_only = true;
    }
    script.chains = how.chains;
    let mut tallies = Vec::new();
    for mut part in parts {
        if script.ips {
            let notes = std::mem::take(&mut part.tally.notes);
            part.tally = Tally::default();
            part.tally.notes = notes;
            for (&ip, &count) in &part.ips {
                part.sample.ip = ip;
                part.tally.add(&how, &part.sample, count);
            }
        }
        tallies.push(part.tally);
    }
    script.total = Tally::total(tallies, &how);
    Ok(script)
}

/// Turns a call chain of places into one of calls; false if it cannot be used.
fn frames(
    program: &crate::program::Program<'_>,
    places: impl Iterator<Item = u64>,
    sample: &mut Sample,
    notes: &mut crate::tally::Notes,
) -> bool {
    let chain = &mut sample.chain;
    chain.clear();
    for (depth, place) in places.enumerate() {
        if place == EXTERNAL {
            if chain.last() != Some(&EXTERNAL) {
                chain.push(EXTERNAL);
            }
            notes.leaf_outside += u64::from(depth == 0);
        } else if chain.is_empty() {
            chain.push(place);
        } else if let Some(call) = program.call_before(place) {
            chain.push(call);
        } else {
            notes.bad_returns.insert(place);
            notes.truncated += 1;
            break;
        }
    }
    if chain.len() > 1 && chain.last() == Some(&EXTERNAL) {
        chain.pop();
    }
    chain
        .first()
        .is_some_and(|&leaf| !program.is_unframed(leaf))
}

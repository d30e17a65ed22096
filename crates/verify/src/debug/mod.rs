//! Debug information: shows that new code is described as old code was.
//!
//! # The argument
//!
//! The lock step ([`crate::walk`]) says which new bytes correspond to which old ones: the [`CodeMap`]. Both
//! files' debug information is read by `gimli`. Instead of asking for each address what is known of it,
//! *sets* are compared: what holds for a set of old bytes must hold for exactly the new bytes that correspond to
//! them.
//!
//! | part | what is shown | where |
//! |---|---|---|
//! | frame | the same units and entries at the same offsets, with the same attributes but for those below | [`frame`], [`plain`] |
//! | scopes | each entry's intervals are the images of its old ones, and the first begins with its entry | [`scopes`] |
//! | places | each variable's expressions hold for the images of their old intervals | [`places`] |
//! | single addresses | labels, calls, return addresses and addresses in expressions follow | [`frame`] |
//! | rows | each line program gives the same file, line and column for the image of each row, and statements begin where they did; one row more may say where a prologue ends | [`lines`], [`sequences`] |
//! | indexes | `.debug_aranges` and `.gdb_index` have the units' code | [`scopes`], [`gdb_index`] |
//! | unwinding | `.debug_frame` says of new code what it said of old | [`unwind`] |
//! | moves | which bytes correspond to which | [`moves`] |
//! | stale units | what could not be read stays as it was, and leads to what it led to | [`stale`] |
//! | probes | static probes (`.note.stapsdt`) are at the instructions at which they were | [`probes`] |
//! | split units | what is in files of their own, likewise, and that the package's index leads to it | [`split`] |
//! | contributions | lists of DWARF 5 are in contributions whose headers are true | [`contributions`] |
//!
//! Since entries keep their offsets, equal sets of intervals mean equal chains of inlined functions at every byte.
//!
//! Units keep their old bodies and gain new code. Everything else speaks of new code alone, and of the jumps
//! that are left at old entries, which have one row each.

mod contributions;
mod frame;
mod gdb_index;
mod lines;
mod map;
mod moves;
mod order;
mod places;
mod plain;
mod probes;
mod program;
mod scopes;
mod sequences;
mod split;
mod stale;
mod unwind;

pub use map::{CodeMap, CodeMapParts, EntryBlock, MovedRun};
pub(crate) use probes::in_folded as probes_in_folded;
pub(crate) use program::{is_described, prove};
pub use split::{FileSections, joined};

use std::collections::BTreeSet;
use std::sync::Arc;

use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};

use crate::maps::Maps;
use crate::progress;

/// Sections are slices.
pub(crate) type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// What was compared, and where it failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugReport {
    /// Entries of all units.
    pub entries: u64,
    /// Entries with intervals.
    pub scopes: u64,
    /// Location lists.
    pub places: u64,
    /// Single addresses.
    pub addresses: u64,
    /// Rows of line programs, of the input.
    pub rows: u64,
    /// Units that could not be updated and describe old code: section, and where they begin in it.
    pub stale: BTreeSet<(&'static str, u64)>,
    /// Failures in all.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<String>,
}

impl DebugReport {
    fn fail(&mut self, what: String) {
        self.failed += 1;
        if self.failures.len() < 100 {
            self.failures.push(what);
        }
    }

    fn add(&mut self, other: DebugReport) {
        self.entries += other.entries;
        self.scopes += other.scopes;
        self.places += other.places;
        self.addresses += other.addresses;
        self.rows += other.rows;
        self.stale.extend(other.stale);
        self.failed += other.failed;
        let room = 100usize.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.into_iter().take(room));
    }
}

/// Both files' debug information.
pub(crate) struct Both<'d> {
    pub old: Arc<Dwarf<Slice<'d>>>,
    pub new: Arc<Dwarf<Slice<'d>>>,
    pub map: &'d CodeMap,
    /// The output's `.debug_loc` and `.debug_loclists`.
    pub new_locations: [&'d [u8]; 2],
    /// `.debug_info` and `.debug_types`: of the input and of the output.
    pub units: [[&'d [u8]; 2]; 2],
    /// All old bytes that offsets lead to are where they were, so a unit may stay as it was.
    pub old_bytes_stay: bool,
    /// Offsets of line programs: old and new.
    pub programs: Vec<(u64, u64)>,
    /// Units in files of their own: of the input and of the output.
    pub halves: Option<[split::Halves<'d>; 2]>,
    /// These are units in files of their own.
    pub is_split: bool,
    /// An index of a string is that of the same string in both.
    pub same_strings: bool,
    /// Memory of the files.
    pub maps: &'d Maps<'d>,
}

/// Where units are.
const INFO: &str = ".debug_info";
/// Where type units of DWARF 4 are.
const TYPES: &str = ".debug_types";

/// Compares debug information. Sections are given by name, unpacked; what is missing is empty.
pub fn check<'d>(
    old: impl Fn(&str) -> &'d [u8],
    new: impl Fn(&str) -> &'d [u8],
    map: &'d CodeMap,
) -> DebugReport {
    check_split(old, new, map, [&[], &[]])
}

/// Compares debug information, some of whose units may be in files of their own: those of the input, and the output's
/// package if it has one. Names in them are unique ([`joined`]).
pub fn check_split<'d>(
    old: impl Fn(&str) -> &'d [u8],
    new: impl Fn(&str) -> &'d [u8],
    map: &'d CodeMap,
    files: [&'d [FileSections<'d>]; 2],
) -> DebugReport {
    static IN_MEMORY: Maps<'static> = Maps::of(&|| (), &|| ());
    check_mapped(old, new, map, files, &IN_MEMORY)
}

/// The same for sections of files that are maps.
pub(crate) fn check_mapped<'d>(
    old: impl Fn(&str) -> &'d [u8],
    new: impl Fn(&str) -> &'d [u8],
    map: &'d CodeMap,
    files: [&'d [FileSections<'d>]; 2],
    maps: &'d Maps<'d>,
) -> DebugReport {
    let mut report = DebugReport::default();
    let load = |section: &dyn Fn(&str) -> &'d [u8]| {
        let slice = |id: SectionId| EndianSlice::new(section(id.name()), LittleEndian);
        let loaded = Dwarf::load(|id| Ok::<_, std::convert::Infallible>(slice(id)));
        match loaded {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        }
    };
    let mut both = Both {
        old: Arc::new(load(&old)),
        new: Arc::new(load(&new)),
        map,
        new_locations: [new(".debug_loc"), new(".debug_loclists")],
        units: [INFO, TYPES].map(|name| [old(name), new(name)]),
        old_bytes_stay: stale::old_bytes_stay(&old, &new),
        programs: Vec::new(),
        halves: None,
        is_split: false,
        // The sections are compared as a whole.
        same_strings: true,
        maps,
    };
    let halves = |which: usize, parent: &Dwarf<Slice<'d>>| {
        split::Halves::read(files[which], parent, which == 1)
    };
    match (halves(0, &both.old), halves(1, &both.new)) {
        (Ok(a), Ok(b)) => both.halves = Some([a, b]),
        (Err(what), _) | (_, Err(what)) => {
            report.fail(format!("the package of split units: {what}"));
            return report;
        }
    }
    same_bytes(&old, &new, &mut report);
    for name in [".debug_rnglists", ".debug_loclists"] {
        if let Err(what) = contributions::compare(name, old(name), new(name)) {
            report.fail(what);
        }
    }
    // A list that is cut off by the section's end looks complete to the reader.
    for name in [".debug_ranges", ".debug_loc"] {
        let ends = |section: &[u8]| section.is_empty() || section.ends_with(&[0; 16]);
        if !ends(new(name)) && ends(old(name)) {
            report.fail(format!("the last list of {name} has no end"));
        }
    }
    let (units, unreadable) = match frame::units(&both) {
        Ok(units) => units,
        Err(what) => {
            report.fail(what);
            return report;
        }
    };
    report.stale.extend(unreadable);
    let lines = [old(".debug_line"), new(".debug_line")];
    match lines::pair(lines, || stale::programs(&both, &units, &BTreeSet::new())) {
        Ok(pairs) => both.programs = pairs,
        Err(what) => {
            report.fail(what);
            return report;
        }
    }
    progress::expect(units.len() + both.programs.len());
    let of_units = || {
        postlink_parallel::map(&units, |pair| {
            progress::did();
            both.maps.read(2 * pair.0.length_including_self());
            frame::unit(&both, *pair)
        })
    };
    let of_programs = |both: &Both<'d>| -> Vec<DebugReport> {
        postlink_parallel::map(&both.programs, |pair| {
            progress::did();
            lines::program(both, *pair)
        })
    };
    // Neither needs the other, and both of a program of one unit are work for one thread.
    let (parts, mut rows) = postlink_parallel::join(of_units, || of_programs(&both));
    parts.into_iter().for_each(|part| report.add(part));
    report.add(split::compare(&both, &units));
    if !report.stale.is_empty() {
        // Programs of stale units alone describe old code, too.
        both.programs = stale::programs(&both, &units, &report.stale);
        rows = of_programs(&both);
    }
    rows.into_iter().for_each(|part| report.add(part));
    let starts = units.iter().filter_map(|(a, _)| a.debug_info_offset());
    let updated: BTreeSet<u64> = starts
        .map(|at| at.0 as u64)
        .filter(|at| !report.stale.contains(&(INFO, *at)))
        .collect();
    if let Err(what) = scopes::aranges(old(".debug_aranges"), new(".debug_aranges"), map, &updated)
    {
        report.fail(what);
    }
    if let Err(what) = unwind::compare(old(".debug_frame"), new(".debug_frame"), map) {
        report.fail(what);
    }
    if let Err(what) = gdb_index::compare(old(".gdb_index"), new(".gdb_index"), map, &updated) {
        report.fail(what);
    }
    report
}

/// Sections without addresses.
const FIXED: [&str; 9] = [
    ".debug_str",
    ".debug_line_str",
    ".debug_str_offsets",
    ".debug_names",
    ".debug_pubnames",
    ".debug_pubtypes",
    ".debug_gnu_pubnames",
    ".debug_gnu_pubtypes",
    ".debug_macinfo",
];

/// Sections with addresses, or with offsets into such.
const COMPARED: [&str; 13] = [
    ".debug_info",
    ".debug_types",
    ".debug_abbrev",
    ".debug_line",
    ".debug_aranges",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_loc",
    ".debug_loclists",
    ".debug_addr",
    ".debug_macro",
    ".gdb_index",
    ".debug_frame",
];

/// Whether a section is looked at by [`check`].
fn is_compared(name: &[u8]) -> bool {
    let all = FIXED.iter().chain(&COMPARED);
    all.into_iter().any(|known| known.as_bytes() == name)
}

/// Sections without addresses must not change.
fn same_bytes<'d>(
    old: &impl Fn(&str) -> &'d [u8],
    new: &impl Fn(&str) -> &'d [u8],
    report: &mut DebugReport,
) {
    for name in FIXED {
        if old(name) != new(name) {
            report.fail(format!("{name} changed, which has no addresses"));
        }
    }
}

//! Split DWARF: units whose entries are in files of their own (`.dwo`), or in a package of such (`.dwp`).
//!
//! # Problem
//!
//! With `-gsplit-dwarf` a program keeps a *skeleton* of each unit, its addresses, its line programs and (DWARF 4) its
//! range lists. The entries are in a file that the linker never sees. A debugger finds it by the name in the skeleton,
//! or in a package beside the program, and knows by an eight-byte id that both belong together.
//!
//! # Idea
//!
//! Each file is a set of sections of its own, beside that of the program, and is updated with it at once: fields, lists
//! and abbreviations in the file, addresses in the program's pool, which both use. What differs from other units:
//!
//! | | DWARF 5 | DWARF 4 (GNU) |
//! |---|---|---|
//! | range lists | in the file, by index alone; tables of offsets have no base attribute | in the program, relative to the skeleton's `GNU_ranges_base` |
//! | location lists | in the file, by index | in the file; entries name addresses by index alone |
//! | id | in both headers | `GNU_dwo_id` of both roots |
//! | pool | with a header | without one |
//!
//! All files of an output go into one package ([`package`]), the files of the input stay as they are. The ids change,
//! so that no debugger takes a file of the input for the output's: the new one depends on the old one and on the map.
//!
//! # Invariants
//!
//! * A skeleton is updated if and only if its other half is.
//! * Files that cannot be updated are in the package as they were, under their old ids.

mod package;
mod read;
mod strings;

use std::borrow::Cow;

pub use package::{Package, package};
pub use read::{Skeleton, ids, read, skeletons};

use crate::map::AddressMap;
use crate::sections::{Section, Sections};

/// Contributions of `.debug_rnglists.dwo` that a file without any is given.
const NO_LISTS: [u8; 12] = [8, 0, 0, 0, 5, 0, 8, 0, 0, 0, 0, 0];

/// A file of split units, or what a package holds of one. What is missing is empty.
#[derive(Clone, Debug, Default)]
pub struct SplitFile<'d> {
    /// `.debug_info.dwo`
    info: Cow<'d, [u8]>,
    /// `.debug_types.dwo`
    types: Cow<'d, [u8]>,
    /// `.debug_abbrev.dwo`
    abbrev: &'d [u8],
    /// `.debug_line.dwo`
    line: &'d [u8],
    /// `.debug_loc.dwo`
    loc: &'d [u8],
    /// `.debug_loclists.dwo`
    loclists: &'d [u8],
    /// `.debug_rnglists.dwo`
    rnglists: &'d [u8],
    /// `.debug_macro.dwo`
    macros: &'d [u8],
    /// `.debug_macinfo.dwo`
    macinfo: &'d [u8],
    /// `.debug_str_offsets.dwo`
    str_offsets: &'d [u8],
    /// `.debug_str.dwo`
    strings: &'d [u8],
    /// It is from a package, where files share their strings.
    packed: bool,
}

impl<'d> SplitFile<'d> {
    /// The sections that its units use.
    pub(crate) fn with_program<'s>(&'s self, program: &Sections<'s>) -> Sections<'s> {
        let mut out = self.own();
        for section in [Section::Addr, Section::Ranges] {
            out.set(section, program.get(section));
        }
        out
    }

    /// Its own sections, by the names that they have in programs.
    pub(crate) fn own(&self) -> Sections<'_> {
        let rnglists = match self.rnglists {
            [] if self.version() == 5 => &NO_LISTS,
            some => some,
        };
        let mut out = Sections::default();
        for (section, data) in [
            (Section::Info, &*self.info),
            (Section::Types, &*self.types),
            (Section::Abbrev, self.abbrev),
            (Section::Loc, self.loc),
            (Section::Loclists, self.loclists),
            (Section::Rnglists, rnglists),
        ] {
            out.set(section, data);
        }
        out
    }

    /// The version of its first unit; 0: it has none.
    pub(crate) fn version(&self) -> u16 {
        let version = self.info.get(4..6).and_then(|v| v.try_into().ok());
        version.map_or(0, u16::from_le_bytes)
    }
}

/// The version of units that a package of the files has: that of most of them, the later one if they are as many.
pub(crate) fn version_of(files: &[SplitFile<'_>]) -> u16 {
    let old = files.iter().filter(|f| f.version() == 4).count();
    if old * 2 > files.len() { 4 } else { 5 }
}

/// The new id of a skeleton and its unit.
pub(crate) fn new_id(old: u64, map: &AddressMap) -> u64 {
    map.renamed(old)
}

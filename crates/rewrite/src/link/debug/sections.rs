//! The sections of debug information of one file: unpacked, updated, packed again.
//!
//! ```text
//! file ─► unpack, in parallel ─► postlink_dwarf::update by the map ─► pack what changed, in parallel ─► Changed
//! ```
//!
//! A section that does not change is not packed again unless another way of packing is asked for. Names are
//! those of sections that are not compressed: older GNU tools call a compressed `.debug_info` `.zdebug_info`.

use std::collections::BTreeMap;
use std::ops::Range;

use postlink_dwarf::{AddressMap, Memory, Sections, Splices};
use postlink_elf::FormatError;
use postlink_elf::compressed::{self, Packing, Unpacked};
use postlink_elf::debug_file::Contents;
use postlink_elf::elf::Elf;
use postlink_elf::memory;
use postlink_elf::write::{Edits, WriteError};
use serde::Serialize;

use super::split::{self, SplitData};
use super::{DebugReport, How};

/// How sections of debug information are compressed in the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CompressDebug {
    /// As they are in the input.
    #[default]
    Keep,
    /// Not at all.
    None,
    /// With zlib.
    Zlib,
    /// With zstd.
    Zstd,
}

impl CompressDebug {
    /// How to pack a section that is packed in some way in the input.
    fn of(self, before: Packing) -> Packing {
        match self {
            CompressDebug::Keep => before,
            CompressDebug::None => Packing::None,
            CompressDebug::Zlib => Packing::Zlib,
            CompressDebug::Zstd => Packing::Zstd,
        }
    }
}

/// A section of the output that is not the input's.
pub(super) struct Changed {
    /// Its name and contents in the output, and its index in the input.
    pub contents: Contents,
    /// Instead of contents: what changes in the input's.
    pub edits: Option<Edited>,
    /// Whether that is another name than in the input.
    pub renamed: bool,
}

/// What changes in a section. A large one would be in memory a second time as a whole.
#[derive(Debug)]
pub(super) struct Edited(Splices);

impl Edits for Edited {
    fn get(&self, i: usize) -> Option<(Range<u64>, &[u8])> {
        self.0.get(i)
    }
}

/// Whether sections that are not packed are given as what changes in them, or as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Give {
    Edits,
    Whole,
}

/// Why debug information was not updated.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotUpdated {
    /// It has to stay as it is.
    #[error("{0}")]
    Because(String),
    /// The package of split units could not be written.
    #[error(transparent)]
    Unwritten(#[from] WriteError),
}

impl NotUpdated {
    pub fn because(why: impl ToString) -> Self {
        NotUpdated::Because(why.to_string())
    }
}

/// Whether a section holds debug information.
fn is_debug(name: &str) -> bool {
    name.starts_with(".debug_") || name.starts_with(".zdebug_") || name == ".gdb_index"
}

/// Sections with debug information: their indexes.
pub(super) fn of<'e>(elf: &'e Elf<'_>) -> impl Iterator<Item = usize> + 'e {
    let all = elf.sections.iter().enumerate();
    all.filter(|(_, s)| !s.is_alloc() && is_debug(s.name))
        .map(|(i, _)| i)
}

/// Whether there is debug information in a file.
pub(crate) fn has_debug_info(elf: &Elf<'_>) -> bool {
    of(elf).next().is_some()
}

/// Bytes of debug information in a file.
pub(super) fn size(elf: &Elf<'_>) -> u64 {
    of(elf).map(|i| elf.sections[i].size).sum()
}

/// Unpacked sections by the names that they have when they are not compressed: index in the file, contents.
pub(super) type ByName<'d> = BTreeMap<String, (usize, Unpacked<'d>)>;

/// Unpacks all sections with debug information.
pub(super) fn unpack<'d>(elf: &Elf<'d>) -> Result<ByName<'d>, FormatError> {
    let all: Vec<usize> = of(elf).collect();
    let unpacked = postlink_parallel::map(&all, |i| {
        let section = &elf.sections[*i];
        compressed::unpack(section, elf.section_data(section))
    });
    let unpacked: Vec<Unpacked<'d>> = unpacked.into_iter().collect::<Result<_, _>>()?;
    let mut by_name = ByName::new();
    for (index, contents) in all.into_iter().zip(unpacked) {
        let name = elf.sections[index].name;
        let name = match name.strip_prefix(".zdebug_") {
            Some(rest) => format!(".debug_{rest}"),
            None => name.to_owned(),
        };
        by_name.entry(name).or_insert((index, contents));
    }
    Ok(by_name)
}

/// Updates a file's debug information, writes the package of split units, and says in the report what was done. Returns
/// sections of the file that are not the input's.
pub(super) fn update(
    elf: &Elf<'_>,
    map: &AddressMap,
    how: How<'_>,
    give: Give,
    report: &mut DebugReport,
) -> Result<Vec<Changed>, NotUpdated> {
    let by_name = unpack(elf).map_err(NotUpdated::because)?;
    let give_back = |what| match what {
        Memory::Read => {
            elf.release();
            how.split.iter().for_each(SplitData::release);
        }
        Memory::Freed => memory::give_back_freed(),
    };
    let old = Sections::load(|name| by_name.get(name).map(|(_, of)| &of.bytes[..]));
    let old = old.giving_back(&give_back);
    let (loaded, mut wrong) = split::load(how.split);
    let files = split::files(&loaded, &mut wrong);
    let mut done = postlink_dwarf::update_split(&old, &files, map).map_err(NotUpdated::because)?;
    report.split_files = files.len() as u64;
    if let Some(path) = how.package {
        report.package_bytes = split::package(elf.machine, (&old, &files), &done, path)?;
    }
    // They are as large as the debug information of the program.
    done.files = Vec::new();
    drop(files);
    drop(loaded);
    let changes = std::mem::take(&mut done.changes).into_sections();
    let changed: BTreeMap<&str, New> = changes
        .map(|(section, splices)| {
            let name = section.name();
            let of = by_name.get(name).filter(|_| give == Give::Edits);
            let plain = |p: Packing| p == Packing::None && how.compress.of(p) == p;
            let new = match of.filter(|(_, of)| plain(of.packing)) {
                Some(_) => New::Edits(Edited(splices)),
                None => New::Whole(splices.apply(old.get(section))),
            };
            (name, new)
        })
        .collect();
    let sections = pack(elf, &by_name, changed, how.compress).map_err(NotUpdated::because)?;
    report.output_bytes = report.input_bytes;
    for section in &sections {
        let before = section.contents.index.map_or(0, |i| elf.sections[i].size);
        report.output_bytes += match &section.edits {
            Some(edits) => edits.0.new_len(before),
            None => section.contents.bytes.len() as u64,
        };
        report.output_bytes -= before;
    }
    let of = done.report;
    report.units = of.units;
    report.entries = of.entries;
    report.lists = of.range_lists + of.location_lists;
    report.rows = of.rows;
    report.stale_units = done
        .stale
        .iter()
        .map(|unit| {
            let (section, at) = (unit.section.name(), unit.range.start);
            format!("the unit at {at:#x} of {section}: {}", unit.why)
        })
        .chain(wrong)
        .collect();
    report.losses = of
        .losses
        .iter()
        .map(|(loss, count)| (loss.name().to_owned(), *count))
        .collect();
    Ok(sections)
}

/// New contents of a section.
enum New {
    Whole(Vec<u8>),
    Edits(Edited),
}

/// Packs what changed, and what is to be packed in another way.
fn pack(
    elf: &Elf<'_>,
    by_name: &ByName<'_>,
    mut changed: BTreeMap<&str, New>,
    compress: CompressDebug,
) -> std::io::Result<Vec<Changed>> {
    let mut work: Vec<(&str, Option<&(usize, Unpacked<'_>)>, New)> = Vec::new();
    for (name, of) in by_name {
        let is_as_wanted = compress.of(of.1.packing) == of.1.packing;
        match changed.remove(name.as_str()) {
            Some(bytes) => work.push((name, Some(of), bytes)),
            None if is_as_wanted => {}
            None => work.push((name, Some(of), New::Whole(of.1.bytes.to_vec()))),
        }
    }
    work.extend(changed.into_iter().map(|(name, bytes)| (name, None, bytes)));
    let packed = postlink_parallel::map_owned(work, |(name, of, new)| {
        let (bytes, edits) = match new {
            New::Whole(bytes) => (bytes, None),
            New::Edits(edits) => (Vec::new(), Some(edits)),
        };
        let Some((index, of)) = of else {
            return Ok(Changed {
                contents: Contents {
                    index: None,
                    name: name.to_owned(),
                    bytes,
                    compressed: false,
                    align: 1,
                },
                edits,
                renamed: false,
            });
        };
        let packing = compress.of(of.packing);
        let align = match of.align {
            0 => elf.sections[*index].align,
            align => align,
        };
        let renamed = of.packing == Packing::Gnu && packing != Packing::Gnu;
        let compressed = matches!(packing, Packing::Zlib | Packing::Zstd);
        let contents = Contents {
            index: Some(*index),
            name: name.to_owned(),
            bytes: match edits {
                Some(_) => bytes,
                None => compressed::pack(bytes, packing, align)?,
            },
            compressed,
            align: if compressed { compressed::ALIGN } else { align },
        };
        Ok(Changed {
            contents,
            edits,
            renamed,
        })
    });
    packed.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_stay_packed_as_they_are_unless_told() {
        let all = [Packing::None, Packing::Zlib, Packing::Zstd, Packing::Gnu];
        for packing in all {
            assert_eq!(CompressDebug::Keep.of(packing), packing);
            assert_eq!(CompressDebug::None.of(packing), Packing::None);
            assert_eq!(CompressDebug::Zstd.of(packing), Packing::Zstd);
        }
    }
}

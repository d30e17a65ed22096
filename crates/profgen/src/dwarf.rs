//! Addresses to source: which function, inlined into which, at which line.
//!
//! A line-based profile speaks of a location as lines from the start of its function, and of a piece of
//! inlined code as the chain of such locations from the outermost function inwards. Two tables hold what that
//! takes, both flat and sorted by address:
//!
//! * *rows*: from each address on, line and discriminator, until the next row;
//! * *pieces*: from each address on, the innermost scope, until the next piece. A scope is a function, or one
//!   place where a function was inlined into another scope.
//!
//! Units are read in parallel. A unit that cannot be read is left out and counted: one odd unit among ten
//! thousand is no reason to refuse a profile.

pub mod split;

use gimli::{DebuggingInformationEntry, Dwarf, EndianSlice, LittleEndian, Unit, UnitOffset};
use postlink_elf::elf::Elf;
use postlink_profile::progress;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::FormatError;
use crate::discriminator::Discriminator;

type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// No scope.
const NONE: u32 = u32::MAX;
/// References from entry to entry are followed this far.
const CHAIN: usize = 16;

/// A location in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'d> {
    /// Linkage name of the function; its plain name if it has no other.
    pub name: &'d [u8],
    /// Lines from the start of the function, modulo 2¹⁶.
    pub line_offset: u32,
    /// As it is in the line table.
    pub discriminator: Discriminator,
}

/// A contiguous piece of a function that is not inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<'d> {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Linkage name, or plain name.
    pub name: &'d [u8],
}

#[derive(Clone, Copy, Debug)]
struct Row {
    address: u64,
    /// `None`: no code from here on.
    line: Option<u32>,
    discriminator: u32,
}

#[derive(Clone, Copy, Debug)]
struct Scope<'d> {
    name: &'d [u8],
    /// Where the function is declared.
    line: u32,
    parent: u32,
    call_line: u32,
    call_discriminator: u32,
}

/// A scope's extent.
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: u64,
    end: u64,
    scope: u32,
}

/// Debug information of a file, by address.
#[derive(Debug, Default)]
pub struct Lines<'d> {
    rows: Vec<Row>,
    scopes: Vec<Scope<'d>>,
    /// (start, scope)
    pieces: Vec<(u64, u32)>,
    ranges: Vec<Range<'d>>,
    /// Units that could not be read, with the first reason.
    pub unreadable: (usize, Option<String>),
    /// Files with split debug information that are not there.
    missing: usize,
}

/// What a unit contributes.
#[derive(Default)]
struct Part<'d> {
    sequences: Vec<Vec<Row>>,
    scopes: Vec<Scope<'d>>,
    extents: Vec<Extent>,
    ranges: Vec<Range<'d>>,
}

impl<'d> Lines<'d> {
    /// Reads a file's debug information, which is not compressed; empty if it has none.
    pub fn load(elf: &Elf<'d>) -> Result<Lines<'d>, FormatError> {
        const NONE: &split::Files = &split::Files::NONE;
        Lines::load_split(elf, NONE)
    }

    /// The same with the files that it is split into.
    ///
    /// # Errors
    /// Sections or files that cannot be read at all. Units that cannot be read are counted.
    pub fn load_split(elf: &Elf<'d>, files: &'d split::Files) -> Result<Lines<'d>, FormatError> {
        let parsed = split::Parsed::new(files)?;
        let dwarf = files.program(elf)?;
        let mut headers = Vec::new();
        let mut iterator = dwarf.units();
        while let Some(header) = iterator.next().map_err(|error| bad(&error))? {
            headers.push(header);
        }
        let units: Vec<Result<Unit<Slice<'d>>, gimli::Error>> =
            postlink_parallel::map_owned(headers, |header| dwarf.unit(header));
        let mut lines = Lines {
            missing: files.missing.len(),
            ..Lines::default()
        };
        let mut readable = Vec::new();
        for unit in units {
            match unit {
                Ok(unit) => readable.push(unit),
                Err(error) => lines.unreadable(&error),
            }
        }
        let all = Units {
            dwarf: &dwarf,
            units: &readable,
        };
        progress::expect(readable.len());
        let parts: Vec<_> = postlink_parallel::map(&readable, |unit| {
            progress::did(1);
            let mut part = all.part(unit)?;
            parsed.scopes(&dwarf, unit, &mut part)?;
            Ok(part)
        });
        let mut sequences = Vec::new();
        let mut extents = Vec::new();
        for part in parts {
            match part {
                Ok(part) => {
                    // Scopes number at most a few for each byte of debug information; files of 4 G entries
                    // are refused here.
                    let Ok(first) = u32::try_from(lines.scopes.len() + part.scopes.len())
                        .map(|end| end - part.scopes.len() as u32)
                    else {
                        return Err(FormatError::new(
                            "debug information has more than 2³² scopes",
                        ));
                    };
                    lines
                        .scopes
                        .extend(part.scopes.into_iter().map(|scope| Scope {
                            parent: if scope.parent == NONE {
                                NONE
                            } else {
                                scope.parent + first
                            },
                            ..scope
                        }));
                    extents.extend(part.extents.into_iter().map(|extent| Extent {
                        scope: extent.scope + first,
                        ..extent
                    }));
                    sequences.extend(part.sequences);
                    lines.ranges.extend(part.ranges);
                }
                Err(error) => lines.unreadable(&error),
            }
        }
        sequences.par_sort_by_key(|rows| rows.first().map_or(0, |row| row.address));
        for rows in sequences {
            lines.push_sequence(rows);
        }
        lines.pieces = pieces(extents);
        lines.ranges.sort_by_key(|range| (range.start, range.end));
        Ok(lines)
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.scopes.is_empty() && self.rows.is_empty()
    }

    /// Pieces of functions, by address.
    pub fn ranges(&self) -> &[Range<'d>] {
        &self.ranges
    }

    /// Puts the source locations of an address into `frames`, innermost first. None if nothing is known about it.
    pub fn frames(&self, address: u64, frames: &mut Vec<Frame<'d>>) {
        frames.clear();
        let at = self.rows.partition_point(|row| row.address <= address);
        let row = at.checked_sub(1).and_then(|at| self.rows.get(at));
        let Some((mut line, mut discriminator)) =
            row.and_then(|row| Some((row.line?, row.discriminator)))
        else {
            return;
        };
        let at = self.pieces.partition_point(|piece| piece.0 <= address);
        let scope = at.checked_sub(1).and_then(|at| self.pieces.get(at));
        let mut scope = scope.map_or(NONE, |piece| piece.1);
        while let Some(this) = self.scopes.get(scope as usize) {
            frames.push(Frame {
                name: this.name,
                line_offset: line.wrapping_sub(this.line) & 0xffff,
                discriminator: Discriminator(discriminator),
            });
            line = this.call_line;
            discriminator = this.call_discriminator;
            scope = this.parent;
        }
    }

    /// What the user should know.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let (count @ 1.., Some(reason)) = &self.unreadable {
            warnings.push(format!(
                "{count} units of debug information cannot be read: {reason}"
            ));
        }
        if self.missing > 0 {
            warnings.push(format!(
                "DWO debug information was not loaded for {} modules. Please check the .o, .dwo or .dwp path.",
                self.missing
            ));
        }
        if self.ranges.is_empty() {
            warnings.push(
                "Loading of DWARF info completed, but no binary functions have been retrieved."
                    .to_owned(),
            );
        }
        warnings
    }

    fn unreadable(&mut self, error: &gimli::Error) {
        self.unreadable.0 += 1;
        self.unreadable.1.get_or_insert_with(|| error.to_string());
    }

    /// Adds rows after those that are there. Where sequences overlap, the later one counts.
    fn push_sequence(&mut self, rows: Vec<Row>) {
        for row in rows {
            while self
                .rows
                .last()
                .is_some_and(|last| last.address >= row.address)
            {
                self.rows.pop();
            }
            self.rows.push(row);
        }
    }
}

/// A section's contents; empty if there is none.
fn section<'d>(elf: &Elf<'d>, name: &str) -> Slice<'d> {
    let bytes = match elf.section(name) {
        Some((_, section)) if section.has_contents() => elf.section_data(section),
        _ => &[],
    };
    EndianSlice::new(bytes, LittleEndian)
}

fn bad(error: &gimli::Error) -> FormatError {
    FormatError::new(format!("debug information: {error}"))
}

/// Turns nested extents into pieces that each say their innermost scope.
fn pieces(mut extents: Vec<Extent>) -> Vec<(u64, u32)> {
    // An inner extent comes after the outer one that starts at the same address: scopes are numbered in preorder.
    extents.par_sort_by_key(|extent| (extent.start, std::cmp::Reverse(extent.end), extent.scope));
    let mut pieces: Vec<(u64, u32)> = Vec::new();
    let mut put = |address: u64, scope: u32| {
        while pieces.last().is_some_and(|last| last.0 >= address) {
            pieces.pop();
        }
        pieces.push((address, scope));
    };
    let mut open: Vec<Extent> = Vec::new();
    let close = |open: &mut Vec<Extent>, until: u64, put: &mut dyn FnMut(u64, u32)| {
        while let Some(last) = open.last().copied()
            && last.end <= until
        {
            open.pop();
            put(last.end, open.last().map_or(NONE, |outer| outer.scope));
        }
    };
    for mut extent in extents {
        close(&mut open, extent.start, &mut put);
        if let Some(outer) = open.last() {
            extent.end = extent.end.min(outer.end);
        }
        put(extent.start, extent.scope);
        open.push(extent);
    }
    close(&mut open, u64::MAX, &mut put);
    pieces
}

/// All units, to follow references between them.
struct Units<'u, 'd> {
    dwarf: &'u Dwarf<Slice<'d>>,
    units: &'u [Unit<Slice<'d>>],
}

impl<'u, 'd> Units<'u, 'd> {
    fn part(&self, unit: &'u Unit<Slice<'d>>) -> Result<Part<'d>, gimli::Error> {
        let mut part = Part::default();
        self.scopes(unit, &mut part)?;
        self.rows(unit, &mut part)?;
        Ok(part)
    }

    /// Whether the length of an entry reaches past the last address: it has no code then. gimli's `die_ranges` adds
    /// the two without a look.
    fn ends_past_all_addresses(
        &self,
        unit: &Unit<Slice<'d>>,
        entry: &DebuggingInformationEntry<Slice<'d>>,
    ) -> Result<bool, gimli::Error> {
        let low = entry.attr_value(gimli::DW_AT_low_pc);
        let Some(gimli::AttributeValue::Udata(length)) = entry.attr_value(gimli::DW_AT_high_pc)
        else {
            return Ok(false);
        };
        let low = low.map(|value| self.dwarf.attr_address(unit, value));
        let low = low.transpose()?.flatten();
        Ok(low.is_some_and(|low| low.checked_add(length).is_none()))
    }

    /// Collects the scopes of a unit.
    fn scopes(&self, unit: &'u Unit<Slice<'d>>, part: &mut Part<'d>) -> Result<(), gimli::Error> {
        let mut known = FxHashMap::default();
        // (depth of the entry, its scope) of the scopes around.
        let mut open: Vec<(isize, u32)> = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        let mut entry = DebuggingInformationEntry::null();
        while !entries.is_empty() {
            if !entries.read_entry(&mut entry)? {
                continue;
            }
            let depth = entry.depth();
            open.retain(|scope| scope.0 < depth);
            let inlined = match entry.tag() {
                gimli::DW_TAG_subprogram => false,
                gimli::DW_TAG_inlined_subroutine => true,
                _ => continue,
            };
            if self.ends_past_all_addresses(unit, &entry)? {
                continue;
            }
            let mut ranges = self.dwarf.die_ranges(unit, &entry)?;
            let mut extents = Vec::new();
            while let Some(range) = ranges.next()? {
                // Linkers put 0 or a number near the top where the code was dropped.
                if range.begin < range.end
                    && range.begin != 0
                    && !unit.header.is_tombstone_address(range.begin)
                {
                    extents.push((range.begin, range.end));
                }
            }
            if extents.is_empty() {
                // A scope without code; what is inside it cannot have code either.
                continue;
            }
            let (name, line) = self.identity(unit, &entry, &mut known)?;
            let number = |name| {
                let value = entry.attr_value(name).and_then(|value| value.udata_value());
                value.map_or(0, |value| value as u32)
            };
            let scope = part.scopes.len() as u32;
            part.scopes.push(Scope {
                name,
                line,
                parent: if inlined {
                    open.last().map_or(NONE, |outer| outer.1)
                } else {
                    NONE
                },
                call_line: number(gimli::DW_AT_call_line),
                call_discriminator: number(gimli::DW_AT_GNU_discriminator),
            });
            for &(start, end) in &extents {
                part.extents.push(Extent { start, end, scope });
                if !inlined && !name.is_empty() {
                    part.ranges.push(Range { start, end, name });
                }
            }
            open.push((depth, scope));
        }
        Ok(())
    }

    /// Name and line of a function, from its entry or those that it refers to.
    fn identity(
        &self,
        unit: &'u Unit<Slice<'d>>,
        entry: &DebuggingInformationEntry<Slice<'d>>,
        known: &mut FxHashMap<UnitOffset, (&'d [u8], u32)>,
    ) -> Result<(&'d [u8], u32), gimli::Error> {
        let origin = |entry: &DebuggingInformationEntry<Slice<'d>>| {
            let by = |name| entry.attr_value(name);
            by(gimli::DW_AT_abstract_origin).or_else(|| by(gimli::DW_AT_specification))
        };
        let key = match origin(entry) {
            Some(gimli::AttributeValue::UnitRef(at))
                if !entry.has_attr(gimli::DW_AT_linkage_name) =>
            {
                Some(at)
            }
            _ => None,
        };
        if let Some(found) = key.and_then(|key| known.get(&key)) {
            return Ok(*found);
        }
        let (mut linkage, mut plain, mut line) = (None, None, None);
        let mut at: (&Unit<Slice<'d>>, DebuggingInformationEntry<Slice<'d>>) =
            (unit, entry.clone());
        for _ in 0..CHAIN {
            let (unit, entry) = &at;
            let text = |name| match entry.attr_value(name) {
                Some(value) => self
                    .dwarf
                    .attr_string(unit, value)
                    .ok()
                    .map(|text| text.slice()),
                None => None,
            };
            linkage = linkage
                .or_else(|| text(gimli::DW_AT_linkage_name))
                .or_else(|| text(gimli::DW_AT_MIPS_linkage_name));
            plain = plain.or_else(|| text(gimli::DW_AT_name));
            line = line.or_else(|| entry.attr_value(gimli::DW_AT_decl_line)?.udata_value());
            let next = match origin(entry) {
                Some(gimli::AttributeValue::UnitRef(offset)) => Some((*unit, offset)),
                Some(gimli::AttributeValue::DebugInfoRef(offset)) => self.find(offset),
                _ => None,
            };
            let Some((unit, offset)) = next else { break };
            at = (unit, unit.entry(offset)?);
        }
        let found = (
            linkage.or(plain).unwrap_or_default(),
            line.map_or(0, |line| line as u32),
        );
        if let Some(key) = key {
            known.insert(key, found);
        }
        Ok(found)
    }

    /// The unit that an offset of the section is in, and the offset there.
    fn find(&self, offset: gimli::DebugInfoOffset) -> Option<(&'u Unit<Slice<'d>>, UnitOffset)> {
        let start = |unit: &Unit<Slice<'d>>| unit.header.debug_info_offset();
        let at = self
            .units
            .partition_point(|unit| start(unit).is_some_and(|start| start <= offset));
        let unit = self.units.get(at.checked_sub(1)?)?;
        Some((unit, offset.to_unit_offset(&unit.header)?))
    }

    /// Collects the line table of a unit.
    fn rows(&self, unit: &Unit<Slice<'d>>, part: &mut Part<'d>) -> Result<(), gimli::Error> {
        let Some(program) = unit.line_program.clone() else {
            return Ok(());
        };
        let mut rows = program.rows();
        let mut sequence: Vec<Row> = Vec::new();
        while let Some((_, row)) = rows.next_row()? {
            let end = row.end_sequence();
            sequence.push(Row {
                address: row.address(),
                line: (!end).then(|| row.line().map_or(0, |line| line.get() as u32)),
                discriminator: row.discriminator() as u32,
            });
            if end {
                let rows = std::mem::take(&mut sequence);
                let start = rows.first().map_or(0, |row| row.address);
                if start != 0 && !unit.header.is_tombstone_address(start) {
                    part.sequences.push(rows);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_say_the_innermost_scope() {
        let extent = |start, end, scope| Extent { start, end, scope };
        let nested = vec![
            extent(10, 50, 0),
            extent(10, 30, 1),
            extent(20, 30, 2),
            extent(40, 60, 3),
            extent(70, 80, 4),
        ];
        assert_eq!(
            pieces(nested),
            [
                (10, 1),
                (20, 2),
                (30, 0),
                (40, 3),
                (50, NONE),
                (70, 4),
                (80, NONE)
            ]
        );
        assert_eq!(pieces(Vec::new()), []);
    }
}

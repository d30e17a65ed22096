//! Reading the section, and recognising the layouts of releases before 19.

#![warn(clippy::indexing_slicing)]

use std::ops::Range;

use super::{Bat, Cold, Entry, EntryKind, Hot, OWNER, PAYLOAD, SECTION, TYPE, ascends, range};
use crate::leb128::Reader;
use crate::{ErrorKind, FormatError};

impl Bat {
    /// Reads the section's contents. An error names the offset in the section.
    pub fn parse(section: &[u8]) -> Result<Bat, FormatError> {
        let end = payload_end(section)?;
        let note = section.get(..end).unwrap_or(section); // it ends in the section
        match Decoder::new(note).read() {
            Ok(bat) => Ok(bat),
            Err(error) => Err(
                match older_layout(note.get(PAYLOAD..).unwrap_or_default()) {
                    Some((release, tables)) => FormatError::new(format!(
                        "{SECTION} has the layout of {release} ({tables} tables), which says nothing of blocks and entry points and cannot be read; the one of BOLT 19 and later is expected: rewrite the program with such a release ({error})"
                    ))
                    .of(ErrorKind::Unsupported)
                    .values(tables, "the layout of BOLT 19 and later"),
                    None => error,
                },
            ),
        }
    }
}

/// Checks the note's header; gives the end of the payload in the section.
fn payload_end(section: &[u8]) -> Result<usize, FormatError> {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(
            section.get(at..at + 4)?.try_into().ok()?,
        ))
    };
    let (Some(name_size), Some(size), Some(kind), Some(name)) =
        (word(0), word(4), word(8), section.get(12..PAYLOAD))
    else {
        return Err(FormatError::new(format!(
            "{SECTION} has {} bytes; the header of its note takes {PAYLOAD}",
            section.len()
        ))
        .of(ErrorKind::Truncated)
        .at_offset(0)
        .values(section.len(), PAYLOAD));
    };
    let is_ours = name
        .strip_prefix(OWNER)
        .is_some_and(|rest| rest.first() == Some(&0));
    if name_size as usize != OWNER.len() + 1 || !is_ours {
        return Err(FormatError::new(format!(
            "{SECTION}: the note at offset 0 has the owner {:?} with {name_size} bytes; \"BOLT\" with 5 is expected",
            String::from_utf8_lossy(name)
        ))
        .at_offset(0)
        .values(name_size, OWNER.len() + 1));
    }
    if kind != TYPE {
        return Err(FormatError::new(format!(
            "{SECTION}: the note at offset 0 has type {kind}; {TYPE} is that of address translation"
        ))
        .at_offset(8)
        .values(kind, TYPE));
    }
    let there = section.len() - PAYLOAD;
    match usize::try_from(size).ok().filter(|size| *size <= there) {
        Some(size) => Ok(PAYLOAD + size),
        None => Err(FormatError::new(format!(
            "{SECTION} is cut: its note has {size:#x} bytes from offset {PAYLOAD:#x} on, of which {there:#x} are there"
        ))
        .of(ErrorKind::Truncated)
        .at_offset(PAYLOAD as u64)
        .values(there, size)),
    }
}

struct Decoder<'d> {
    r: Reader<'d>,
    bat: Bat,
    /// The running address.
    address: u64,
}

impl<'d> Decoder<'d> {
    fn new(section: &'d [u8]) -> Self {
        let mut r = Reader::new(section, SECTION);
        let _ = r.bytes(PAYLOAD as u64, "the header"); // it has been checked
        Decoder {
            r,
            bat: Bat::default(),
            address: 0,
        }
    }

    fn read(mut self) -> Result<Bat, FormatError> {
        // Of each table and entry the shortest form bounds what is allocated.
        const LEAST_HOT: u64 = 13;
        const LEAST_COLD: u64 = 5;
        let hot = self.count(LEAST_HOT, "the number of hot tables")?;
        self.bat.hot.reserve(hot);
        // Guess: half of the entries carry a hash. The vector grows if there are more.
        self.bat.entries.reserve(self.r.left() as usize / 8);
        for _ in 0..hot {
            self.hot()?;
        }
        let cold = self.count(LEAST_COLD, "the number of cold tables")?;
        self.bat.cold.reserve(cold);
        let mut parent = 0u64;
        for _ in 0..cold {
            let start = self.start("a cold table's start")?;
            ascends("cold", self.bat.cold.last().map(|t| t.start), start)?;
            parent = parent.wrapping_add(self.r.unsigned("a parent")?);
            let at = self.r.at();
            let skew = self.r.unsigned("a skew")?;
            let Ok(skew) = u32::try_from(skew) else {
                return Err(FormatError::new(format!(
                    "{SECTION}: the skew {skew:#x} of the table at {start:#x} (offset {at:#x}) does not fit 32 bits"
                ))
                .of(ErrorKind::TooLarge)
                .at_offset(at as u64)
                .values(skew, u32::MAX));
            };
            let entries = self.entries(start, skew)?;
            self.bat.cold.push(Cold {
                start,
                parent,
                entries,
            });
        }
        if self.r.left() > 0 {
            return Err(FormatError::new(format!(
                "{SECTION}: {} bytes follow the last table at offset {:#x}; none are expected",
                self.r.left(),
                self.r.at()
            ))
            .at_offset(self.r.at() as u64)
            .values(self.r.left(), 0u64));
        }
        self.bat.entries.shrink_to_fit();
        Ok(self.bat)
    }

    fn hot(&mut self) -> Result<(), FormatError> {
        let start = self.start("a hot table's start")?;
        ascends("hot", self.bat.hot.last().map(|t| t.start), start)?;
        let hash = u64::from_le_bytes(self.r.array("a function's hash")?);
        let blocks = self.r.unsigned("a number of blocks")?;
        let secondary = self.count(1, "the number of entry points")?;
        let entries = self.entries(start, 0)?;
        let from = self.bat.secondary.len();
        let mut before = 0u32;
        for i in 0..secondary {
            let at = self.r.at();
            let step = self.r.unsigned("an entry point")?;
            let next = u32::try_from(step)
                .ok()
                .and_then(|step| before.checked_add(step))
                .filter(|_| step > 0 || i == 0);
            let Some(next) = next else {
                return Err(FormatError::new(format!(
                    "{SECTION}: the entry point {step:#x} after {before:#x} at offset {at:#x} does not ascend within 32 bits"
                ))
                .of(ErrorKind::Order)
                .at_offset(at as u64)
                .values(step, format!("more than 0 after {before:#x}")));
            };
            self.bat.secondary.push(next);
            before = next;
        }
        let secondary = range(from, self.bat.secondary.len())?;
        self.bat.hot.push(Hot {
            start,
            hash,
            blocks,
            entries,
            secondary,
        });
        Ok(())
    }

    fn start(&mut self, what: &str) -> Result<u64, FormatError> {
        self.address = self.address.wrapping_add(self.r.unsigned(what)?);
        Ok(self.address)
    }

    /// A number of things of which each takes so many bytes at least.
    fn count(&mut self, least: u64, what: &str) -> Result<usize, FormatError> {
        let at = self.r.at();
        let count = self.r.unsigned(what)?;
        match usize::try_from(count)
            .ok()
            .filter(|_| count <= self.r.left() / least)
        {
            Some(count) => Ok(count),
            None => Err(FormatError::new(format!(
                "{SECTION}: {what} at offset {at:#x} is {count}, but only {} bytes follow",
                self.r.left()
            ))
            .of(ErrorKind::Truncated)
            .at_offset(at as u64)
            .values(self.r.left(), count)),
        }
    }

    fn entries(&mut self, start: u64, skew: u32) -> Result<Range<u32>, FormatError> {
        let count = self.count(1, "the number of entries")?;
        let at = self.r.at();
        let equal = self.r.unsigned("the number of equal entries")?;
        let Some(equal) = usize::try_from(equal).ok().filter(|equal| *equal <= count) else {
            return Err(FormatError::new(format!(
                "{SECTION}: {equal} equal entries at offset {at:#x} are more than the {count} entries of the table at {start:#x}"
            ))
            .of(ErrorKind::Mismatch)
            .at_offset(at as u64)
            .values(equal, count));
        };
        let branches = self
            .r
            .bytes(equal.div_ceil(8) as u64, "the mask of branches")?;
        let from = self.bat.entries.len();
        let (mut input, mut number, mut last) = (0i64, 0u64, 0u32);
        for i in 0..count {
            let at = self.r.at();
            self.address = self
                .address
                .wrapping_add(self.r.unsigned("an output address")?);
            let output = self.address.wrapping_sub(start);
            let Some(output) = u32::try_from(output).ok().filter(|output| *output >= last) else {
                return Err(FormatError::new(format!(
                    "{SECTION}: the output address {:#x} at offset {at:#x} is not within 4 GiB after {:#x}, the entry before it",
                    self.address,
                    start.wrapping_add(last.into())
                ))
                .of(ErrorKind::Order)
                .at_offset(at as u64)
                .values(self.address, start.wrapping_add(last.into())));
            };
            last = output;
            let value = if i < equal {
                let branch = branches.get(i / 8).map_or(0, |byte| byte >> (i % 8) & 1);
                i64::from(output.wrapping_add(skew)) << 1 | i64::from(branch)
            } else {
                input.wrapping_add(self.r.signed("an input offset")?)
            };
            let Ok(bits) = u32::try_from(value) else {
                return Err(FormatError::new(format!(
                    "{SECTION}: the input offset {} of the entry at offset {at:#x} (output address {:#x}) does not fit 31 bits",
                    value >> 1,
                    self.address
                ))
                .of(ErrorKind::TooLarge)
                .at_offset(at as u64)
                .values(value >> 1, i32::MAX));
            };
            input = value;
            let kind = if bits & 1 == 0 {
                let hash = u64::from_le_bytes(self.r.array("a block's hash")?);
                number = number.wrapping_add(self.r.unsigned("a block's number")?);
                let Ok(index) = u32::try_from(number) else {
                    return Err(FormatError::new(format!(
                        "{SECTION}: the block number {number:#x} of the entry at offset {at:#x} does not fit 32 bits"
                    ))
                    .of(ErrorKind::TooLarge)
                    .at_offset(at as u64)
                    .values(number, u32::MAX));
                };
                EntryKind::Block { index, hash }
            } else {
                EntryKind::Branch
            };
            self.bat.entries.push(Entry {
                output,
                input: bits >> 1,
                kind,
            });
        }
        range(from, self.bat.entries.len())
    }
}

/// Which release before 19 wrote this payload, and how many tables it has, if its layout fits to the last byte.
fn older_layout(payload: &[u8]) -> Option<(&'static str, u64)> {
    if let Some(tables) = fixed_size_layout(payload) {
        return Some(("BOLT 17 and earlier", tables));
    }
    // Which numbers the tables had changed in the course of release 18's development: masks of equal entries
    // came after parents.
    [(true, true), (true, false), (false, true), (false, false)]
        .into_iter()
        .find_map(|(parents, masks)| release_18(payload, parents, masks))
        .map(|tables| ("BOLT 18", tables))
}

/// Fixed-size numbers: u32 number of functions; of each u64 address, u32 number of entries, of each two u32;
/// u32 number of cold parts, of each u64 address and u64 address of its parent, or u32 each in the oldest.
fn fixed_size_layout(payload: &[u8]) -> Option<u64> {
    let mut r = Reader::new(payload, SECTION);
    let word = |r: &mut Reader<'_>| r.array("a word").map(u32::from_le_bytes).ok();
    let functions = word(&mut r)?;
    for _ in 0..functions {
        r.bytes(8, "an address").ok()?;
        let entries = word(&mut r)?;
        r.bytes(u64::from(entries) * 8, "entries").ok()?;
    }
    let cold = u64::from(word(&mut r)?);
    let fits = functions > 0 && (r.left() == cold * 16 || r.left() == cold * 8);
    fits.then_some(functions.into())
}

/// As in release 19, without hashes, numbers of blocks, entry points and skew; equal entries in hot tables
/// only, if at all.
fn release_18(payload: &[u8], parents: bool, masks: bool) -> Option<u64> {
    let mut r = Reader::new(payload, SECTION);
    let mut tables = 0u64;
    for cold in [false, true] {
        let count = r.unsigned("a number").ok()?;
        tables = tables.checked_add(count)?;
        for _ in 0..count {
            r.unsigned("a start").ok()?;
            if cold && parents {
                r.unsigned("a parent").ok()?;
            }
            let entries = r.unsigned("a number of entries").ok()?;
            let equal = if cold || !masks {
                0
            } else {
                r.unsigned("a number of equal entries").ok()?
            };
            if equal > entries || entries > r.left() {
                return None;
            }
            r.bytes(equal.div_ceil(8), "a mask").ok()?;
            for i in 0..entries {
                r.unsigned("an output address").ok()?;
                if i >= equal {
                    r.signed("an input offset").ok()?;
                }
            }
        }
    }
    (r.left() == 0 && tables > 0).then_some(tables)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::*;

    fn note(payload: &[u8]) -> Vec<u8> {
        let mut out = vec![5, 0, 0, 0];
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&[1, 0, 0, 0, b'B', b'O', b'L', b'T', 0, 0, 0, 0]);
        out.extend_from_slice(payload);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    #[test]
    fn the_layouts_of_earlier_releases_are_named() {
        let mut fixed = Vec::new();
        fixed.extend_from_slice(&1u32.to_le_bytes());
        fixed.extend_from_slice(&0x40_0000u64.to_le_bytes());
        for word in [2u32, 0, 0, 0x10, 0x21, 0] {
            fixed.extend_from_slice(&word.to_le_bytes());
        }
        let error = Bat::parse(&note(&fixed)).unwrap_err().what;
        assert!(error.contains("BOLT 17 and earlier (1 tables)"), "{error}");
        // One hot table at 0x1000 with two entries, one of them equal; one cold table at 0x2000 with parent 0.
        let eighteen = [
            1, 0x80, 0x20, 2, 1, 0, 0, 0x10, 0x28, 1, 0xf0, 0x1f, 0, 1, 0, 0x40,
        ];
        let error = Bat::parse(&note(&eighteen)).unwrap_err().what;
        assert!(error.contains("BOLT 18 (2 tables)"), "{error}");
        // The same without masks: every entry has its input offset.
        let without_masks = [
            1, 0x80, 0x20, 2, 0, 0, 0x10, 0x28, 1, 0x80, 0x40, 0, 1, 0, 0x40,
        ];
        let error = Bat::parse(&note(&without_masks)).unwrap_err().what;
        assert!(error.contains("BOLT 18 (2 tables)"), "{error}");
    }

    #[test]
    fn headers_that_are_not_ours_are_refused_with_both_values() {
        let mut section = note(&[0, 0]);
        assert!(Bat::parse(&section).unwrap().is_empty());
        section[8] = 2;
        let error = Bat::parse(&section).unwrap_err().what;
        assert!(error.contains("type 2; 1 is"), "{error}");
        section[8] = 1;
        section[4] = 200;
        let error = Bat::parse(&section).unwrap_err().what;
        assert!(
            error.contains("0xc8 bytes") && error.contains("of which 0x4"),
            "{error}"
        );
        assert!(Bat::parse(&section[..19]).is_err());
        section[12] = b'G';
        assert!(Bat::parse(&section).unwrap_err().what.contains("GOLT"));
    }
}

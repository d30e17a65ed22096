//! `.note.postlink`: what postlink says of a file that it wrote. A claim for `verify` to check, and the mark by which a
//! second run knows its own output.
//!
//! A section of type `SHT_NOTE` that is not loaded, with one ELF note:
//!
//! | bytes | value |
//! |---|---|
//! | u32, u32, u32 | 9, size of the description, 1 |
//! | 9, padded to 12 | `postlink` and a zero byte |
//! | description, padded to 4 | below |
//!
//! Description: fixed-size numbers are little-endian, the others LEB128. Addresses are link-time addresses,
//! the old ones the input's, the new ones the output's.
//!
//! | field | value |
//! |---|---|
//! | u32 | version of this layout: 1, or 2 where the rewriter used no relocations that the linker kept |
//! | u8 | what was done: 0 instrumented, 1 optimised |
//! | u8, then as many bytes | build-id of the input; 0 if it has none |
//! | u8 | version 2 alone: what the rewriter knew pointers by: 1 dynamic relocations, 2 nothing (a program at a fixed address) |
//! | u8 | version 2 alone: flags; none is known yet, 0 |
//! | unsigned | number of functions that moved; of each, in ascending order of its old entry: |
//! | — unsigned | old entry, less that of the function before it (0 at first) |
//! | — unsigned | number of old ranges; of each: signed: start less the old entry; unsigned: length |
//! | — unsigned | number of new ranges; of each: signed: start less the end of the new range before it, of this function or an earlier one (0 at first); unsigned: length |
//! | — signed | only if that number is 0: the function was folded into another, which has new ranges of its own: its old entry, less the old entry |
//! | — unsigned | number of other entries; of each: signed: old address less the old entry; signed: new address less the start of the first new range |
//! | — u8 | version 2 alone: what is at the old entry: 0 what was there, 2 a jump to the new one (1 and 3 are reserved) |
//! | — unsigned | version 2 alone: number of jump tables of its own; of each: |
//! | — — signed | address of the old load, less the old entry |
//! | — — signed | address of the new load, less the start of the first new range |
//! | — — signed | the old table, less the old entry |
//! | — — signed | what entries are added to, less the old table; 0 if they are addresses |
//! | — — signed | its own table, less the end of the function's table before it (of the first new range at first) |
//! | — — unsigned | number of entries |
//! | — — u8 | 1: the index is compared with it in front of the load; 2: entries are addresses of 8 bytes (else distances of 4) |
//! | — unsigned | version 2 alone: number of jumps that continue in the old body; of each its old address: signed: less the old entry, of the first; unsigned: less the one before, of the others |
//!
//! The first new range begins with the new entry. Other entries are places besides the entry that are reached by
//! address: labels whose address is taken, targets of jump tables.
//!
//! Differences wrap around, so that every address can be expressed; a range that wraps around cannot, nor can
//! entries that do not ascend, nor a label of a function without a new range.

use crate::elf::notes::notes;
use crate::elf::{Elf, Section};
use crate::leb128::{self, Reader};
use crate::raw;
use crate::{ErrorKind, FormatError};

/// Name of the section.
pub const SECTION: &str = ".note.postlink";
/// Alignment of the section.
pub const ALIGN: u64 = 4;

pub(crate) const OWNER: &[u8] = b"postlink";
const TYPE: u32 = 1;
/// The versions of this layout: with kept relocations, and without.
const VERSIONS: [u32; 2] = [1, 2];

/// What was done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoteKind {
    /// Counters were put in.
    Instrumented,
    /// Code was moved.
    Optimised,
}

/// What a rewriter that used no kept relocations knew pointers by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoteBasis {
    /// Dynamic relocations: a position-independent program or a library.
    Dynamic,
    /// Nothing: a program at a fixed address.
    Nothing,
}

/// What is at the old entry of a function that moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EntryLevel {
    /// The input's bytes: control that enters here runs the old body.
    #[default]
    Led,
    /// A jump to the new entry that reaches everything.
    Long,
}

/// A jump table of its own that a function has in new memory, where the rewriter used no kept relocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnTable {
    /// The instruction that loads an entry: in the input, in the output.
    pub load: (u64, u64),
    /// The table that it reads in the input.
    pub old: u64,
    /// What entries are added to; 0 if they are addresses.
    pub base: u64,
    /// The table in the output.
    pub new: u64,
    /// Number of entries.
    pub entries: u64,
    /// The index is compared with that in front of the load.
    pub guarded: bool,
    /// Entries are addresses of 8 bytes, not distances of 4.
    pub wide: bool,
}

impl OwnTable {
    /// One past its last byte in the output.
    fn end(&self) -> u64 {
        let width = if self.wide { 8 } else { 4 };
        self.new.wrapping_add(self.entries.wrapping_mul(width))
    }
}

/// A function that moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MovedFunction {
    /// Its entry in the input.
    pub entry: u64,
    /// Its ranges in the input: (start, length).
    pub old: Vec<(u64, u64)>,
    /// Its ranges in the output: (start, length). The first begins with the entry.
    pub new: Vec<(u64, u64)>,
    /// Without ranges in the output: the entry, in the input, of the function whose new code stands for this one.
    pub folded_into: u64,
    /// Places besides the entry that are reached by address: (in the input, in the output).
    pub labels: Vec<(u64, u64)>,
    /// What is at the old entry; told where the note has a [basis](Note::basis).
    pub level: EntryLevel,
    /// Its jump tables of its own; told likewise.
    pub tables: Vec<OwnTable>,
    /// Jumps that continue in the old body, by their addresses in the input, ascending; told likewise.
    pub falls_back: Vec<u64>,
}

/// What the note says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Note {
    /// What was done.
    pub kind: NoteKind,
    /// Build-id of the input, empty if it has none; at most 255 bytes.
    pub input_id: Vec<u8>,
    /// What the rewriter knew pointers by; `None`: relocations that the linker kept.
    pub basis: Option<NoteBasis>,
    /// Functions that moved, in ascending order of their entries.
    pub functions: Vec<MovedFunction>,
}

impl Note {
    /// The note of a file; `None` if postlink did not write it, an error if it has a note that cannot be read.
    pub fn read(elf: &Elf<'_>) -> Result<Option<Note>, FormatError> {
        let is_it = |s: &&Section<'_>| s.name == SECTION && s.kind == raw::SHT_NOTE;
        let Some(section) = elf.sections.iter().find(is_it) else {
            return Ok(None);
        };
        Note::parse(elf.section_data(section)).map(Some)
    }

    /// Reads a section's contents, whose only note it must be.
    pub fn parse(section: &[u8]) -> Result<Note, FormatError> {
        let mut all = notes(section, ALIGN);
        let Some(note) = all.next() else {
            return Err(FormatError::new(format!(
                "{SECTION} has {} bytes, which are no note",
                section.len()
            ))
            .of(ErrorKind::Truncated)
            .at_offset(0)
            .values(section.len(), "a note"));
        };
        if note.name != OWNER || note.kind != TYPE || all.next().is_some() {
            return Err(FormatError::new(format!(
                "{SECTION} begins with a note of owner {:?} and type {} or has more than one; one of \"postlink\" and {TYPE} is expected",
                String::from_utf8_lossy(note.name),
                note.kind
            ))
            .at_offset(0)
            .values(note.kind, TYPE));
        }
        Note::parse_description(note.desc)
    }

    fn parse_description(desc: &[u8]) -> Result<Note, FormatError> {
        let mut r = Reader::new(desc, SECTION);
        let version = u32::from_le_bytes(r.array("the version")?);
        if !VERSIONS.contains(&version) {
            return Err(FormatError::new(format!(
                "{SECTION} has version {version}; this postlink knows {} and {}: read it with the one that wrote it",
                VERSIONS[0], VERSIONS[1]
            ))
            .of(ErrorKind::Unsupported)
            .at_offset(0)
            .values(version, VERSIONS[1]));
        }
        let kind = match r.array("the kind")? {
            [0] => NoteKind::Instrumented,
            [1] => NoteKind::Optimised,
            [other] => {
                return Err(FormatError::new(format!(
                    "{SECTION} has kind {other}; 0 and 1 are known"
                ))
                .of(ErrorKind::Unsupported)
                .at_offset(r.at() as u64)
                .values(other, "0 or 1"));
            }
        };
        let [len] = r.array("the length of the build-id")?;
        let input_id = r.bytes(len.into(), "the build-id")?.to_vec();
        let basis = if version == VERSIONS[1] {
            Some(read_basis(&mut r)?)
        } else {
            None
        };

        // Numbers of things that follow: each takes at least so many bytes, which bounds what is allocated.
        let count = |r: &mut Reader<'_>, least: u64, what: &str| -> Result<usize, FormatError> {
            let count = r.unsigned(what)?;
            match usize::try_from(count)
                .ok()
                .filter(|_| count <= r.left() / least)
            {
                Some(count) => Ok(count),
                None => Err(FormatError::new(format!(
                    "{SECTION}: {what} is {count}, but only {} bytes follow",
                    r.left()
                ))
                .of(ErrorKind::Truncated)
                .at_offset(r.at() as u64)
                .values(r.left(), count)),
            }
        };
        let range = |start: u64, len: u64| -> Result<(u64, u64), FormatError> {
            match start.checked_add(len) {
                Some(_) => Ok((start, len)),
                None => Err(FormatError::new(format!(
                    "{SECTION}: a range of {len:#x} bytes at {start:#x} wraps around"
                ))
                .of(ErrorKind::TooLarge)
                .at_address(start)
                .values(len, u64::MAX - start)),
            }
        };
        let number = count(&mut r, 4, "the number of functions")?;
        let mut functions = Vec::with_capacity(number);
        let (mut entry, mut end) = (0u64, 0u64);
        for i in 0..number {
            let step = r.unsigned("an entry")?;
            entry = match entry.checked_add(step) {
                Some(entry) if step > 0 || i == 0 => entry,
                _ => {
                    return Err(FormatError::new(format!(
                        "{SECTION}: the entry {step:#x} after {entry:#x} does not ascend"
                    ))
                    .of(ErrorKind::Order)
                    .at_address(entry)
                    .values(step, "more than 0"));
                }
            };
            let mut old = Vec::with_capacity(count(&mut r, 2, "the number of old ranges")?);
            for _ in 0..old.capacity() {
                let start = entry.wrapping_add_signed(r.signed("an old range")?);
                old.push(range(start, r.unsigned("its length")?)?);
            }
            let mut new = Vec::with_capacity(count(&mut r, 2, "the number of new ranges")?);
            for _ in 0..new.capacity() {
                let start = end.wrapping_add_signed(r.signed("a new range")?);
                let (start, len) = range(start, r.unsigned("its length")?)?;
                end = start + len;
                new.push((start, len));
            }
            let folded_into = read_folded(&mut r, entry, &new)?;
            let mut labels = Vec::with_capacity(count(&mut r, 2, "the number of other entries")?);
            for _ in 0..labels.capacity() {
                let Some((base, _)) = new.first() else {
                    return Err(FormatError::new(format!(
                        "{SECTION}: the function at {entry:#x} has other entries, but no new range"
                    ))
                    .of(ErrorKind::Missing)
                    .at_address(entry)
                    .values(0u64, "a new range"));
                };
                let from = entry.wrapping_add_signed(r.signed("an old label")?);
                labels.push((from, base.wrapping_add_signed(r.signed("a new label")?)));
            }
            let (mut level, mut falls_back) = (EntryLevel::Led, Vec::new());
            let mut tables = Vec::new();
            if basis.is_some() {
                level = read_level(&mut r)?;
                tables = Vec::with_capacity(count(&mut r, 7, "the number of jump tables")?);
                let first = new.first().copied();
                let mut before = first.map_or(0, |r| r.0 + r.1);
                for _ in 0..tables.capacity() {
                    let table = read_table(&mut r, entry, first.map_or(0, |r| r.0), before)?;
                    before = table.end();
                    tables.push(table);
                }
                falls_back = Vec::with_capacity(count(&mut r, 1, "the number of jumps")?);
                let mut at = entry;
                for i in 0..falls_back.capacity() {
                    at = match i {
                        0 => at.wrapping_add_signed(r.signed("a jump")?),
                        _ => ascending(at, r.unsigned("a jump")?)?,
                    };
                    falls_back.push(at);
                }
            }
            functions.push(MovedFunction {
                entry,
                old,
                new,
                folded_into,
                labels,
                level,
                tables,
                falls_back,
            });
        }
        if r.left() > 0 {
            return Err(FormatError::new(format!(
                "{SECTION} has {} bytes after its last function",
                r.left()
            ))
            .at_offset(r.at() as u64)
            .values(r.left(), 0u64));
        }
        Ok(Note {
            kind,
            input_id,
            basis,
            functions,
        })
    }

    /// The section's contents: the whole ELF note.
    ///
    /// Fails if something cannot be expressed: a build-id of more than 255 bytes, entries that do not ascend, a range
    /// that wraps around, a label of a function without a new range, a description of 4 GiB or more.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let fail = |what: String| FormatError::new(format!("{SECTION}: {what}"));
        let version = VERSIONS[usize::from(self.basis.is_some())];
        let mut desc = version.to_le_bytes().to_vec();
        desc.push(match self.kind {
            NoteKind::Instrumented => 0,
            NoteKind::Optimised => 1,
        });
        let len = self.input_id.len();
        desc.push(u8::try_from(len).map_err(|_| {
            fail(format!(
                "the build-id has {len} bytes; at most 255 can be expressed"
            ))
            .of(ErrorKind::TooLarge)
            .values(len, 255u64)
        })?);
        desc.extend(&self.input_id);
        if let Some(basis) = self.basis {
            desc.push(match basis {
                NoteBasis::Dynamic => 1,
                NoteBasis::Nothing => 2,
            });
            desc.push(0); // no flags
        }
        let unsigned = leb128::put_unsigned;
        let difference =
            |out: &mut Vec<u8>, a: u64, b: u64| leb128::put_signed(out, a.wrapping_sub(b) as i64);
        let end_of = |(start, len): (u64, u64)| {
            start.checked_add(len).ok_or_else(|| {
                fail(format!(
                    "a range of {len:#x} bytes at {start:#x} wraps around"
                ))
                .of(ErrorKind::TooLarge)
                .at_address(start)
                .values(len, u64::MAX - start)
            })
        };
        unsigned(&mut desc, self.functions.len() as u64);
        let (mut before, mut end) = (None, 0u64);
        for f in &self.functions {
            if let Some(before) = before.filter(|before| *before >= f.entry) {
                return Err(fail(format!(
                    "the entry {:#x} after {before:#x} does not ascend",
                    f.entry
                ))
                .of(ErrorKind::Order)
                .at_address(f.entry)
                .values(f.entry, before));
            }
            unsigned(&mut desc, f.entry - before.unwrap_or(0));
            before = Some(f.entry);
            unsigned(&mut desc, f.old.len() as u64);
            for range in &f.old {
                end_of(*range)?;
                difference(&mut desc, range.0, f.entry);
                unsigned(&mut desc, range.1);
            }
            unsigned(&mut desc, f.new.len() as u64);
            for range in &f.new {
                difference(&mut desc, range.0, end);
                unsigned(&mut desc, range.1);
                end = end_of(*range)?;
            }
            if f.new.is_empty() {
                difference(&mut desc, f.folded_into, f.entry);
            }
            unsigned(&mut desc, f.labels.len() as u64);
            for (from, to) in &f.labels {
                let Some((base, _)) = f.new.first() else {
                    return Err(fail(format!(
                        "the function at {:#x} has other entries, but no new range",
                        f.entry
                    ))
                    .of(ErrorKind::Missing)
                    .at_address(f.entry)
                    .values(0u64, "a new range"));
                };
                difference(&mut desc, *from, f.entry);
                difference(&mut desc, *to, *base);
            }
            if self.basis.is_some() {
                desc.push(match f.level {
                    EntryLevel::Led => 0,
                    EntryLevel::Long => 2,
                });
                put_tables(&mut desc, f);
                unsigned(&mut desc, f.falls_back.len() as u64);
                let mut before = None;
                for &at in &f.falls_back {
                    match before {
                        None => difference(&mut desc, at, f.entry),
                        Some(before) if before < at => unsigned(&mut desc, at - before),
                        Some(before) => {
                            return Err(fail(format!(
                                "the jump at {at:#x} after {before:#x} does not ascend"
                            ))
                            .of(ErrorKind::Order)
                            .at_address(at)
                            .values(at, before));
                        }
                    }
                    before = Some(at);
                }
            }
        }
        framed(SECTION, TYPE, &desc)
    }
}

/// What the rewriter knew pointers by, and flags.
fn read_basis(r: &mut Reader<'_>) -> Result<NoteBasis, FormatError> {
    let [basis, flags] = r.array("the basis")?;
    if flags != 0 {
        return Err(
            FormatError::new(format!("{SECTION} has flags {flags:#x}; none is known"))
                .of(ErrorKind::Unsupported)
                .at_offset(r.at() as u64)
                .values(flags, 0u64),
        );
    }
    match basis {
        1 => Ok(NoteBasis::Dynamic),
        2 => Ok(NoteBasis::Nothing),
        other => Err(
            FormatError::new(format!("{SECTION} has basis {other}; 1 and 2 are known"))
                .of(ErrorKind::Unsupported)
                .at_offset(r.at() as u64)
                .values(other, "1 or 2"),
        ),
    }
}

/// The entry of the function that one without new ranges was folded into.
fn read_folded(r: &mut Reader<'_>, entry: u64, new: &[(u64, u64)]) -> Result<u64, FormatError> {
    if !new.is_empty() {
        return Ok(0);
    }
    Ok(entry.wrapping_add_signed(r.signed("what it was folded into")?))
}

/// What is at an old entry.
fn read_level(r: &mut Reader<'_>) -> Result<EntryLevel, FormatError> {
    let [level] = r.array("what is at the old entry")?;
    match level {
        0 => Ok(EntryLevel::Led),
        2 => Ok(EntryLevel::Long),
        other => Err(FormatError::new(format!(
            "{SECTION}: what is at an old entry is {other}; 0 and 2 are known"
        ))
        .of(ErrorKind::Unsupported)
        .at_offset(r.at() as u64)
        .values(other, "0 or 2")),
    }
}

/// The jump that is so many bytes after another.
fn ascending(before: u64, step: u64) -> Result<u64, FormatError> {
    let next = before.checked_add(step).filter(|_| step > 0);
    next.ok_or_else(|| {
        FormatError::new(format!(
            "{SECTION}: the jump {step:#x} after {before:#x} does not ascend"
        ))
        .of(ErrorKind::Order)
        .at_address(before)
        .values(step, "more than 0")
    })
}

/// A jump table of a function's own; `start` is that of the first new range, `before` the end of the table before it.
fn read_table(
    r: &mut Reader<'_>,
    entry: u64,
    start: u64,
    before: u64,
) -> Result<OwnTable, FormatError> {
    let load = (
        entry.wrapping_add_signed(r.signed("a load")?),
        start.wrapping_add_signed(r.signed("a new load")?),
    );
    let old = entry.wrapping_add_signed(r.signed("a jump table")?);
    let base = r.signed("the base of a jump table")?;
    let new = before.wrapping_add_signed(r.signed("a new jump table")?);
    let entries = r.unsigned("the number of its entries")?;
    let [kind] = r.array("its kind")?;
    if kind > 3 {
        return Err(FormatError::new(format!(
            "{SECTION}: a jump table has the kind {kind}; 0 to 3 are known"
        )));
    }
    let wide = kind & 2 != 0;
    Ok(OwnTable {
        load,
        old,
        base: if wide {
            0
        } else {
            old.wrapping_add_signed(base)
        },
        new,
        entries,
        guarded: kind & 1 != 0,
        wide,
    })
}

/// Appends the number of a function's own jump tables, and what is told of each.
fn put_tables(desc: &mut Vec<u8>, f: &MovedFunction) {
    let difference =
        |out: &mut Vec<u8>, a: u64, b: u64| leb128::put_signed(out, a.wrapping_sub(b) as i64);
    leb128::put_unsigned(desc, f.tables.len() as u64);
    let (start, len) = f.new.first().copied().unwrap_or_default();
    let mut before = start.wrapping_add(len);
    for t in &f.tables {
        difference(desc, t.load.0, f.entry);
        difference(desc, t.load.1, start);
        difference(desc, t.old, f.entry);
        if t.wide {
            desc.push(0)
        } else {
            difference(desc, t.base, t.old)
        }
        difference(desc, t.new, before);
        leb128::put_unsigned(desc, t.entries);
        desc.push(u8::from(t.guarded) | u8::from(t.wide) << 1);
        before = t.end();
    }
}

/// The bytes of one note of ours, which has `desc` for its description and goes to `section`.
pub(crate) fn framed(section: &str, kind: u32, desc: &[u8]) -> Result<Vec<u8>, FormatError> {
    let size = u32::try_from(desc.len()).map_err(|_| {
        FormatError::new(format!(
            "{section}: {} bytes are more than a note can have",
            desc.len()
        ))
        .of(ErrorKind::TooLarge)
        .values(desc.len(), u32::MAX)
    })?;
    let mut out = Vec::with_capacity(24 + desc.len() + 3);
    out.extend((OWNER.len() as u32 + 1).to_le_bytes());
    out.extend(size.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(OWNER);
    out.resize(24, 0); // the name's zero byte, and padding
    out.extend(desc);
    out.resize(out.len().next_multiple_of(ALIGN as usize), 0);
    Ok(out)
}

/// The description of the note of ours that `section` begins with.
pub(crate) fn unframed<'s>(
    bytes: &'s [u8],
    section: &str,
    kind: u32,
) -> Result<&'s [u8], FormatError> {
    let note = notes(bytes, ALIGN).next();
    let ours = note.filter(|note| note.name == OWNER && note.kind == kind);
    ours.map(|note| note.desc).ok_or_else(|| {
        FormatError::new(format!(
            "{section} of {} bytes does not begin with a note of owner \"postlink\" and type {kind}",
            bytes.len()
        ))
        .at_offset(0)
        .values(bytes.len(), "a note of postlink")
    })
}

/// The description in a section's contents; empty if there is no note.
pub fn description(section: &[u8]) -> &[u8] {
    notes(section, ALIGN).next().map_or(&[], |note| note.desc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arbitrary::{Result, Unstructured};

    fn address(u: &mut Unstructured<'_>) -> Result<u64> {
        // Mostly as in real programs, now and then anywhere.
        if u.ratio(1, 8)? {
            u.arbitrary()
        } else {
            Ok(0x40_0000 + u64::from(u.arbitrary::<u32>()?) / 4)
        }
    }

    fn range(u: &mut Unstructured<'_>) -> Result<(u64, u64)> {
        let start = address(u)?;
        Ok((
            start,
            u.int_in_range(0..=u64::MAX - start)?
                .min(u.arbitrary::<u16>()?.into()),
        ))
    }

    fn several<T>(
        u: &mut Unstructured<'_>,
        most: usize,
        mut one: impl FnMut(&mut Unstructured<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        (0..u.int_in_range(0..=most)?).map(|_| one(u)).collect()
    }

    fn note(u: &mut Unstructured<'_>) -> Result<Note> {
        let mut entries = several(u, 12, address)?;
        entries.sort_unstable();
        entries.dedup();
        let basis = *u.choose(&[None, Some(NoteBasis::Dynamic), Some(NoteBasis::Nothing)])?;
        let functions = entries.into_iter().map(|entry| {
            let (old, new) = (several(u, 3, range)?, several(u, 3, range)?);
            let labels = if new.is_empty() {
                Vec::new()
            } else {
                several(u, 4, |u| Ok((address(u)?, address(u)?)))?
            };
            let (mut level, mut falls_back) = (EntryLevel::Led, Vec::new());
            let mut tables = Vec::new();
            if basis.is_some() {
                tables = several(u, 3, |u| {
                    let wide = u.arbitrary()?;
                    Ok(OwnTable {
                        load: (address(u)?, address(u)?),
                        old: address(u)?,
                        base: if wide { 0 } else { address(u)? },
                        new: address(u)?,
                        entries: u.arbitrary::<u16>()?.into(),
                        guarded: u.arbitrary()?,
                        wide,
                    })
                })?;
                level = *u.choose(&[EntryLevel::Led, EntryLevel::Long])?;
                falls_back = several(u, 3, address)?;
                falls_back.sort_unstable();
                falls_back.dedup();
            }
            let folded_into = if new.is_empty() { address(u)? } else { 0 };
            Ok(MovedFunction {
                entry,
                old,
                new,
                folded_into,
                labels,
                level,
                tables,
                falls_back,
            })
        });
        let functions = functions.collect::<Result<_>>()?;
        let kind = if u.arbitrary()? {
            NoteKind::Optimised
        } else {
            NoteKind::Instrumented
        };
        Ok(Note {
            kind,
            input_id: several(u, 32, |u| u.arbitrary())?,
            basis,
            functions,
        })
    }

    #[test]
    fn every_note_survives_writing_and_reading() {
        arbtest::arbtest(|u| {
            let note = note(u)?;
            let bytes = note.encode().unwrap();
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(Note::parse(&bytes), Ok(note));
            Ok(())
        });
    }

    #[test]
    fn damaged_notes_are_errors_or_other_notes() {
        arbtest::arbtest(|u| {
            let mut bytes = note(u)?.encode().unwrap();
            for _ in 0..u.int_in_range(1..=4)? {
                let at = u.choose_index(bytes.len())?;
                bytes[at] = u.arbitrary()?;
            }
            bytes.truncate(u.int_in_range(0..=bytes.len())?);
            if let Ok(note) = Note::parse(&bytes) {
                // What can be read can be written, and says the same.
                assert_eq!(Note::parse(&note.encode().unwrap()), Ok(note));
            }
            Ok(())
        });
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let note = Note {
            kind: NoteKind::Optimised,
            basis: None,
            input_id: vec![0xab, 0xcd],
            functions: vec![
                MovedFunction {
                    entry: 0x1000,
                    old: vec![(0x1000, 0x80)],
                    new: vec![(0x5000, 0x40), (0x6000, 0x20)],
                    labels: vec![],
                    ..MovedFunction::default()
                },
                MovedFunction {
                    entry: 0x1080,
                    old: vec![(0x1070, 3)],
                    new: vec![(0x5040, 5)],
                    labels: vec![(0x1090, 0x5042)],
                    ..MovedFunction::default()
                },
                MovedFunction {
                    entry: 0x1100,
                    old: vec![(0x1100, 5)],
                    folded_into: 0x1080,
                    ..MovedFunction::default()
                },
            ],
        };
        let expected = [
            &[9, 0, 0, 0, 45, 0, 0, 0, 1, 0, 0, 0][..],
            b"postlink\0\0\0\0",
            &[1, 0, 0, 0, 1, 2, 0xab, 0xcd, 3],
            &[0x80, 0x20, 1, 0, 0x80, 0x01], // entry 0x1000, one old range: 0, 0x80
            &[2, 0x80, 0xa0, 0x01, 0x40],    // two new ranges: 0x5000 from 0, 0x40
            &[0xc0, 0x1f, 0x20, 0],          // 0xfc0 after 0x5040, 0x20; no labels
            &[0x80, 0x01, 1, 0x70, 3],       // entry 0x80 further; 0x10 before it, 3
            &[1, 0xa0, 0x60, 5, 1, 0x10, 2], // 0xfe0 before 0x6020, 5; label
            &[0x80, 0x01, 1, 0, 5],          // entry 0x80 further, one old range: 0, 5
            &[0, 0x80, 0x7f, 0],             // no new range: folded into 0x80 before it; no labels
            &[0, 0, 0],                      // padding
        ]
        .concat();
        assert_eq!(note.encode().unwrap(), expected);
    }

    #[test]
    fn the_layout_without_kept_relocations_is_the_documented_one() {
        let note = Note {
            kind: NoteKind::Instrumented,
            basis: Some(NoteBasis::Nothing),
            input_id: vec![],
            functions: vec![MovedFunction {
                entry: 0x30,
                old: vec![(0x30, 9)],
                new: vec![(0x50, 8)],
                folded_into: 0,
                labels: vec![],
                level: EntryLevel::Long,
                tables: vec![OwnTable {
                    load: (0x34, 0x53),
                    old: 0x2c,
                    base: 0x2e,
                    new: 0x5c,
                    entries: 6,
                    guarded: true,
                    wide: false,
                }],
                falls_back: vec![0x2e, 0x33],
            }],
        };
        let bytes = note.encode().unwrap();
        let expected = [
            &[2, 0, 0, 0, 0, 0, 2, 0, 1][..], // no build-id, basis 2, no flags, one function
            &[0x30, 1, 0, 9, 1, 0xd0, 0, 8, 0], // one old range, one new range at 0x50, no labels
            &[2, 1, 4, 3, 0x7c, 2, 4, 6, 1],  // a long jump; a table: six entries, guarded
            &[2, 0x7e, 5],                    // 2 before the entry, 5 further
        ]
        .concat();
        assert_eq!(description(&bytes), expected);
        assert_eq!(Note::parse(&bytes), Ok(note));
    }

    #[test]
    fn what_cannot_be_expressed_is_refused_with_its_values() {
        let function = |entry| MovedFunction {
            entry,
            old: vec![],
            new: vec![],
            labels: vec![],
            ..MovedFunction::default()
        };
        let note = |functions| Note {
            kind: NoteKind::Instrumented,
            basis: None,
            input_id: vec![],
            functions,
        };
        let what = |note: Note| note.encode().unwrap_err().what;
        assert!(what(note(vec![function(0x20), function(0x10)])).contains("0x10 after 0x20"));
        assert!(
            what(note(vec![MovedFunction {
                new: vec![(u64::MAX, 2)],
                ..function(1)
            }]))
            .contains("0xffffffffffffffff")
        );
        assert!(
            what(note(vec![MovedFunction {
                labels: vec![(1, 2)],
                ..function(1)
            }]))
            .contains("no new range")
        );
        assert!(
            what(Note {
                basis: None,
                input_id: vec![0; 256],
                ..note(vec![])
            })
            .contains("256 bytes")
        );
    }
}

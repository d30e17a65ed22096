//! `.note.postlink.moves`: which bytes of the output correspond to which of the input.
//!
//! `.note.postlink` says where functions went; this note says where their instructions did. Who describes
//! code by address needs it: debug information of moved code is made from it, and checked by it. It is a
//! claim like the other: `verify` compares it with the pairs of instructions that it finds itself.
//!
//! A section of type `SHT_NOTE` that is not loaded, with one ELF note of owner `postlink` and type 2. Description:
//!
//! | field | value |
//! |---|---|
//! | u32 | version of this layout, 2 |
//! | unsigned | number of runs, ascending and disjoint in the input; of each: |
//! | — unsigned | old address, less the end of the run before it (0 at first) |
//! | — unsigned | twice the number of old bytes; plus 1 if the number of new bytes is another one |
//! | — unsigned | the number of new bytes, if it is another one: then the run is one instruction that was re-encoded |
//! | — signed | new address, less the end of the run before it (0 at first) |
//! | unsigned | number of jumps at old entries, ascending; of each: |
//! | — unsigned | its address, less the end of the one before it (0 at first) |
//! | — unsigned | its bytes, with a landing pad in front of it |
//! | unsigned | number of functions whose pointers follow them, ascending; of each: |
//! | — unsigned | its old entry, less that of the one before it (0 at first) |
//! | — signed | its new entry, less the old one |
//!
//! Version 1 ends after the runs. The rest is for debug information in a file of its own, which is updated
//! when the program has been written.
//!
//! Numbers are LEB128, differences wrap around. Old bytes in no run (jumps that are not needed any more,
//! padding) have no place in the output; new ones in no run (jumps and padding that were added) correspond to
//! nothing in the input.

use std::ops::Range;

use crate::elf::{Elf, Section};
use crate::leb128::{self, Reader};
pub use crate::note::ALIGN;
use crate::note::{framed, unframed};
use crate::raw;
use crate::{ErrorKind, FormatError};

/// Name of the section.
pub const SECTION: &str = ".note.postlink.moves";
const TYPE: u32 = 2;
const VERSION: u32 = 2;

/// Old bytes and the new bytes that correspond to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// Address of the first old byte.
    pub old: u64,
    /// Number of old bytes.
    pub old_len: u64,
    /// Address of the first new byte.
    pub new: u64,
    /// Number of new bytes. If it differs, the bytes are those of one instruction, re-encoded.
    pub new_len: u64,
}

/// What the note says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Bytes that moved, ascending.
    pub runs: Vec<Move>,
    /// Jumps at old entries: start and end, ascending.
    pub entry_jumps: Vec<Range<u64>>,
    /// Functions whose pointers follow them: old and new entry, ascending.
    pub pointers: Vec<(u64, u64)>,
}

/// The section's contents: the whole ELF note, of what is in a [`Moves`] otherwise. Runs, of which a large program has
/// a million, need not be in memory as such. Fails if something does not ascend, or wraps around.
pub fn encode(
    runs: impl ExactSizeIterator<Item = Move>,
    entry_jumps: &[Range<u64>],
    pointers: &[(u64, u64)],
) -> Result<Vec<u8>, FormatError> {
    let mut desc = VERSION.to_le_bytes().to_vec();
    put_runs(runs, &mut desc)?;
    leb128::put_unsigned(&mut desc, entry_jumps.len() as u64);
    let mut end = 0u64;
    for jump in entry_jumps {
        let gap = jump.start.checked_sub(end);
        let (Some(gap), Some(len)) = (gap, jump.end.checked_sub(jump.start)) else {
            return Err(descends("the jump", jump.start, end));
        };
        leb128::put_unsigned(&mut desc, gap);
        leb128::put_unsigned(&mut desc, len);
        end = jump.end;
    }
    leb128::put_unsigned(&mut desc, pointers.len() as u64);
    let mut before = 0u64;
    for (old, new) in pointers {
        let Some(gap) = old.checked_sub(before) else {
            return Err(descends("the function", *old, before));
        };
        leb128::put_unsigned(&mut desc, gap);
        leb128::put_signed(&mut desc, new.wrapping_sub(*old) as i64);
        before = *old;
    }
    framed(SECTION, TYPE, &desc)
}

fn descends(what: &str, at: u64, after: u64) -> FormatError {
    FormatError::new(format!(
        "{SECTION}: {what} at {at:#x} does not ascend after {after:#x}"
    ))
    .of(ErrorKind::Order)
    .at_address(at)
    .values(at, after)
}

fn put_runs(
    runs: impl ExactSizeIterator<Item = Move>,
    desc: &mut Vec<u8>,
) -> Result<(), FormatError> {
    leb128::put_unsigned(desc, runs.len() as u64);
    let (mut old, mut new) = (0u64, 0u64);
    for m in runs {
        let (Some(gap), Some(twice), Some(end)) = (
            m.old.checked_sub(old),
            m.old_len.checked_mul(2),
            m.old.checked_add(m.old_len),
        ) else {
            return Err(FormatError::new(format!(
                "{SECTION}: the run of {:#x} bytes at {:#x} does not ascend after {old:#x}, or wraps around",
                m.old_len, m.old
            ))
            .of(ErrorKind::Order)
            .at_address(m.old)
            .values(m.old, old));
        };
        leb128::put_unsigned(desc, gap);
        leb128::put_unsigned(desc, twice | u64::from(m.old_len != m.new_len));
        if m.old_len != m.new_len {
            leb128::put_unsigned(desc, m.new_len);
        }
        leb128::put_signed(desc, m.new.wrapping_sub(new) as i64);
        (old, new) = (end, m.new.wrapping_add(m.new_len));
    }
    Ok(())
}

/// The note of a file; `None` if it has none.
pub fn read(elf: &Elf<'_>) -> Result<Option<Moves>, FormatError> {
    let is_it = |s: &&Section<'_>| s.name == SECTION && s.kind == raw::SHT_NOTE;
    match elf.sections.iter().find(is_it) {
        Some(section) => parse(elf.section_data(section)).map(Some),
        None => Ok(None),
    }
}

/// Reads a section's contents. Of version 1 there are runs alone.
pub fn parse(section: &[u8]) -> Result<Moves, FormatError> {
    let mut r = Reader::new(unframed(section, SECTION, TYPE)?, SECTION);
    let version = u32::from_le_bytes(r.array("the version")?);
    if !(1..=VERSION).contains(&version) {
        return Err(FormatError::new(format!(
            "{SECTION} has version {version}; this postlink knows 1 to {VERSION}: read it with the one that wrote it"
        ))
        .of(ErrorKind::Unsupported)
        .at_offset(0)
        .values(version, VERSION));
    }
    let mut moves = Moves {
        runs: runs(&mut r)?,
        ..Moves::default()
    };
    if version > 1 {
        moves.entry_jumps = entry_jumps(&mut r)?;
        moves.pointers = pointers(&mut r)?;
    }
    if r.left() > 0 {
        return Err(FormatError::new(format!(
            "{SECTION} has {} bytes after its last field",
            r.left()
        ))
        .at_offset(r.at() as u64)
        .values(r.left(), 0u64));
    }
    Ok(moves)
}

/// A number of things that take at least so many bytes each, which bounds what is allocated.
fn count(r: &mut Reader<'_>, what: &str, least: u64) -> Result<u64, FormatError> {
    let count = r.unsigned(what)?;
    if count > r.left() / least {
        return Err(FormatError::new(format!(
            "{SECTION}: {what} is {count}, but only {} bytes follow",
            r.left()
        ))
        .of(ErrorKind::Truncated)
        .at_offset(r.at() as u64)
        .values(r.left(), count));
    }
    Ok(count)
}

fn wraps(what: &str, at: u64) -> FormatError {
    FormatError::new(format!("{SECTION}: {what} after {at:#x} wraps around"))
        .of(ErrorKind::TooLarge)
        .at_address(at)
        .values(at, u64::MAX)
}

fn runs(r: &mut Reader<'_>) -> Result<Vec<Move>, FormatError> {
    let count = count(r, "the number of runs", 3)?;
    let mut out = Vec::with_capacity(count as usize);
    let (mut old, mut new) = (0u64, 0u64);
    for _ in 0..count {
        let gap = r.unsigned("an old address")?;
        let twice = r.unsigned("a length")?;
        let old_len = twice / 2;
        let new_len = match twice & 1 {
            0 => old_len,
            _ => r.unsigned("a new length")?,
        };
        let start = new.wrapping_add_signed(r.signed("a new address")?);
        let at = old.checked_add(gap);
        let (Some(at), Some(old_end), Some(new_end)) = (
            at,
            at.and_then(|at| at.checked_add(old_len)),
            start.checked_add(new_len),
        ) else {
            return Err(wraps("a run", old));
        };
        out.push(Move {
            old: at,
            old_len,
            new: start,
            new_len,
        });
        (old, new) = (old_end, new_end);
    }
    Ok(out)
}

fn entry_jumps(r: &mut Reader<'_>) -> Result<Vec<Range<u64>>, FormatError> {
    let count = count(r, "the number of jumps at old entries", 2)?;
    let mut out = Vec::with_capacity(count as usize);
    let mut last = 0u64;
    for _ in 0..count {
        let start = last.checked_add(r.unsigned("the address of a jump")?);
        let len = r.unsigned("the length of a jump")?;
        let Some((start, end)) = start.and_then(|at| Some((at, at.checked_add(len)?))) else {
            return Err(wraps("a jump", last));
        };
        out.push(start..end);
        last = end;
    }
    Ok(out)
}

fn pointers(r: &mut Reader<'_>) -> Result<Vec<(u64, u64)>, FormatError> {
    let count = count(r, "the number of functions whose pointers follow", 2)?;
    let mut out = Vec::with_capacity(count as usize);
    let mut last = 0u64;
    for _ in 0..count {
        let old = last.checked_add(r.unsigned("an old entry")?);
        let Some(old) = old else {
            return Err(wraps("an entry", last));
        };
        out.push((old, old.wrapping_add_signed(r.signed("a new entry")?)));
        last = old;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(moves: &Moves) -> Result<Vec<u8>, FormatError> {
        let runs = moves.runs.iter().copied();
        encode(runs, &moves.entry_jumps, &moves.pointers)
    }

    fn at(old: u64) -> Move {
        Move {
            old,
            old_len: 4,
            new: 0x9000,
            new_len: 4,
        }
    }

    #[test]
    fn the_note_survives_the_round_trip() {
        arbtest::arbtest(|u| {
            let mut moves = Moves::default();
            let mut at = 0u64;
            for _ in 0..u.int_in_range(0..=20)? {
                at += u64::from(u.arbitrary::<u16>()?);
                let old_len = u.int_in_range(1..=300)?;
                let new_len = if u.ratio(1, 4)? {
                    u.int_in_range(1..=15)?
                } else {
                    old_len
                };
                let new = u64::from(u.arbitrary::<u32>()?);
                moves.runs.push(Move {
                    old: at,
                    old_len,
                    new,
                    new_len,
                });
                if u.ratio(1, 3)? {
                    moves.entry_jumps.push(at..at + old_len);
                    moves.pointers.push((at, new));
                }
                at += old_len;
            }
            let bytes = encoded(&moves).expect("they ascend");
            assert_eq!(parse(&bytes).expect("it is well-formed"), moves);
            for cut in 0..bytes.len() {
                let _ = parse(&bytes[..cut]);
            }
            Ok(())
        });
    }

    #[test]
    fn what_does_not_ascend_is_refused() {
        let runs = Moves {
            runs: vec![at(0x1000), at(0x1002)],
            ..Moves::default()
        };
        let jumps = Moves {
            entry_jumps: vec![0x1000..0x1005, 0x1002..0x1007],
            ..Moves::default()
        };
        let pointers = Moves {
            pointers: vec![(0x1005, 0x9000), (0x1002, 0x9000)],
            ..Moves::default()
        };
        for wrong in [runs, jumps, pointers] {
            let error = encoded(&wrong).expect_err("they overlap or descend");
            assert!(error.what.contains("0x1002"), "{error}");
        }
    }

    #[test]
    fn the_first_version_has_runs_alone() {
        let moves = Moves {
            runs: vec![at(0x1000)],
            ..Moves::default()
        };
        let mut desc = 1u32.to_le_bytes().to_vec();
        put_runs(moves.runs.iter().copied(), &mut desc).expect("there is one");
        let note = framed(SECTION, TYPE, &desc).expect("it is small");
        assert_eq!(parse(&note).expect("it is well-formed"), moves);
    }
}

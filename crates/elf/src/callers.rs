//! `.note.postlink.callers`: which calls of an instrumented program are which of the input.
//!
//! A program that samples where functions are called from writes down return addresses. In functions that were emitted
//! again these are addresses of the program that runs, not of the input, which a profile speaks of. This note gives
//! for each call in such a function both. It is a claim like [`.note.postlink`](crate::note): `verify` compares it with
//! the pairs of calls that it finds itself. The map beside the program has the same list, for those who read profiles.
//!
//! A section of type `SHT_NOTE` that is not loaded, with one ELF note of owner `postlink` and type 3. Description:
//!
//! | field | value |
//! |---|---|
//! | u32 | version of this layout, 1 |
//! | unsigned | number of calls, ascending in the output; of each: |
//! | — unsigned | return address in the output, less that of the call before it (0 at first); not 0 |
//! | — signed | return address in the input, less that of the call before it (0 at first) |
//!
//! Numbers are LEB128.

use crate::elf::{Elf, Section};
use crate::leb128::{self, Reader};
use crate::note::{framed, unframed};
use crate::{ErrorKind, FormatError, raw};

/// Name of the section.
pub const SECTION: &str = ".note.postlink.callers";
pub use crate::note::ALIGN;
const TYPE: u32 = 3;
const VERSION: u32 = 1;

/// A call in a function that was emitted again: where it returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// In the output.
    pub new: u64,
    /// In the input.
    pub old: u64,
}

/// The section's contents: the whole ELF note. Fails if the calls do not ascend in the output.
pub fn encode(calls: &[Call]) -> Result<Vec<u8>, FormatError> {
    let mut desc = VERSION.to_le_bytes().to_vec();
    leb128::put_unsigned(&mut desc, calls.len() as u64);
    let mut last = Call { new: 0, old: 0 };
    for call in calls {
        let further = call.new.checked_sub(last.new).filter(|by| *by > 0);
        let Some(further) = further else {
            return Err(descends(call.new, last.new));
        };
        leb128::put_unsigned(&mut desc, further);
        leb128::put_signed(&mut desc, call.old.wrapping_sub(last.old) as i64);
        last = *call;
    }
    framed(SECTION, TYPE, &desc)
}

fn descends(at: u64, after: u64) -> FormatError {
    FormatError::new(format!(
        "{SECTION}: the call that returns to {at:#x} does not ascend after {after:#x}"
    ))
    .of(ErrorKind::Order)
    .at_address(at)
    .values(at, after)
}

/// The note of a file; `None` if it has none.
pub fn read(elf: &Elf<'_>) -> Result<Option<Vec<Call>>, FormatError> {
    let is_it = |s: &&Section<'_>| s.name == SECTION && s.kind == raw::SHT_NOTE;
    match elf.sections.iter().find(is_it) {
        Some(section) => parse(elf.section_data(section)).map(Some),
        None => Ok(None),
    }
}

/// Reads a section's contents.
pub fn parse(section: &[u8]) -> Result<Vec<Call>, FormatError> {
    let mut r = Reader::new(unframed(section, SECTION, TYPE)?, SECTION);
    let version = u32::from_le_bytes(r.array("the version")?);
    if version != VERSION {
        return Err(FormatError::new(format!(
            "{SECTION} has version {version}; this postlink knows {VERSION}: read it with the one that wrote it"
        ))
        .of(ErrorKind::Unsupported)
        .at_offset(0)
        .values(version, VERSION));
    }
    let count = r.unsigned("the number of calls")?;
    if count > r.left() / 2 {
        return Err(FormatError::new(format!(
            "{SECTION}: the number of calls is {count}, but only {} bytes follow",
            r.left()
        ))
        .of(ErrorKind::Truncated)
        .at_offset(r.at() as u64)
        .values(r.left(), count));
    }
    let mut calls = Vec::with_capacity(count as usize); // at most half of the bytes in memory
    let mut last = Call { new: 0, old: 0 };
    for _ in 0..count {
        let further = r.unsigned("a call")?;
        let new = last.new.wrapping_add(further);
        if new <= last.new {
            return Err(descends(new, last.new));
        }
        let old = last.old.wrapping_add_signed(r.signed("a call")?);
        last = Call { new, old };
        calls.push(last);
    }
    if r.left() > 0 {
        return Err(FormatError::new(format!(
            "{SECTION} has {} bytes after its last field",
            r.left()
        ))
        .at_offset(r.at() as u64)
        .values(r.left(), 0u64));
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: [Call; 3] = [
        Call {
            new: 0x8005,
            old: 0x1105,
        },
        Call {
            new: 0x800b,
            old: 0x110b,
        },
        Call {
            new: u64::MAX,
            old: 0x20,
        },
    ];

    #[test]
    fn what_was_written_is_read() {
        for calls in [&CALLS[..], &[]] {
            let bytes = encode(calls).unwrap();
            assert_eq!(parse(&bytes).unwrap(), calls);
        }
    }

    #[test]
    fn calls_that_do_not_ascend_are_refused() {
        let error = encode(&[CALLS[1], CALLS[0]]).unwrap_err().to_string();
        assert!(error.contains("0x8005"), "{error}");
        assert!(error.contains("0x800b"), "{error}");
        assert!(encode(&[CALLS[0], CALLS[0]]).is_err());
    }

    #[test]
    fn a_note_cut_short_or_damaged_is_refused() {
        let bytes = encode(&CALLS).unwrap();
        // The description begins after 24 bytes, its calls after five more.
        let size = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        for less in 1..=size {
            let mut short = bytes.clone();
            short[4..8].copy_from_slice(&(size - less).to_le_bytes());
            assert!(parse(&short).is_err(), "{less} bytes fewer");
        }
        for (at, byte) in [(8, 2), (24, 9), (28, 2), (28, 0x7f), (29, 0)] {
            let mut damaged = bytes.clone();
            damaged[at] = byte;
            assert!(parse(&damaged).is_err(), "byte {at} is {byte}");
        }
    }
}

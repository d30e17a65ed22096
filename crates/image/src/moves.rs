//! `.note.postlink.moves`: which bytes of the output stand for which of the input.
//!
//! `.note.postlink` says where functions went; this note says where their instructions did. Who describes
//! code by address needs it: debug information of moved code is made from it, and checked by it. It is a
//! claim like the other: `verify` compares it with the pairs of instructions that it finds itself.
//!
//! A section of type `SHT_NOTE` that is not loaded, with one ELF note of owner `postlink` and type 2. Description:
//!
//! | field | value |
//! |---|---|
//! | u32 | version of this layout, 1 |
//! | unsigned | number of runs, ascending and disjoint in the input; of each: |
//! | — unsigned | old address, less the end of the run before it (0 at first) |
//! | — unsigned | twice the number of old bytes; plus 1 if the number of new bytes is another one |
//! | — unsigned | the number of new bytes, if it is another one: then the run is one instruction that was re-encoded |
//! | — signed | new address, less the end of the run before it (0 at first) |
//!
//! Numbers are LEB128, differences wrap around. Old bytes in no run (jumps that are not needed any more,
//! padding) have no place in the output; new ones in no run (jumps and padding that were added) stand for
//! nothing in the input.

use crate::FormatError;
use crate::elf::notes::notes;
use crate::leb128::{self, Reader};
pub use crate::note::ALIGN;
use crate::note::{OWNER, framed};

/// Name of the section.
pub const SECTION: &str = ".note.postlink.moves";
const TYPE: u32 = 2;
const VERSION: u32 = 1;

/// Old bytes and the new bytes that stand for them.
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

/// The section's contents: the whole ELF note. Fails if runs do not ascend, or wrap around.
pub fn encode(moves: impl ExactSizeIterator<Item = Move>) -> Result<Vec<u8>, FormatError> {
    let mut desc = VERSION.to_le_bytes().to_vec();
    leb128::put_unsigned(&mut desc, moves.len() as u64);
    let (mut old, mut new) = (0u64, 0u64);
    for m in moves {
        let (Some(gap), Some(twice), Some(end)) = (
            m.old.checked_sub(old),
            m.old_len.checked_mul(2),
            m.old.checked_add(m.old_len),
        ) else {
            return Err(FormatError::new(format!(
                "{SECTION}: the run of {:#x} bytes at {:#x} does not ascend after {old:#x}, or wraps around",
                m.old_len, m.old
            )));
        };
        leb128::put_unsigned(&mut desc, gap);
        leb128::put_unsigned(&mut desc, twice | u64::from(m.old_len != m.new_len));
        if m.old_len != m.new_len {
            leb128::put_unsigned(&mut desc, m.new_len);
        }
        leb128::put_signed(&mut desc, m.new.wrapping_sub(new) as i64);
        (old, new) = (end, m.new.wrapping_add(m.new_len));
    }
    framed(SECTION, TYPE, &desc)
}

/// Reads a section's contents.
pub fn parse(section: &[u8]) -> Result<Vec<Move>, FormatError> {
    let note = notes(section, ALIGN).next();
    let Some(note) = note.filter(|n| n.name == OWNER && n.kind == TYPE) else {
        return Err(FormatError::new(format!(
            "{SECTION} of {} bytes does not begin with a note of owner \"postlink\" and type {TYPE}",
            section.len()
        )));
    };
    let mut r = Reader::new(note.desc, SECTION);
    let version = u32::from_le_bytes(r.array("the version")?);
    if version != VERSION {
        return Err(FormatError::new(format!(
            "{SECTION} has version {version}; this postlink knows {VERSION}: read it with the one that wrote it"
        )));
    }
    let count = r.unsigned("the number of runs")?;
    // Each takes at least three bytes, which bounds what is allocated.
    if count > r.left() / 3 {
        return Err(FormatError::new(format!(
            "{SECTION}: {count} runs are announced, but only {} bytes follow",
            r.left()
        )));
    }
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
            return Err(FormatError::new(format!(
                "{SECTION}: a run of {old_len:#x} bytes after {old:#x} wraps around"
            )));
        };
        out.push(Move {
            old: at,
            old_len,
            new: start,
            new_len,
        });
        (old, new) = (old_end, new_end);
    }
    if r.left() > 0 {
        return Err(FormatError::new(format!(
            "{SECTION} has {} bytes after its last run",
            r.left()
        )));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_survive_the_round_trip() {
        arbtest::arbtest(|u| {
            let mut at = 0u64;
            let mut list = Vec::new();
            for _ in 0..u.int_in_range(0..=20)? {
                at += u64::from(u.arbitrary::<u16>()?);
                let old_len = u.int_in_range(1..=300)?;
                let new_len = if u.ratio(1, 4)? {
                    u.int_in_range(1..=15)?
                } else {
                    old_len
                };
                let new = u64::from(u.arbitrary::<u32>()?);
                list.push(Move {
                    old: at,
                    old_len,
                    new,
                    new_len,
                });
                at += old_len;
            }
            let bytes = encode(list.iter().copied()).expect("they ascend");
            assert_eq!(parse(&bytes).expect("it is well-formed"), list);
            for cut in 0..bytes.len() {
                let _ = parse(&bytes[..cut]);
            }
            Ok(())
        });
    }

    #[test]
    fn runs_that_do_not_ascend_are_refused() {
        let at = |old| Move {
            old,
            old_len: 4,
            new: 0x9000,
            new_len: 4,
        };
        let error = encode([at(0x1000), at(0x1002)].into_iter()).expect_err("they overlap");
        assert!(error.what.contains("0x1002"), "{error}");
    }
}

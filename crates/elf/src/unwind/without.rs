//! Taking entries out of tables that were written, without moving the others.
//!
//! An entry may be longer than its instructions: what follows them is `DW_CFA_nop`, which is 0. So an entry that is
//! taken out becomes such padding of the one in front of it, whose length grows, and no other entry, nor an address in
//! the search table, changes. That table has no gaps, so entries behind those that are gone follow.

#![warn(clippy::indexing_slicing)]

use super::cfi::op;
use super::merge::{ENTRY, HEADER};
use super::pointer::{DATAREL_SDATA4, PCREL_SDATA4, UDATA4};
use crate::{ErrorKind, FormatError};

/// Bytes of a table that are others than before: its address, and they.
pub type Changed = Vec<(u64, Vec<u8>)>;

/// Takes entries of code that `is_gone` out of the search table `bytes` at `addr`, as [`write_merged`] writes it. Gives
/// its bytes that are others then, and the addresses of the FDEs that nothing leads to any more, ascending.
///
/// [`write_merged`]: super::eh_frame::write_merged
///
/// # Errors
///
/// A table of another kind.
pub fn search_table_without(
    bytes: &[u8],
    addr: u64,
    is_gone: impl Fn(u64) -> bool,
) -> Result<(Changed, Vec<u64>), FormatError> {
    let table = || {
        let (header, rest) = bytes.split_first_chunk::<{ HEADER as usize }>()?;
        let (encodings, rest_of_header) = header.split_first_chunk::<4>()?;
        let count = rest_of_header.last_chunk::<4>()?;
        let size = (u32::from_le_bytes(*count) as usize).checked_mul(ENTRY as usize)?;
        let known = *encodings == [1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4];
        known.then_some(rest.get(..size)?)
    };
    let entries = table().ok_or_else(|| {
        FormatError::new("the search table is none that was written here")
            .of(ErrorKind::Unsupported)
            .at_address(addr)
    })?;
    let mut first = None;
    let (mut left, mut fdes) = (Vec::new(), Vec::new());
    for (number, entry) in entries.chunks_exact(ENTRY as usize).enumerate() {
        let target = |at: usize| {
            let word = entry.get(at..).and_then(<[u8]>::first_chunk::<4>);
            let distance = i32::from_le_bytes(word.copied().unwrap_or_default());
            addr.wrapping_add_signed(i64::from(distance))
        };
        if is_gone(target(0)) {
            first.get_or_insert(number);
            fdes.push(target(4));
        } else if first.is_some() {
            left.extend_from_slice(entry);
        }
    }
    let Some(first) = first else {
        return Ok((Vec::new(), fdes));
    };
    fdes.sort_unstable();
    let place = first * ENTRY as usize;
    let count = (place + left.len()) / ENTRY as usize;
    left.resize(entries.len() - place, 0);
    let count = (count as u32).to_le_bytes().to_vec(); // it was a 32-bit number before
    let changed = vec![
        (addr + HEADER - 4, count),
        (addr + HEADER + place as u64, left),
    ];
    Ok((changed, fdes))
}

/// Makes the entries of an `.eh_frame` that are at these addresses, ascending, padding of those in front of them.
/// `bytes` begin at `addr`, with an entry that stays, and end behind the last length that is looked at, or later. Gives
/// the bytes that are others then.
///
/// # Errors
///
/// An address where no entry begins; entries of the 64-bit form, which nobody writes; one that would be too long.
pub fn entries_as_padding(bytes: &[u8], addr: u64, gone: &[u64]) -> Result<Changed, FormatError> {
    let mut gone = gone.iter().peekable();
    let mut changed = Vec::new();
    // The last entry that stays: where it is, and the length of what follows its first field.
    let mut before: Option<(usize, u32)> = None;
    let mut at = 0;
    while let Some(next) = gone.peek() {
        let wrong = |what: &str| {
            FormatError::new(what)
                .of(ErrorKind::Unsupported)
                .at_address(addr.wrapping_add(at as u64))
        };
        let here = addr.wrapping_add(at as u64);
        let field = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
        let len = field.map(|field| u32::from_le_bytes(*field));
        let len = len.filter(|len| (1..RESERVED).contains(len) && here <= **next);
        let len =
            len.ok_or_else(|| wrong("no unwind entry begins where one was to be taken out"))?;
        if here == **next {
            gone.next();
            let longer = before.as_mut().and_then(|before| {
                before.1 = before.1.checked_add(len)?.checked_add(4)?;
                (before.1 < RESERVED).then_some(*before)
            });
            let (place, longer) =
                longer.ok_or_else(|| wrong("no unwind entry can become longer"))?;
            changed.push((addr + place as u64, longer.to_le_bytes().to_vec()));
            changed.push((here, vec![op::NOP; len as usize + 4]));
        } else {
            before = Some((at, len));
        }
        at += len as usize + 4;
    }
    Ok(changed)
}

/// Lengths from there on are of other forms.
const RESERVED: u32 = 0xffff_fff0;

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::super::eh_frame::{EhFrame, NewFde, merged_sizes, write_merged};
    use super::super::pointer::Bases;
    use super::*;

    const FRAMES: u64 = 0x4000;
    const SEARCH: u64 = 0x3000;

    /// One CIE: `zR`, addresses relative to their place.
    const CIE: [u8; 20] = [
        16,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        1,
        b'z',
        b'R',
        0,
        1,
        0x78,
        16,
        1,
        PCREL_SDATA4,
        0x0c,
        7,
        8,
    ];

    const BASES: Bases = Bases {
        data: None,
        position_independent: true,
    };

    /// What a table says: start, length, and instructions without padding.
    fn said(frames: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let table = EhFrame::parse_section(frames, FRAMES, BASES).expect("it is a table");
        let said = table.fdes.iter().map(|fde| {
            let mut instructions = fde.instructions.to_vec();
            while instructions.last() == Some(&op::NOP) {
                instructions.pop();
            }
            (fde.start, fde.len, instructions)
        });
        said.collect()
    }

    /// What the search table leads to: code, and where the FDE is.
    fn searched(search: &[u8]) -> Vec<(u64, u64)> {
        let word = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let target = |bytes: &[u8]| SEARCH.wrapping_add_signed(word(bytes).into());
        let count = word(&search[8..12]) as usize;
        let entries = search[12..].chunks_exact(8).take(count);
        entries
            .map(|e| (target(&e[..4]), target(&e[4..])))
            .collect()
    }

    #[test]
    fn entries_that_are_taken_out_are_padding_and_the_others_stay_where_they_are() {
        let empty = EhFrame::parse_section(&CIE, FRAMES, BASES).expect("it is one entry");
        let starts = [0x1000, 0x1100, 0x1200, 0x1300, 0x1400];
        let new: Vec<NewFde> = starts
            .iter()
            .rev()
            .map(|start| NewFde {
                start: *start,
                len: 0x80,
                cie: 0,
                lsda: None,
                instructions: vec![0x41 + (*start >> 8) as u8; (*start >> 8 & 7) as usize],
            })
            .collect();
        let (size, searched_size) = merged_sizes(&empty, &new);
        let (mut frames, mut search) = (vec![0; size as usize], vec![0; searched_size as usize]);
        write_merged(&empty, &new, FRAMES, &mut frames, SEARCH, &mut search).expect("it fits");
        let (before, leads) = (said(&frames), searched(&search));
        assert_eq!(before.len(), starts.len());
        // Each set of them, the first of the section, whose padding the CIE has, and neighbours among them.
        for set in 0..1u32 << starts.len() {
            let is_gone = |addr: u64| {
                starts
                    .iter()
                    .position(|s| *s == addr)
                    .is_some_and(|i| set >> i & 1 != 0)
            };
            let (mut frames, mut search) = (frames.clone(), search.clone());
            let (others, gone) = search_table_without(&search, SEARCH, is_gone).expect("a table");
            assert_eq!(gone.len(), set.count_ones() as usize);
            for (at, bytes) in others {
                let at = (at - SEARCH) as usize;
                search[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            let end = gone.last().map_or(0, |last| (last - FRAMES) as usize + 4);
            let others = entries_as_padding(&frames[..end], FRAMES, &gone).expect("entries");
            for (at, bytes) in others {
                let at = (at - FRAMES) as usize;
                frames[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            let left: Vec<_> = before.iter().filter(|f| !is_gone(f.0)).cloned().collect();
            assert_eq!(said(&frames), left, "{set:#b}");
            let left: Vec<_> = leads.iter().filter(|l| !is_gone(l.0)).copied().collect();
            assert_eq!(searched(&search), left, "{set:#b}");
            assert!(search[12 + 8 * left.len()..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        let frames = [&CIE[..], &CIE, &[0; 4]].concat();
        let at = |offset: u64| FRAMES + offset;
        for gone in [[at(0)], [at(4)], [at(21)], [at(40)], [at(44)], [FRAMES - 4]] {
            assert!(
                entries_as_padding(&frames, FRAMES, &gone).is_err(),
                "{gone:x?}"
            );
        }
        assert!(entries_as_padding(&frames, FRAMES, &[at(20)]).is_ok());
        let table = [
            1,
            PCREL_SDATA4,
            UDATA4,
            DATAREL_SDATA4,
            0,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
        ];
        for bytes in [&table[..], &table[..9], &[0; 12]] {
            assert!(search_table_without(bytes, SEARCH, |_| true).is_err());
        }
    }
}

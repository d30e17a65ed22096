//! Writing the section.

use super::{Bat, Entry, EntryKind, OWNER, PAYLOAD, TYPE};
use crate::leb128::{put_signed, put_unsigned};
use crate::{ErrorKind, FormatError};

impl Bat {
    /// The section's bytes: the ones that BOLT 21 and later write for these tables, and BOLT 19 where it
    /// numbers parents rightly. An error if they exceed 4 GiB.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut out = vec![0; PAYLOAD];
        // A typical entry takes four bytes, and every other one carries a hash.
        out.reserve(self.entries.len().saturating_mul(8));
        let mut address = 0u64;
        put_unsigned(&mut out, self.hot.len() as u64);
        for table in &self.hot {
            put_unsigned(&mut out, table.start.wrapping_sub(address));
            address = table.start;
            out.extend_from_slice(&table.hash.to_le_bytes());
            put_unsigned(&mut out, table.blocks);
            let secondary = self.secondary(table);
            put_unsigned(&mut out, secondary.len() as u64);
            put_entries(
                &mut out,
                self.hot_entries(table),
                table.start,
                0,
                &mut address,
            );
            let mut before = 0;
            for offset in secondary {
                put_unsigned(&mut out, u64::from(offset - before)); // they ascend
                before = *offset;
            }
        }
        put_unsigned(&mut out, self.cold.len() as u64);
        let mut parent = 0u64;
        for table in &self.cold {
            put_unsigned(&mut out, table.start.wrapping_sub(address));
            address = table.start;
            put_unsigned(&mut out, table.parent.wrapping_sub(parent));
            parent = table.parent;
            let entries = self.cold_entries(table);
            let skew = entries.first().map_or(0, |e| e.input);
            put_unsigned(&mut out, skew.into());
            put_entries(&mut out, entries, table.start, skew, &mut address);
        }
        let size = u32::try_from(out.len() - PAYLOAD).map_err(|_| {
            FormatError::new(format!(
                "address translation tables take {} bytes; a note holds less than 4 GiB",
                out.len() - PAYLOAD
            ))
            .of(ErrorKind::TooLarge)
            .values(out.len() - PAYLOAD, u32::MAX)
        })?;
        out.resize(out.len().next_multiple_of(4), 0);
        out[0..4].copy_from_slice(&(OWNER.len() as u32 + 1).to_le_bytes());
        out[4..8].copy_from_slice(&size.to_le_bytes());
        out[8..12].copy_from_slice(&TYPE.to_le_bytes());
        out[12..12 + OWNER.len()].copy_from_slice(OWNER);
        Ok(out)
    }
}

fn put_entries(out: &mut Vec<u8>, entries: &[Entry], start: u64, skew: u32, address: &mut u64) {
    put_unsigned(out, entries.len() as u64);
    let equal = entries
        .iter()
        .take_while(|e| e.output == e.input.wrapping_sub(skew))
        .count();
    put_unsigned(out, equal as u64);
    for eight in entries[..equal].chunks(8) {
        let bits = eight
            .iter()
            .enumerate()
            .map(|(i, e)| u8::from(e.is_branch()) << i);
        out.push(bits.sum());
    }
    let (mut input, mut number) = (0i64, 0u64);
    for (i, e) in entries.iter().enumerate() {
        let at = start.wrapping_add(e.output.into());
        put_unsigned(out, at.wrapping_sub(*address));
        *address = at;
        let value = i64::from(e.value());
        if i >= equal {
            put_signed(out, value - input);
        }
        input = value;
        if let EntryKind::Block { index, hash } = e.kind {
            out.extend_from_slice(&hash.to_le_bytes());
            put_unsigned(out, u64::from(index).wrapping_sub(number));
            number = index.into();
        }
    }
}

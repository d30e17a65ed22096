//! Relocations in the compact encoding CREL (`SHT_CREL`, 0x4000_0014), which LLVM's assembler writes with
//! `--crel` and which lld keeps with `--emit-relocs`.
//!
//! A section is a header and, for each relocation, the differences from the one before it:
//!
//! | field | encoding |
//! |---|---|
//! | header | ULEB128: number of relocations × 8 + (4 if there are addends) + shift of offsets (0 to 3) |
//! | offset and flags | ULEB128 of up to 67 bits: flags in the low 3 bits (2 without addends), the difference of offsets, right-shifted, above them |
//! | symbol | SLEB128 if flag 1 is set: difference of symbol indexes, 32 bits |
//! | type | SLEB128 if flag 2 is set: difference of types, 32 bits |
//! | addend | SLEB128 if flag 4 is set: difference of addends, 64 bits |
//!
//! They are turned into records of `SHT_RELA`, which is all that the rest of the program knows.
//! Source: the CREL proposal for the generic ABI, as LLVM's documents describe it.

use super::Section;
use crate::leb128::Reader;
use crate::raw::{self, Rela};
use crate::{ErrorKind, FormatError};

/// The header's bit for relocations with addends.
const HAS_ADDENDS: u64 = 4;
const SYMBOL: u8 = 1;
const TYPE: u8 = 2;
const ADDEND: u8 = 4;
/// Bits of the flags in front of an offset, with addends.
const FLAG_BITS: u32 = 3;

/// The records of a section as `SHT_RELA` has them.
pub(super) fn records(section: &Section<'_>, data: &[u8]) -> Result<Vec<u8>, FormatError> {
    decode(data).map_err(|error| {
        error.within(format_args!(
            "section {} (relocations in the compact encoding CREL)",
            section.name
        ))
    })
}

fn decode(data: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut r = Reader::new(data, "relocations");
    let header = r.unsigned("header")?;
    let (count, shift) = (header >> 3, header & 3);
    if header & HAS_ADDENDS == 0 {
        return Err(FormatError::new(
            "they have no addends; of the relocations that a linker keeps, only those with addends can be read",
        )
        .of(ErrorKind::Unsupported));
    }
    // Each takes at least a byte.
    if count > r.left() {
        return Err(FormatError::new(format!(
            "the header says {count} relocations, and {} bytes follow it",
            r.left()
        ))
        .of(ErrorKind::Truncated)
        .at_offset(r.at() as u64)
        .values(r.left(), count));
    }
    let mut out = Vec::with_capacity((count * raw::RELA) as usize); // at most 24 times what the file holds
    let mut now = Rela::default();
    for _ in 0..count {
        let [first] = r.array("offset and flags")?;
        let mut delta = u64::from(first & 0x7f) >> FLAG_BITS;
        if first & 0x80 != 0 {
            delta |= r.unsigned("offset")? << (7 - FLAG_BITS);
        }
        now.r_offset = now.r_offset.wrapping_add(delta << shift);
        // Differences of 32-bit numbers wrap around as those do.
        if first & SYMBOL != 0 {
            now.r_sym = now.r_sym.wrapping_add(r.signed("symbol")? as u32);
        }
        if first & TYPE != 0 {
            now.r_type = now.r_type.wrapping_add(r.signed("type")? as u32);
        }
        if first & ADDEND != 0 {
            now.r_addend = now.r_addend.wrapping_add(r.signed("addend")?);
        }
        out.extend(now.bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Vec<(u64, u32, u32, i64)> {
        let records = decode(bytes).unwrap();
        (0..records.len() as u64 / raw::RELA)
            .filter_map(|i| Rela::read(&records, i * raw::RELA))
            .map(|r| (r.r_offset, r.r_type, r.r_sym, r.r_addend))
            .collect()
    }

    #[test]
    fn differences_add_up() {
        // Three relocations, offsets in units of 4 bytes: 0x10, 0x14, 0x4014.
        let bytes = [
            (3 << 3) | 4 | 2,
            (4 << 3) | 7,
            5,
            2,
            0x7c, // -4
            (1 << 3) | 1,
            0x7f,                 // symbol 4
            0x80 | TYPE | ADDEND, // offset difference 0x1000: 0 here, 0x100 << 4 in the bytes that follow
            0x80,
            0x02,
            3, // type 5
            8, // addend 4
        ];
        assert_eq!(
            decoded(&bytes),
            [(0x10, 2, 5, -4), (0x14, 2, 4, -4), (0x4014, 5, 4, 4)]
        );
    }

    #[test]
    fn no_relocations_are_a_header() {
        assert_eq!(decoded(&[4]), []);
    }

    #[test]
    fn damaged_sections_are_errors() {
        for (bytes, text) in [
            (&[][..], "header"),
            (&[8], "no addends"),
            (&[0x7c, 0], "15 relocations, and 1 bytes"),
            (&[12, 0x80], "offset"),
            (&[12, 1], "symbol"),
            (&[12, 2, 0x80], "type"),
            (&[12, 4], "addend"),
        ] {
            let error = decode(bytes).unwrap_err().to_string();
            assert!(error.contains(text), "{bytes:?}: {error}");
        }
    }
}

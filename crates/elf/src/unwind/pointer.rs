//! Encoded pointers: `DW_EH_PE_*`, as `.eh_frame`, `.eh_frame_hdr` and language-specific data use them.
//!
//! One byte says how a pointer is stored (low four bits), what it is relative to (next three) and whether it is the
//! address of a slot that holds the pointer (highest bit). Defined by the LSB core specification ("DWARF Extensions",
//! "Exception Frames").
//!
//! | bits | values |
//! |---|---|
//! | 0–3 format | 0 address (8 bytes), 1 ULEB128, 2/3/4 unsigned 2/4/8 bytes, 9 SLEB128, 0xa/0xb/0xc signed 2/4/8 bytes |
//! | 4–6 relative to | 0 nothing, 0x10 the field itself, 0x20 text, 0x30 data, 0x40 the function, 0x50 aligned address |
//! | 7 | 0x80 indirect |
//! | all | 0xff no value at all |
//!
//! Three rules of the run-time readers matter here:
//!
//! * A stored zero is a null pointer, whatever it is relative to. It stays zero when the field moves.
//! * `datarel` in `.eh_frame` counts from the address that `DT_PLTGOT` gives.
//! * `textrel`, `funcrel` and `aligned` do not occur in linked ELF files of our machines and are refused.
//!
//! An absolute pointer in a position-independent file is filled in by the dynamic loader: its bytes in the file say
//! nothing and a copy elsewhere would stay empty. It is refused too.

#![warn(clippy::indexing_slicing)]

use super::cursor::{Cursor, MAX_LEB, put_sleb_padded, put_uleb_padded, sleb_len, uleb_len};
use crate::elf::Elf;
use crate::{ErrorKind, FormatError};

/// No value.
pub const OMIT: u8 = 0xff;
/// Relative to the field, signed 4 bytes: what compilers choose nearly everywhere.
pub const PCREL_SDATA4: u8 = 0x1b;
/// Relative to the section `.eh_frame_hdr`, signed 4 bytes: its search table.
pub const DATAREL_SDATA4: u8 = 0x3b;
/// Unsigned 2 bytes.
pub const UDATA2: u8 = 0x02;
/// Unsigned 4 bytes.
pub const UDATA4: u8 = 0x03;
/// Unsigned LEB128.
pub const ULEB128: u8 = 0x01;
/// The value is the address of a slot with the pointer.
pub const INDIRECT: u8 = 0x80;
/// Mask: format.
pub const FORMAT: u8 = 0x0f;
/// Mask: what the value is relative to.
pub const RELATIVE: u8 = 0x70;
/// Relative to the field.
pub const PCREL: u8 = 0x10;
/// Relative to the data base.
pub const DATAREL: u8 = 0x30;

/// What the meaning of a pointer depends on beside its own bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bases {
    /// Base of `datarel` pointers: the value of `DT_PLTGOT`.
    pub data: Option<u64>,
    /// The file can be loaded anywhere (`ET_DYN`): absolute pointers are not in the file.
    pub position_independent: bool,
}

impl Bases {
    /// Of a file.
    pub fn of(elf: &Elf<'_>) -> Self {
        use crate::raw::DT_PLTGOT;
        const ET_DYN: u16 = 3;
        Bases {
            data: elf.dynamic_value(DT_PLTGOT),
            position_independent: elf.etype == ET_DYN,
        }
    }
}

/// Whether encoded values depend on the place of their field.
pub fn is_pcrel(encoding: u8) -> bool {
    encoding != OMIT && encoding & RELATIVE == PCREL
}

/// Bytes of a value; LEB128 counts as the longest, which is what is written.
pub fn size(encoding: u8) -> Option<usize> {
    Some(match encoding & FORMAT {
        _ if encoding == OMIT => 0,
        0x00 | 0x04 | 0x0c => 8,
        0x01 | 0x09 => MAX_LEB,
        0x02 | 0x0a => 2,
        0x03 | 0x0b => 4,
        _ => return None,
    })
}

/// Refuses encodings that cannot be read here; `what` names the pointer in the error.
pub(crate) fn check(encoding: u8, bases: &Bases, what: &str) -> Result<(), FormatError> {
    let refuse = |why: &str| {
        Err(FormatError::new(format!(
            "{what} has pointer encoding {encoding:#04x}: {why}"
        ))
        .of(ErrorKind::Unsupported)
        .values(encoding, why))
    };
    if encoding == OMIT {
        return Ok(());
    }
    if size(encoding).is_none() {
        return refuse("its format is unknown");
    }
    match encoding & RELATIVE {
        0x00 if bases.position_independent => {
            refuse("an absolute pointer in a position-independent file cannot be copied")
        }
        0x00 | PCREL => Ok(()),
        DATAREL if bases.data.is_some() => Ok(()),
        DATAREL => refuse("it is relative to DT_PLTGOT, which the file does not have"),
        0x20 => refuse("text-relative pointers are not supported"),
        0x40 => refuse("function-relative pointers are not supported"),
        0x50 => refuse("aligned pointers are not supported"),
        _ => refuse("what it is relative to is unknown"),
    }
}

/// The stored number, sign-extended, without its base.
pub(crate) fn read_raw(
    encoding: u8,
    cursor: &mut Cursor<'_>,
    what: &str,
) -> Result<u64, FormatError> {
    Ok(match encoding & FORMAT {
        0x00 | 0x04 | 0x0c => cursor.u64(what)?,
        0x01 => cursor.uleb(what)?,
        0x02 => cursor.u16(what)?.into(),
        0x03 => cursor.u32(what)?.into(),
        0x09 => cursor.sleb(what)? as u64,
        0x0a => cursor.u16(what)? as i16 as i64 as u64,
        0x0b => cursor.u32(what)? as i32 as i64 as u64,
        _ => {
            return Err(FormatError::new(format!(
                "{what} at {:#x} has pointer encoding {encoding:#04x}: its format is unknown",
                cursor.addr()
            ))
            .of(ErrorKind::Unsupported)
            .at_address(cursor.addr())
            .values(encoding, "a known format"));
        }
    })
}

/// Reads a pointer: its link-time address (of the slot if the encoding is indirect), 0 for null.
pub(crate) fn read(
    encoding: u8,
    cursor: &mut Cursor<'_>,
    bases: &Bases,
    what: &str,
) -> Result<u64, FormatError> {
    check(encoding, bases, what)?;
    let field = cursor.addr();
    let raw = read_raw(encoding, cursor, what)?;
    if raw == 0 {
        return Ok(0);
    }
    Ok(raw.wrapping_add(base(encoding, field, bases)))
}

fn base(encoding: u8, field: u64, bases: &Bases) -> u64 {
    match encoding & RELATIVE {
        PCREL => field,
        // `check` has seen that there is one.
        DATAREL => bases.data.unwrap_or(0),
        _ => 0,
    }
}

/// Bytes of a pointer to `target` in a field at `field`: appended to `out`, [`size`] of them. A null pointer is 0.
/// Error, with both addresses, if the distance does not fit.
pub(crate) fn write(
    out: &mut Vec<u8>,
    encoding: u8,
    target: u64,
    field: u64,
    bases: &Bases,
    what: &str,
) -> Result<(), FormatError> {
    check(encoding, bases, what)?;
    let len = size(encoding).unwrap_or(0);
    if target == 0 {
        return write_raw(out, encoding, 0, len, || format!("{what} at {field:#x}"));
    }
    let raw = target.wrapping_sub(base(encoding, field, bases));
    if raw == 0 {
        return Err(FormatError::new(format!(
            "{what} at {field:#x} to {target:#x} would be stored as zero, which reads as null"
        ))
        .of(ErrorKind::Unsupported)
        .at_address(field)
        .values(target, "a value that is not null"));
    }
    write_raw(out, encoding, raw, len, || {
        format!("{what} at {field:#x} to {target:#x}")
    })
}

/// Appends a stored number in exactly `len` bytes; `what` begins the error sentence.
pub(crate) fn write_raw(
    out: &mut Vec<u8>,
    encoding: u8,
    raw: u64,
    len: usize,
    what: impl FnOnce() -> String,
) -> Result<(), FormatError> {
    let signed = raw as i64;
    let fits = match encoding & FORMAT {
        0x00 | 0x04 | 0x0c => true,
        0x01 => uleb_len(raw) <= len,
        0x02 => u16::try_from(raw).is_ok(),
        0x03 => u32::try_from(raw).is_ok(),
        0x09 => sleb_len(signed) <= len,
        0x0a => i16::try_from(signed).is_ok(),
        0x0b => i32::try_from(signed).is_ok(),
        _ => false,
    };
    if !fits {
        return Err(FormatError::new(format!(
            "{}: the value {signed:#x} does not fit pointer encoding {encoding:#04x}",
            what()
        ))
        .of(ErrorKind::TooLarge)
        .values(signed, encoding));
    }
    match encoding & FORMAT {
        0x01 => put_uleb_padded(out, raw, len),
        0x09 => put_sleb_padded(out, signed, len),
        // `len` is the format's size, at most 8.
        _ => out.extend(raw.to_le_bytes().into_iter().take(len)),
    }
    Ok(())
}

/// Adjusts a pointer in place after its bytes were copied from `old` to `new` addresses: only position-relative ones
/// change, and null stays null. `bytes` begins with the field; its length is kept.
pub(crate) fn relocate(
    encoding: u8,
    bytes: &mut [u8],
    old: u64,
    new: u64,
    scratch: &mut Vec<u8>,
    what: &str,
) -> Result<(), FormatError> {
    if !is_pcrel(encoding) {
        return Ok(());
    }
    let mut cursor = Cursor::new(bytes, old);
    let raw = read_raw(encoding, &mut cursor, what)?;
    let len = cursor.pos();
    if raw == 0 {
        return Ok(());
    }
    let target = raw.wrapping_add(old);
    scratch.clear();
    write_raw(scratch, encoding, target.wrapping_sub(new), len, || {
        format!("{what} at {new:#x} to {target:#x}")
    })?;
    // `read_raw` read `len` bytes of it, and as many were written.
    for (byte, new) in bytes.iter_mut().zip(scratch) {
        *byte = *new;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::*;

    const ANY: Bases = Bases {
        data: Some(0x8000),
        position_independent: false,
    };

    #[test]
    fn every_encoding_gives_back_the_address_that_was_written() {
        for format in [0u8, 1, 2, 3, 4, 9, 0xa, 0xb, 0xc] {
            for relative in [0, PCREL, DATAREL] {
                for indirect in [0, INDIRECT] {
                    let encoding = format | relative | indirect;
                    for target in [0u64, 0x7000, 0x8123] {
                        let mut out = Vec::new();
                        let field = 0x6000;
                        let result = write(&mut out, encoding, target, field, &ANY, "it");
                        let unsigned = matches!(format, 2 | 3);
                        let too_big = format == 0xa && relative == 0 && target > 0x7fff;
                        let negative = unsigned && relative == DATAREL && target == 0x7000;
                        if too_big || negative {
                            assert!(result.unwrap_err().what.contains("does not fit"));
                            continue;
                        }
                        result.unwrap();
                        assert_eq!(out.len(), size(encoding).unwrap());
                        let mut c = Cursor::new(&out, field);
                        assert_eq!(
                            read(encoding, &mut c, &ANY, "it").unwrap(),
                            target,
                            "{encoding:#x}"
                        );
                        assert!(c.is_empty());
                    }
                }
            }
        }
    }

    #[test]
    fn relocation_keeps_target_length_and_null() {
        for encoding in [0x10u8, 0x11, 0x19, 0x1a, 0x1b, 0x1c, 0x9b] {
            for target in [0u64, 0x5500] {
                let mut out = Vec::new();
                write(&mut out, encoding, target, 0x5000, &ANY, "it").unwrap();
                let len = out.len();
                relocate(encoding, &mut out, 0x5000, 0x5480, &mut Vec::new(), "it").unwrap();
                assert_eq!(out.len(), len);
                assert_eq!(
                    read(encoding, &mut Cursor::new(&out, 0x5480), &ANY, "it").unwrap(),
                    target
                );
            }
        }
        let mut near = vec![0, 0x10, 0, 0];
        let e = relocate(
            0x1b,
            &mut near,
            0x1000,
            0x2_0000_0000,
            &mut Vec::new(),
            "the LSDA pointer",
        )
        .unwrap_err();
        assert!(
            e.what.contains("0x200000000") && e.what.contains("to 0x2000"),
            "{}",
            e.what
        );
    }

    #[test]
    fn what_cannot_be_copied_is_refused() {
        let pie = Bases {
            data: None,
            position_independent: true,
        };
        for encoding in [0x00u8, 0x04, 0x20, 0x30, 0x40, 0x50, 0x60, 0x15, 0x1d] {
            assert!(
                read(encoding, &mut Cursor::new(&[1; 16], 0), &pie, "it").is_err(),
                "{encoding:#x}"
            );
        }
        assert!(read(0x1b, &mut Cursor::new(&[1; 16], 0), &pie, "it").is_ok());
    }
}

//! Encoded pointers (`DW_EH_PE_*`) of unwind tables, read as the run-time reads them.
//!
//! | bits | meaning |
//! |---|---|
//! | 0..=3 | format: 0 and 4 and 12 eight bytes, 1 uleb, 2 u16, 3 u32, 9 sleb, 10 s16, 11 s32 |
//! | 4..=6 | base: 0 none, 1 the field itself, 3 the table (`.eh_frame_hdr`), 4 the function |
//! | 7 | the result is the address of the pointer |
//! | 0xff | omitted |
//!
//! A stored zero is the null pointer whatever the base.

use crate::files::bytes::Reader;

/// `DW_EH_PE_omit`
pub(crate) const OMIT: u8 = 0xff;

/// Where relative pointers start from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bases {
    /// Address of the reader's first byte.
    pub section: u64,
    /// Base of data-relative pointers.
    pub data: u64,
    /// Base of function-relative pointers.
    pub function: u64,
}

/// A decoded pointer: address, and whether it is that of a slot holding the real one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pointer {
    pub addr: u64,
    pub indirect: bool,
}

impl Pointer {
    pub(crate) const NULL: Pointer = Pointer {
        addr: 0,
        indirect: false,
    };
}

/// Size in bytes of a fixed-size format.
pub(crate) fn size(encoding: u8) -> Option<u64> {
    match encoding & 0x0f {
        0 | 4 | 12 => Some(8),
        2 | 10 => Some(2),
        3 | 11 => Some(4),
        _ => None,
    }
}

/// Reads the value without any base.
pub(crate) fn read_value(r: &mut Reader<'_>, encoding: u8) -> Option<u64> {
    Some(match encoding & 0x0f {
        0 | 4 | 12 => r.u64()?,
        1 => r.uleb()?,
        2 => u64::from(r.u16()?),
        3 => u64::from(r.u32()?),
        9 => r.sleb()? as u64,
        10 => i64::from(r.u16()? as i16) as u64,
        11 => i64::from(r.u32()? as i32) as u64,
        _ => return None,
    })
}

/// Reads a pointer.
pub(crate) fn read(r: &mut Reader<'_>, encoding: u8, bases: &Bases) -> Option<Pointer> {
    if encoding == OMIT {
        return Some(Pointer::NULL);
    }
    let field = bases.section.wrapping_add(r.pos() as u64);
    let value = read_value(r, encoding)?;
    if value == 0 {
        return Some(Pointer::NULL);
    }
    let base = match encoding & 0x70 {
        0x00 => 0,
        0x10 => field,
        0x30 => bases.data,
        0x40 => bases.function,
        _ => return None,
    };
    Some(Pointer {
        addr: base.wrapping_add(value),
        indirect: encoding & 0x80 != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_relative_to_themselves_and_null_are_told_apart() {
        let bases = Bases {
            section: 0x1000,
            data: 0x2000,
            function: 0x3000,
        };
        let at = |bytes: &[u8], encoding| read(&mut Reader::new(bytes), encoding, &bases);
        assert_eq!(
            at(&[0xfc, 0xff, 0xff, 0xff], 0x1b),
            Some(Pointer {
                addr: 0xffc,
                indirect: false
            })
        );
        assert_eq!(
            at(&[8, 0, 0, 0], 0x9b),
            Some(Pointer {
                addr: 0x1008,
                indirect: true
            })
        );
        assert_eq!(at(&[0; 4], 0x9b), Some(Pointer::NULL));
        assert_eq!(
            at(&[8, 0, 0, 0], 0x3b),
            Some(Pointer {
                addr: 0x2008,
                indirect: false
            })
        );
        assert_eq!(at(&[], OMIT), Some(Pointer::NULL));
        assert_eq!(at(&[1, 2], 0x1b), None);
        assert_eq!(at(&[8, 0, 0, 0], 0x5b), None);
    }
}

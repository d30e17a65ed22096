//! Forms: how many bytes an attribute's value takes.
//!
//! | bytes | forms |
//! |---|---|
//! | none | `flag_present`, `implicit_const` (its value is in the abbreviation) |
//! | 1, 2, 3, 4, 8, 16 | `data…`, `ref…`, `flag`, `strx…`, `addrx…`, `ref_sig8` |
//! | size of an offset | `sec_offset`, `strp`, `line_strp`, `ref_addr` (from DWARF 3 on; an address in DWARF 2) |
//! | size of an address | `addr` |
//! | as many as the number needs | `udata`, `sdata`, and indexes and references with variable length |
//! | a length and as much | `block…`, `exprloc`; strings end with a zero byte |
//! | a form and its value | `indirect` |

use crate::Error;
use crate::names::form;
use crate::read::Reader;

/// What sizes depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Encoding {
    /// DWARF version, 2 to 5.
    pub version: u16,
    /// 4 or 8.
    pub offset_size: u8,
}

/// Bytes of an address: only 64-bit programs are updated.
pub(crate) const ADDRESS_SIZE: u8 = 8;

impl Encoding {
    /// Whether a value of this form is an offset in versions that have no form for it.
    pub fn is_offset(self, f: u16) -> bool {
        match f {
            form::SEC_OFFSET => true,
            form::DATA4 => self.version < 4 && self.offset_size == 4,
            form::DATA8 => self.version < 4 && self.offset_size == 8,
            _ => false,
        }
    }

    /// The form of an offset into another section.
    pub fn offset_form(self) -> u16 {
        match (self.version, self.offset_size) {
            (..4, 8) => form::DATA8,
            (..4, _) => form::DATA4,
            _ => form::SEC_OFFSET,
        }
    }
}

/// Number of bytes of a form, if all its values have as many.
pub(crate) fn fixed_size(f: u16, encoding: Encoding) -> Option<u8> {
    Some(match f {
        form::FLAG_PRESENT | form::IMPLICIT_CONST => 0,
        form::DATA1 | form::REF1 | form::FLAG | form::STRX1 | form::ADDRX1 => 1,
        form::DATA2 | form::REF2 | form::STRX2 | form::ADDRX2 => 2,
        form::STRX3 | form::ADDRX3 => 3,
        form::DATA4 | form::REF4 | form::STRX4 | form::ADDRX4 | form::REF_SUP4 => 4,
        form::DATA8 | form::REF8 | form::REF_SIG8 | form::REF_SUP8 => 8,
        form::DATA16 => 16,
        form::ADDR => ADDRESS_SIZE,
        form::REF_ADDR if encoding.version == 2 => ADDRESS_SIZE,
        form::SEC_OFFSET
        | form::STRP
        | form::LINE_STRP
        | form::STRP_SUP
        | form::REF_ADDR
        | form::GNU_REF_ALT
        | form::GNU_STRP_ALT => encoding.offset_size,
        _ => return None,
    })
}

/// Reads over a value of a form; `indirect` has been resolved.
#[inline]
pub(crate) fn skip(r: &mut Reader<'_>, f: u16, encoding: Encoding) -> Result<(), Error> {
    match f {
        form::EXPRLOC | form::BLOCK => r.uleb().and_then(|len| r.skip(len)),
        form::BLOCK1 | form::BLOCK2 | form::BLOCK4 => block(r, f).map(drop),
        form::UDATA
        | form::REF_UDATA
        | form::STRX
        | form::ADDRX
        | form::LOCLISTX
        | form::RNGLISTX
        | form::GNU_ADDR_INDEX
        | form::GNU_STR_INDEX => r.skip_leb(),
        form::SDATA => r.sleb().map(drop),
        form::STRING => r.string().map(drop),
        form::LLVM_ADDRX_OFFSET => r.uleb().and_then(|_| r.skip(4)),
        _ => match fixed_size(f, encoding) {
            Some(size) => r.skip(size.into()),
            None => Err(r.error(format!("the unknown form {f:#x}"))),
        },
    }
}

/// Reads a block of bytes with its length.
pub(crate) fn block<'d>(r: &mut Reader<'d>, f: u16) -> Result<&'d [u8], Error> {
    let len = match f {
        form::BLOCK1 => r.number(1)?,
        form::BLOCK2 => r.number(2)?,
        form::BLOCK4 => r.number(4)?,
        _ => r.uleb()?,
    };
    r.bytes(len)
}

/// Whether the form is an index into the address pool. Those with an offset after the index count as well.
pub(crate) fn is_address_index(f: u16) -> bool {
    matches!(
        f,
        form::ADDRX
            | form::ADDRX1
            | form::ADDRX2
            | form::ADDRX3
            | form::ADDRX4
            | form::GNU_ADDR_INDEX
            | form::LLVM_ADDRX_OFFSET
    )
}

/// Whether the form is a block of bytes whose contents may be an expression.
pub(crate) fn is_block(f: u16) -> bool {
    matches!(
        f,
        form::EXPRLOC | form::BLOCK1 | form::BLOCK2 | form::BLOCK4 | form::BLOCK
    )
}

//! DWARF expressions: addresses in them.
//!
//! `DW_OP_addr` and `DW_OP_addrx` name variables, which stay, but also functions and labels: arguments of
//! templates, values that a call passes, targets of calls. Those are given the value that a pointer has now.
//! An expression without the byte of one of these operations is not decoded. Decoding ends at an operation
//! that is not known; if such a byte follows, that is a loss.

use crate::Error;
use crate::forms::Encoding;
use crate::read::Reader;

/// Operations that name addresses.
mod op {
    pub const ADDR: u8 = 0x03;
    pub const ADDRX: u8 = 0xa1;
    pub const CONSTX: u8 = 0xa2;
    pub const GNU_ADDR_INDEX: u8 = 0xfb;
    pub const GNU_CONST_INDEX: u8 = 0xfc;
}

/// An address in an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    /// Where its operation begins in the expression.
    pub at: usize,
    /// Bytes of the operand after the operation's byte.
    pub size: u8,
    /// It is in an expression inside of this one, whose length is fixed.
    pub inner: bool,
    pub kind: OperandKind,
}

/// How it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperandKind {
    /// As it is.
    Address(u64),
    /// As an index into the pool.
    Index(u64),
    /// As an index of a number that is no address of code (a thread-local variable's offset).
    Constant(u64),
}

/// By byte: whether it is an operation that names an address.
#[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
const NAMES: [bool; 256] = {
    let mut names = [false; 256];
    names[op::ADDR as usize] = true;
    names[op::ADDRX as usize] = true;
    names[op::CONSTX as usize] = true;
    names[op::GNU_ADDR_INDEX as usize] = true;
    names[op::GNU_CONST_INDEX as usize] = true;
    names
};

/// Whether an expression has a byte that may be an operation that names an address.
#[inline]
#[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
pub(crate) fn may_name(expression: &[u8]) -> bool {
    expression.iter().any(|byte| NAMES[usize::from(*byte)])
}

/// Addresses of an expression, in order. `Ok(None)`: it has an operation that is not known, in front of a
/// byte that may be one.
pub(crate) fn operands(
    expression: &[u8],
    encoding: Encoding,
) -> Result<Option<Vec<Operand>>, Error> {
    let mut out = Vec::new();
    if !may_name(expression) {
        return Ok(Some(out));
    }
    let mut r = Reader::new(expression, 0, "expression")?;
    while !r.is_empty() {
        let at = r.at;
        let code = r.u8()?;
        let kind = match code {
            op::ADDR => OperandKind::Address(r.number(8)?),
            op::ADDRX | op::GNU_ADDR_INDEX => OperandKind::Index(r.uleb()?),
            op::CONSTX | op::GNU_CONST_INDEX => OperandKind::Constant(r.uleb()?),
            _ => {
                if !skip(&mut r, code, encoding, &mut out)? {
                    let unknown = expression.get(at..).is_some_and(may_name);
                    return Ok((!unknown).then_some(out));
                }
                continue;
            }
        };
        out.push(Operand {
            at,
            size: (r.at - at - 1) as u8, // a number has few bytes
            inner: false,
            kind,
        });
    }
    Ok(Some(out))
}

/// Reads over the operands of an operation; `false` if it is not known. Addresses in an expression inside of
/// it are found as well.
fn skip(
    r: &mut Reader<'_>,
    code: u8,
    encoding: Encoding,
    out: &mut Vec<Operand>,
) -> Result<bool, Error> {
    let offset = u64::from(encoding.offset_size);
    match code {
        // deref, dup … over, swap … plus, shl … xor, comparisons, nop, push_object_address, form_tls_address,
        // call_frame_cfa, stack_value, literals, registers, GNU push_tls_address and uninit.
        0x06
        | 0x12..=0x14
        | 0x16..=0x22
        | 0x24..=0x27
        | 0x29..=0x2e
        | 0x30..=0x6f
        | 0x96
        | 0x97
        | 0x9b
        | 0x9c
        | 0x9f
        | 0xe0
        | 0xf0 => {}
        0x08 | 0x09 | 0x15 | 0x94 | 0x95 => drop(r.bytes(1)?), // const1u, const1s, pick, deref_size, xderef_size
        0x0a | 0x0b | 0x28 | 0x2f | 0x98 => drop(r.bytes(2)?), // const2u, const2s, bra, skip, call2
        0x0c | 0x0d | 0x99 => drop(r.bytes(4)?),               // const4u, const4s, call4
        0x0e | 0x0f => drop(r.bytes(8)?),                      // const8u, const8s
        // constu, plus_uconst, regx, piece, convert, reinterpret
        0x10 | 0x23 | 0x90 | 0x93 | 0xa8 | 0xa9 | 0xf7 | 0xf9 => drop(r.uleb()?),
        0x11 | 0x70..=0x8f | 0x91 => drop(r.sleb()?), // consts, breg0 … breg31, fbreg
        0x92 => drop((r.uleb()?, r.sleb()?)),         // bregx
        0x9a => drop(r.bytes(offset)?),               // call_ref
        0x9d => drop((r.uleb()?, r.uleb()?)),         // bit_piece
        0x9e => {
            // implicit_value
            let len = r.uleb()?;
            r.bytes(len)?;
        }
        0xa0 | 0xf2 => {
            // implicit_pointer; in DWARF 2 the reference has the size of an address
            let size = if encoding.version == 2 { 8 } else { offset };
            r.bytes(size)?;
            r.sleb()?;
        }
        0xa3 | 0xf3 => {
            // entry_value: an expression
            let len = r.uleb()?;
            let base = r.at;
            let inner = r.bytes(len)?;
            match operands(inner, encoding)? {
                Some(list) => out.extend(list.into_iter().map(|o| Operand {
                    at: o.at + base,
                    inner: true,
                    ..o
                })),
                None => return Ok(false),
            }
        }
        0xa4 | 0xf4 => {
            // const_type: type, size, value
            r.uleb()?;
            let len = r.number(1)?;
            r.bytes(len)?;
        }
        0xa5 | 0xf5 => drop((r.uleb()?, r.uleb()?)), // regval_type
        0xa6 | 0xa7 | 0xf6 => {
            r.bytes(1)?; // deref_type, xderef_type
            r.uleb()?;
        }
        0xfa => drop(r.bytes(4)?),      // GNU parameter_ref
        0xfd => drop(r.bytes(offset)?), // GNU variable_value
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENCODING: Encoding = Encoding {
        version: 5,
        offset_size: 4,
    };

    #[test]
    fn addresses_are_found_behind_other_operations_and_inside_entry_values() {
        // lit3; entry_value(addr 0x1234); piece 8; addrx 5
        let mut e = vec![0x33, 0xa3, 9, 0x03];
        e.extend(0x1234u64.to_le_bytes());
        e.extend([0x93, 8, 0xa1, 5]);
        let found = operands(&e, ENCODING).unwrap().unwrap();
        let expected = [
            (3, 8, OperandKind::Address(0x1234)),
            (14, 1, OperandKind::Index(5)),
        ];
        let found: Vec<_> = found.iter().map(|o| (o.at, o.size, o.kind)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn unknown_operations_matter_only_in_front_of_an_address() {
        assert_eq!(operands(&[0xe9, 1, 2], ENCODING), Ok(Some(vec![])));
        assert_eq!(operands(&[0x03 ^ 1, 1, 0x03], ENCODING), Ok(None));
        assert_eq!(operands(&[0x91, 0x03], ENCODING), Ok(Some(vec![])));
        assert!(operands(&[0x03, 0, 0], ENCODING).is_err());
    }
}

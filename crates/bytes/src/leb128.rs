//! LEB128: numbers of any length, seven bits a byte, lowest first; the top bit says that more follow.
//!
//! Assemblers pad numbers to reserve space: the last bytes then hold nothing but zeros, of negative ones
//! nothing but ones.

/// The longest form of a number of 64 bits that is not padded, in bytes.
pub const LONGEST: usize = 10;

/// Bytes that [`put_unsigned`] takes.
pub fn unsigned_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Bytes that [`put_signed`] takes.
pub fn signed_len(value: i64) -> usize {
    // One bit more for the sign.
    let bits = 65 - (value ^ (value >> 63)).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends an unsigned number in its shortest form.
#[inline]
pub fn put_unsigned(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else {
        put_long_unsigned(out, value);
    }
}

fn put_long_unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends an unsigned number in exactly `len` bytes; `len` must be at least [`unsigned_len`].
pub fn put_unsigned_padded(out: &mut Vec<u8>, mut value: u64, len: usize) {
    assert!(len >= unsigned_len(value));
    for i in 0..len {
        let more = if i + 1 < len { 0x80 } else { 0 };
        out.push((value & 0x7f) as u8 | more);
        value >>= 7;
    }
}

/// Appends a signed number in its shortest form.
#[inline]
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    if (-0x40..0x40).contains(&value) {
        out.push(value as u8 & 0x7f);
    } else {
        put_signed_padded(out, value, signed_len(value));
    }
}

/// Appends a signed number in exactly `len` bytes; `len` must be at least [`signed_len`].
pub fn put_signed_padded(out: &mut Vec<u8>, mut value: i64, len: usize) {
    assert!(len >= signed_len(value));
    for i in 0..len {
        let more = if i + 1 < len { 0x80 } else { 0 };
        out.push((value & 0x7f) as u8 | more);
        value >>= 7;
    }
}

//! A checked reader over bytes that have a link-time address, and LEB128 numbers.
//!
//! Every table of this module is read through [`Cursor`]: it knows the address of the byte it stands on (for
//! position-relative pointers and for error sentences) and never reads past its end.
//!
//! LEB128 numbers are accepted in any length up to ten bytes, since assemblers pad them to reserve room; a number that
//! does not fit 64 bits is an error.

use crate::FormatError;

/// A position in bytes of a known address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'d> {
    data: &'d [u8],
    pos: usize,
    addr: u64,
}

/// The longest LEB128 number of 64 bits.
pub(crate) const MAX_LEB: usize = 10;

impl<'d> Cursor<'d> {
    /// Starts at the first byte of `data`, which lies at `addr`.
    pub(crate) fn new(data: &'d [u8], addr: u64) -> Self {
        Cursor { data, pos: 0, addr }
    }
    /// Link-time address of the next byte.
    pub(crate) fn addr(&self) -> u64 {
        self.addr.wrapping_add(self.pos as u64)
    }
    /// Bytes read so far.
    pub(crate) fn pos(&self) -> usize {
        self.pos
    }
    /// Everything from the next byte on.
    pub(crate) fn rest(&self) -> &'d [u8] {
        // `pos` only grows through `take`, which checks it.
        &self.data[self.pos..]
    }
    /// Whether all is read.
    pub(crate) fn is_empty(&self) -> bool {
        self.pos == self.data.len()
    }
    /// The next `len` bytes; `what` names them in the error.
    pub(crate) fn take(&mut self, len: u64, what: &str) -> Result<&'d [u8], FormatError> {
        let rest = self.rest();
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(bytes) => {
                self.pos += bytes.len();
                Ok(bytes)
            }
            None => Err(FormatError::new(format!(
                "{what} at {:#x} takes {len} bytes, but only {} are left",
                self.addr(),
                rest.len()
            ))),
        }
    }
    /// A cursor over the next `len` bytes, which are skipped here.
    pub(crate) fn sub(&mut self, len: u64, what: &str) -> Result<Cursor<'d>, FormatError> {
        let addr = self.addr();
        Ok(Cursor::new(self.take(len, what)?, addr))
    }
    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], FormatError> {
        let bytes = self.take(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }
    /// One byte.
    pub(crate) fn u8(&mut self, what: &str) -> Result<u8, FormatError> {
        self.array::<1>(what).map(|b| b[0])
    }
    /// Little-endian.
    pub(crate) fn u16(&mut self, what: &str) -> Result<u16, FormatError> {
        self.array(what).map(u16::from_le_bytes)
    }
    /// Little-endian.
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, FormatError> {
        self.array(what).map(u32::from_le_bytes)
    }
    /// Little-endian.
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, FormatError> {
        self.array(what).map(u64::from_le_bytes)
    }
    /// Bytes up to a zero byte, which is skipped.
    pub(crate) fn string(&mut self, what: &str) -> Result<&'d [u8], FormatError> {
        let rest = self.rest();
        let Some(len) = rest.iter().position(|&b| b == 0) else {
            return Err(FormatError::new(format!(
                "{what} at {:#x} has no end",
                self.addr()
            )));
        };
        self.pos += len + 1;
        Ok(&rest[..len])
    }
    /// Unsigned LEB128.
    pub(crate) fn uleb(&mut self, what: &str) -> Result<u64, FormatError> {
        let addr = self.addr();
        // Nearly all are one byte.
        let first = self.u8(what)?;
        if first < 0x80 {
            return Ok(first.into());
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            if shift > 63 || (shift == 63 && bits > 1) {
                return Err(FormatError::new(format!(
                    "{what} at {addr:#x} is a number of more than 64 bits"
                )));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
    }
    /// Signed LEB128.
    pub(crate) fn sleb(&mut self, what: &str) -> Result<i64, FormatError> {
        let addr = self.addr();
        let mut value = 0u64;
        let mut shift = 0;
        loop {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte holds the sign alone: all of its bits are equal.
            if shift > 63 || (shift == 63 && bits != 0 && bits != 0x7f) {
                return Err(FormatError::new(format!(
                    "{what} at {addr:#x} is a number of more than 64 bits"
                )));
            }
            value |= bits << shift;
            shift += 7;
            if byte < 0x80 {
                if byte & 0x40 != 0 && shift < 64 {
                    value |= u64::MAX << shift;
                }
                return Ok(value as i64);
            }
        }
    }
}

/// Bytes that [`put_uleb`] takes.
pub(crate) fn uleb_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Bytes that [`put_sleb`] takes.
pub(crate) fn sleb_len(value: i64) -> usize {
    // One bit more for the sign.
    let bits = 65 - (value ^ (value >> 63)).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends the shortest unsigned LEB128.
pub(crate) fn put_uleb(out: &mut Vec<u8>, value: u64) {
    put_uleb_padded(out, value, uleb_len(value));
}

/// Appends an unsigned LEB128 of exactly `len` bytes; `len` must be at least [`uleb_len`].
pub(crate) fn put_uleb_padded(out: &mut Vec<u8>, mut value: u64, len: usize) {
    debug_assert!(len >= uleb_len(value));
    for i in 0..len {
        let more = if i + 1 < len { 0x80 } else { 0 };
        out.push((value & 0x7f) as u8 | more);
        value >>= 7;
    }
}

/// Appends the shortest signed LEB128.
pub(crate) fn put_sleb(out: &mut Vec<u8>, value: i64) {
    put_sleb_padded(out, value, sleb_len(value));
}

/// Appends a signed LEB128 of exactly `len` bytes; `len` must be at least [`sleb_len`].
pub(crate) fn put_sleb_padded(out: &mut Vec<u8>, mut value: i64, len: usize) {
    debug_assert!(len >= sleb_len(value));
    for i in 0..len {
        let more = if i + 1 < len { 0x80 } else { 0 };
        out.push((value & 0x7f) as u8 | more);
        value >>= 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leb128_round_trips_at_every_width_and_padding() {
        let mut values = vec![
            0u64,
            1,
            0x7f,
            0x80,
            u64::MAX,
            i64::MAX as u64,
            i64::MIN as u64,
        ];
        values.extend((0..64).flat_map(|s| [1u64 << s, (1u64 << s).wrapping_sub(1), !(1u64 << s)]));
        for value in values {
            let mut out = Vec::new();
            put_uleb(&mut out, value);
            assert_eq!(out.len(), uleb_len(value));
            assert_eq!(Cursor::new(&out, 0).uleb("n").unwrap(), value);
            let signed = value as i64;
            out.clear();
            put_sleb(&mut out, signed);
            assert_eq!(out.len(), sleb_len(signed), "{signed:#x}");
            assert_eq!(Cursor::new(&out, 0).sleb("n").unwrap(), signed);
            out.clear();
            put_uleb_padded(&mut out, value, MAX_LEB);
            put_sleb_padded(&mut out, signed, MAX_LEB);
            let mut c = Cursor::new(&out, 0);
            assert_eq!(
                (c.uleb("n").unwrap(), c.sleb("n").unwrap()),
                (value, signed)
            );
            assert!(c.is_empty());
        }
    }

    #[test]
    fn leb128_of_more_than_64_bits_and_cut_ones_are_errors() {
        let mut long = vec![0xff; 9];
        long.push(0x02);
        assert!(Cursor::new(&long, 0).uleb("n").is_err());
        assert!(Cursor::new(&long, 0).sleb("n").is_err());
        assert!(Cursor::new(&[0x80; 11], 0).uleb("n").is_err());
        assert!(Cursor::new(&[0x80], 0).sleb("n").is_err());
        assert!(Cursor::new(&[], 0).uleb("n").is_err());
    }

    #[test]
    fn errors_name_the_address_and_both_lengths() {
        let mut c = Cursor::new(&[1, 2, 3], 0x1000);
        c.u8("tag").unwrap();
        assert_eq!(
            c.u64("pointer").unwrap_err().what,
            "pointer at 0x1001 takes 8 bytes, but only 2 are left"
        );
    }
}

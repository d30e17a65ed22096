//! LEB128: numbers of any length, seven bits a byte, lowest first; the top bit says that more follow.

use crate::FormatError;

/// Bytes that are read front to back; errors name the table and the offset in it.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'d> {
    data: &'d [u8],
    at: usize,
    table: &'static str,
}

impl<'d> Reader<'d> {
    pub fn new(data: &'d [u8], table: &'static str) -> Self {
        Reader { data, at: 0, table }
    }
    /// Offset of the next byte.
    pub fn at(&self) -> usize {
        self.at
    }
    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        (self.data.len() - self.at) as u64
    }
    /// The next `len` bytes.
    pub fn bytes(&mut self, len: u64, what: &str) -> Result<&'d [u8], FormatError> {
        let rest = &self.data[self.at..]; // `at` never passes the end
        let Some(bytes) = usize::try_from(len).ok().and_then(|len| rest.get(..len)) else {
            return Err(FormatError::new(format!(
                "{} ends inside {what} at offset {:#x}: {len} bytes are needed, {} left",
                self.table,
                self.at,
                rest.len()
            )));
        };
        self.at += bytes.len();
        Ok(bytes)
    }
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N as u64, what)?);
        Ok(out)
    }
    /// An unsigned number.
    #[inline]
    pub fn unsigned(&mut self, what: &str) -> Result<u64, FormatError> {
        // Most numbers are small.
        if let Some(byte) = self.data.get(self.at).filter(|byte| **byte < 0x80) {
            self.at += 1;
            return Ok(u64::from(*byte));
        }
        let (value, _) = self.number(what, |bits| bits <= 1)?;
        Ok(value)
    }
    /// A signed number.
    pub fn signed(&mut self, what: &str) -> Result<i64, FormatError> {
        let (value, bits) = self.number(what, |bits| bits == 0 || bits == 0x7f)?;
        let unused = 64u32.saturating_sub(bits);
        Ok((value << unused) as i64 >> unused)
    }
    /// A number and how many bits of it were given; `tenth` says which tenth bytes keep it within 64 bits.
    fn number(
        &mut self,
        what: &str,
        tenth: impl Fn(u8) -> bool,
    ) -> Result<(u64, u32), FormatError> {
        let (start, mut value, mut shift) = (self.at, 0, 0);
        loop {
            let [byte] = self.array(what)?;
            let bits = byte & 0x7f;
            if shift > 63 || shift == 63 && !tenth(bits) {
                return Err(FormatError::new(format!(
                    "{what} at offset {start:#x} of {} does not fit 64 bits",
                    self.table
                )));
            }
            value |= u64::from(bits) << shift;
            shift += 7;
            if byte < 0x80 {
                return Ok((value, shift));
            }
        }
    }
}

/// Appends an unsigned number.
pub(crate) fn put_unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number.
pub(crate) fn put_signed(out: &mut Vec<u8>, mut value: i64) {
    while !(-0x40..0x40).contains(&value) {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8 & 0x7f);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_known_ones_have_their_bytes() {
        arbtest::arbtest(|u| {
            let (a, b): (u64, i64) = (
                u.arbitrary::<u64>()? >> u.int_in_range(0..=63)?,
                u.arbitrary::<i64>()? >> u.int_in_range(0..=63)?,
            );
            let mut out = Vec::new();
            put_unsigned(&mut out, a);
            put_signed(&mut out, b);
            let mut r = Reader::new(&out, "test");
            assert_eq!(
                (r.unsigned("a").unwrap(), r.signed("b").unwrap(), r.left()),
                (a, b, 0)
            );
            Ok(())
        });
        let mut out = Vec::new();
        put_unsigned(&mut out, 624485); // the example of DWARF 5, 7.6
        put_signed(&mut out, -123456);
        assert_eq!(out, [0xe5, 0x8e, 0x26, 0xc0, 0xbb, 0x78]);
    }

    #[test]
    fn numbers_beyond_64_bits_and_cut_ones_are_errors() {
        let mut long = vec![0xff; 9];
        long.push(2);
        assert!(Reader::new(&long, "t").unsigned("n").is_err());
        assert!(Reader::new(&long, "t").signed("n").is_err());
        assert!(Reader::new(&[0x80; 11], "t").unsigned("n").is_err());
        assert_eq!(
            Reader::new(&[0x80], "t").signed("n").unwrap_err().what,
            "t ends inside n at offset 0x1: 1 bytes are needed, 0 left"
        );
    }
}

//! Reading bytes that come from elsewhere, front to back: little-endian numbers and LEB128.
//!
//! Every read is checked. An error has numbers ([`Broken`]): the reader of a format knows what it was
//! and where the bytes are from, and makes the sentence. A read that fails moves nothing, but for a number in
//! LEB128, which is read up to where it breaks off.
//!
//! ```
//! use postlink_bytes::{Broken, Bytes, leb128};
//!
//! let mut bytes = Bytes::new(&[1, 2, 0, 0xe5, 0x8e, 0x26]);
//! assert_eq!(bytes.u8(), Ok(1));
//! assert_eq!(bytes.u16(), Ok(2));
//! assert_eq!(bytes.unsigned(leb128::LONGEST), Ok(624485));
//! assert_eq!(bytes.u32(), Err(Broken::Short { needed: 4, left: 0 }));
//! ```

pub mod leb128;

/// Bytes as lower-case hexadecimal digits: how tools show build-ids.
///
/// ```
/// assert_eq!(postlink_bytes::hex(&[0x0f, 0xa0]), "0fa0");
/// ```
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A number in decimal digits, without the machinery of `core::fmt`: for texts with hundreds of millions of them.
///
/// ```
/// assert_eq!(postlink_bytes::decimal(1805, &mut [0; 20]), b"1805");
/// ```
#[inline]
pub fn decimal(mut value: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        // No number of 64 bits has more than 20 digits.
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}

/// Why a read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// There are not so many bytes.
    Short {
        /// Bytes that the read takes.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A number in LEB128 of more than 64 bits, or of more bytes than allowed.
    Wide,
}

/// A place in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'d> {
    data: &'d [u8],
    /// At most the length.
    at: usize,
}

impl<'d> Bytes<'d> {
    /// At the first byte.
    pub fn new(data: &'d [u8]) -> Self {
        Bytes { data, at: 0 }
    }

    /// Offset of the next byte.
    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many there are in all.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether all are read.
    pub fn is_empty(&self) -> bool {
        self.at == self.data.len()
    }

    /// How many are left.
    #[inline]
    pub fn left(&self) -> usize {
        self.data.len() - self.at
    }

    /// Those that are left.
    #[inline]
    pub fn rest(&self) -> &'d [u8] {
        &self.data[self.at..]
    }

    /// Goes to an offset, at most the end.
    pub fn seek(&mut self, at: usize) {
        self.at = at.min(self.data.len());
    }

    fn short(&self, needed: u64) -> Broken {
        Broken::Short {
            needed,
            left: self.left() as u64,
        }
    }

    /// The next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: u64) -> Result<&'d [u8], Broken> {
        let taken = usize::try_from(len)
            .ok()
            .and_then(|len| self.rest().get(..len));
        match taken {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(self.short(len)),
        }
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        match self.rest().first_chunk() {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => Err(self.short(N as u64)),
        }
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Broken> {
        self.array().map(u8::from_le_bytes)
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Broken> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Broken> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Broken> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned number in LEB128 of at most `longest` bytes.
    #[inline]
    pub fn unsigned(&mut self, longest: usize) -> Result<u64, Broken> {
        // Most numbers are small.
        match self.data.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_unsigned(longest),
        }
    }

    fn long_unsigned(&mut self, longest: usize) -> Result<u64, Broken> {
        let mut value = 0u64;
        for count in 0usize.. {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if count >= longest || bits != 0 && (count > 9 || count == 9 && bits > 1) {
                return Err(Broken::Wide);
            }
            if count <= 9 {
                value |= bits << (7 * count);
            }
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    /// A signed number in LEB128 of at most `longest` bytes.
    #[inline]
    pub fn signed(&mut self, longest: usize) -> Result<i64, Broken> {
        match self.data.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(i64::from((byte << 1) as i8 >> 1))
            }
            _ => self.long_signed(longest),
        }
    }

    fn long_signed(&mut self, longest: usize) -> Result<i64, Broken> {
        let mut value = 0i64;
        for count in 0usize.. {
            let byte = self.u8()?;
            let bits = byte & 0x7f;
            match count {
                _ if count >= longest => return Err(Broken::Wide),
                ..9 => value |= i64::from(bits) << (7 * count),
                // What remains must repeat the sign.
                9 if bits == 0 || bits == 0x7f => value |= i64::from(bits) << 63,
                _ if count > 9 && bits == (value >> 63) as u8 & 0x7f => {}
                _ => return Err(Broken::Wide),
            }
            if byte < 0x80 {
                if count < 9 && byte & 0x40 != 0 {
                    value |= -1i64 << (7 * count + 7);
                }
                break;
            }
        }
        Ok(value)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::leb128::*;
    use super::*;

    #[test]
    fn numbers_survive_at_every_width_and_padding() {
        let mut values = vec![0u64, 1, 0x7f, 0x80, u64::MAX];
        values.extend((0..64).flat_map(|s| [1u64 << s, (1u64 << s).wrapping_sub(1), !(1u64 << s)]));
        for value in values {
            let signed = value as i64;
            let mut out = Vec::new();
            put_unsigned(&mut out, value);
            assert_eq!(out.len(), unsigned_len(value));
            put_signed(&mut out, signed);
            assert_eq!(
                out.len(),
                unsigned_len(value) + signed_len(signed),
                "{value:#x}"
            );
            put_unsigned_padded(&mut out, value, LONGEST);
            put_signed_padded(&mut out, signed, LONGEST);
            // Padded beyond what any number needs.
            put_unsigned_padded(&mut out, value, 13);
            put_signed_padded(&mut out, signed, 13);
            let mut bytes = Bytes::new(&out);
            for longest in [LONGEST, LONGEST, usize::MAX] {
                assert_eq!(bytes.unsigned(longest), Ok(value));
                assert_eq!(bytes.signed(longest), Ok(signed), "{value:#x}");
            }
            assert!(bytes.is_empty());
            bytes.seek(out.len() - 26);
            assert_eq!(bytes.unsigned(LONGEST), Err(Broken::Wide));
            bytes.seek(out.len() - 13);
            assert_eq!(bytes.signed(LONGEST), Err(Broken::Wide));
        }
        let mut out = Vec::new();
        put_unsigned(&mut out, 624485); // the example of DWARF 5, 7.6
        put_signed(&mut out, -123456);
        assert_eq!(out, [0xe5, 0x8e, 0x26, 0xc0, 0xbb, 0x78]);
    }

    #[test]
    fn numbers_beyond_64_bits_and_cut_ones_are_errors() {
        let mut long = vec![0xff; 9];
        long.push(2);
        for longest in [LONGEST, usize::MAX] {
            assert_eq!(Bytes::new(&long).unsigned(longest), Err(Broken::Wide));
            assert_eq!(Bytes::new(&long).signed(longest), Err(Broken::Wide));
            let mut cut = Bytes::new(&[0x80]);
            let short = Broken::Short { needed: 1, left: 0 };
            assert_eq!(cut.signed(longest), Err(short));
            assert_eq!(cut.at(), 1);
            assert_eq!(Bytes::new(&[]).unsigned(longest), Err(short));
        }
        assert_eq!(Bytes::new(&[0x80; 11]).unsigned(LONGEST), Err(Broken::Wide));
        let endless = Bytes::new(&[0x80; 11]).unsigned(usize::MAX);
        assert_eq!(endless, Err(Broken::Short { needed: 1, left: 0 }));
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        arbtest::arbtest(|u| {
            let data: Vec<u8> = u.arbitrary()?;
            let mut bytes = Bytes::new(&data);
            while !u.is_empty() {
                let before = bytes.at();
                let read = match u.int_in_range(0..=6)? {
                    0 => bytes.u8().map(drop),
                    1 => bytes.u16().map(drop),
                    2 => bytes.u32().map(drop),
                    3 => bytes.u64().map(drop),
                    4 => bytes.unsigned(u.int_in_range(1..=12)?).map(drop),
                    5 => bytes.signed(u.int_in_range(1..=12)?).map(drop),
                    _ => bytes.take(u.arbitrary()?).map(drop),
                };
                assert!(bytes.at() <= data.len() && (read.is_err() || bytes.at() >= before));
            }
            Ok(())
        });
    }
}

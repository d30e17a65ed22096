//! Reading and writing numbers of DWARF sections (little-endian), with errors that name section and offset.
//! Numbers in LEB128 are those of crate `bytes`.

use std::ops::Range;

use postlink_bytes::{Broken, Bytes, leb128};

pub(crate) use postlink_bytes::leb128::{
    put_signed as put_sleb, put_unsigned as put_uleb, unsigned_len as uleb_len,
};

use crate::Error;

/// Bytes of a section, read front to back.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'d> {
    /// The whole section.
    pub data: &'d [u8],
    /// Offset of the next byte.
    pub at: usize,
    /// Reading stops here.
    pub end: usize,
    /// The section's name.
    pub section: &'static str,
}

impl<'d> Reader<'d> {
    /// Reads from `at` to the section's end.
    pub fn new(data: &'d [u8], at: u64, section: &'static str) -> Result<Self, Error> {
        let end = data.len();
        match usize::try_from(at).ok().filter(|at| *at <= end) {
            Some(at) => Ok(Reader {
                data,
                at,
                end,
                section,
            }),
            None => Err(Error::new(
                section,
                at,
                format!("an offset leads here, but the section has {end:#x} bytes"),
            )),
        }
    }

    /// An error at the next byte.
    pub fn error(&self, what: impl Into<String>) -> Error {
        Error::new(self.section, self.at as u64, what)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    /// Sets the end to `len` bytes from here.
    pub fn limit(&mut self, len: u64) -> Result<(), Error> {
        match usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len))
        {
            Some(end) if end <= self.end => {
                self.end = end;
                Ok(())
            }
            _ => Err(self.error(format!(
                "a length of {len:#x} bytes, of which {:#x} are there",
                self.end - self.at
            ))),
        }
    }

    /// Reads over `len` bytes.
    #[inline]
    pub fn skip(&mut self, len: u64) -> Result<(), Error> {
        let left = (self.end - self.at) as u64;
        if len > left {
            return Err(self.short(len, left));
        }
        self.at += len as usize;
        Ok(())
    }

    #[cold]
    fn short(&self, len: u64, left: u64) -> Error {
        self.error(format!("{len} bytes are needed, {left} are left"))
    }

    /// The next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: u64) -> Result<&'d [u8], Error> {
        let from = self.at;
        self.skip(len)?;
        match self.data.get(from..self.at) {
            Some(bytes) => Ok(bytes),
            None => part(self.data, from as u64..self.at as u64, self.section),
        }
    }

    /// A number of `len` bytes, at most 8.
    #[inline]
    pub fn number(&mut self, len: u8) -> Result<u64, Error> {
        Ok(number(self.bytes(u64::from(len))?))
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Error> {
        match self.data.get(self.at).filter(|_| self.at < self.end) {
            Some(byte) => {
                self.at += 1;
                Ok(*byte)
            }
            None => Err(self.error("1 byte is needed, 0 are left")),
        }
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Error> {
        Ok(self.number(2)? as u16)
    }

    /// A number in ULEB128, which may be longer than it needs to be.
    #[inline(always)]
    pub fn uleb(&mut self) -> Result<u64, Error> {
        // Most have one byte. What is inlined is that alone: a result that may be an error goes through memory.
        match self.data.get(self.at) {
            Some(byte @ ..0x80) if self.at < self.end => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_uleb(),
        }
    }

    /// One of several bytes.
    #[inline(never)]
    fn long_uleb(&mut self) -> Result<u64, Error> {
        // Offsets in a unit of a megabyte have up to three.
        match self.data.get(self.at..self.end) {
            Some([low @ 0x80..=0xff, high @ ..0x80, ..]) => {
                self.at += 2;
                Ok(u64::from(low & 0x7f) | u64::from(*high) << 7)
            }
            Some([low @ 0x80..=0xff, middle, high @ ..0x80, ..]) => {
                self.at += 3;
                let two = u64::from(low & 0x7f) | u64::from(middle & 0x7f) << 7;
                Ok(two | u64::from(*high) << 14)
            }
            _ => self.leb("ULEB128", |bytes| bytes.unsigned(usize::MAX)),
        }
    }

    /// Reads over a number in LEB128. Most have one byte.
    #[inline]
    pub fn skip_leb(&mut self) -> Result<(), Error> {
        match self.data.get(self.at) {
            Some(..0x80) if self.at < self.end => {
                self.at += 1;
                Ok(())
            }
            _ => self.uleb().map(drop),
        }
    }

    /// A number in SLEB128, which may be longer than it needs to be.
    #[inline]
    pub fn sleb(&mut self) -> Result<i64, Error> {
        // Distances between lines, which are what is read most, have up to three.
        match self.data.get(self.at..self.end) {
            Some([byte @ ..0x80, ..]) => {
                self.at += 1;
                return Ok(i64::from((byte << 1) as i8 >> 1));
            }
            Some([low, high @ ..0x80, ..]) => {
                self.at += 2;
                let both = u16::from(low & 0x7f) | u16::from(*high) << 7;
                return Ok(i64::from((both << 2) as i16 >> 2));
            }
            Some([low, middle, high @ ..0x80, ..]) => {
                self.at += 3;
                let two = u32::from(low & 0x7f) | u32::from(middle & 0x7f) << 7;
                let all = two | u32::from(*high) << 14;
                return Ok(i64::from((all << 11) as i32 >> 11));
            }
            _ => {}
        }
        self.leb("SLEB128", |bytes| bytes.signed(usize::MAX))
    }

    #[inline(never)]
    fn leb<T>(
        &mut self,
        what: &str,
        read: impl Fn(&mut Bytes<'d>) -> Result<T, Broken>,
    ) -> Result<T, Error> {
        let mut bytes = Bytes::new(self.data.get(..self.end).unwrap_or_default());
        bytes.seek(self.at);
        match read(&mut bytes) {
            Ok(value) => {
                self.at = bytes.at();
                Ok(value)
            }
            Err(Broken::Wide) => Err(self.error(format!("a {what} number exceeds 64 bits"))),
            Err(Broken::Short { .. }) => {
                self.at = bytes.at();
                Err(self.error("1 byte is needed, 0 are left"))
            }
        }
    }

    /// Bytes up to a zero byte, which is read as well.
    pub fn string(&mut self) -> Result<&'d [u8], Error> {
        let rest = self.data.get(self.at..self.end).unwrap_or_default();
        let end = rest.iter().position(|b| *b == 0);
        match end.and_then(|len| rest.get(..len)) {
            Some(string) => {
                self.at += string.len() + 1;
                Ok(string)
            }
            None => Err(self.error("a string without an end")),
        }
    }

    /// The length in front of a unit or contribution: offset size (4 or 8) and length. The end is set accordingly.
    pub fn unit_length(&mut self) -> Result<u8, Error> {
        let start = self.at;
        let (offset_size, len) = match self.number(4)? {
            0xffff_ffff => (8, self.number(8)?),
            reserved @ 0xffff_fff0.. => {
                self.at = start;
                return Err(self.error(format!("the reserved unit length {reserved:#x}")));
            }
            len => (4, len),
        };
        self.limit(len)?;
        Ok(offset_size)
    }
}

/// A number of at most 8 bytes.
#[inline]
pub(crate) fn number(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(bytes) {
                *to = *from;
            }
            u64::from_le_bytes(word)
        }
    }
}

/// Bytes of a section that are known to be there; an error if they are not.
pub(crate) fn part<'d>(
    data: &'d [u8],
    range: Range<u64>,
    section: &'static str,
) -> Result<&'d [u8], Error> {
    let bytes = usize::try_from(range.start)
        .ok()
        .zip(usize::try_from(range.end).ok());
    let bytes = bytes.and_then(|(start, end)| data.get(start..end));
    bytes.ok_or_else(|| {
        let what = format!(
            "the bytes up to {:#x} are needed, the section ends at {:#x}",
            range.end,
            data.len()
        );
        Error::new(section, range.start, what)
    })
}

/// Overwrites bytes at a place; false if they do not fit.
#[must_use]
pub(crate) fn put_at(out: &mut [u8], at: usize, bytes: &[u8]) -> bool {
    let field = out
        .get_mut(at..)
        .and_then(|rest| rest.get_mut(..bytes.len()));
    field.map(|field| field.copy_from_slice(bytes)).is_some()
}

/// Overwrites a field by the lowest bytes of a number.
pub(crate) fn set_number(field: &mut [u8], value: u64) {
    for (to, from) in field.iter_mut().zip(value.to_le_bytes()) {
        *to = from;
    }
}

/// Appends a number in ULEB128 of at least `len` bytes.
pub(crate) fn put_uleb_padded(out: &mut Vec<u8>, value: u64, len: usize) {
    leb128::put_unsigned_padded(out, value, len.max(uleb_len(value)));
}

/// Appends the lowest `len` bytes of a number.
pub(crate) fn put_number(out: &mut Vec<u8>, value: u64, len: u8) {
    out.extend(value.to_le_bytes().into_iter().take(usize::from(len)));
}

/// Whether a number fits `len` bytes.
pub(crate) fn fits(value: u64, len: u8) -> bool {
    len >= 8 || value >> (8 * u32::from(len)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_writing_and_reading() {
        arbtest::arbtest(|u| {
            let (a, b): (u64, i64) = (
                u.arbitrary::<u64>()? >> u.int_in_range(0..=63)?,
                u.arbitrary::<i64>()? >> u.int_in_range(0..=63)?,
            );
            let pad = u.int_in_range(0..=12)?;
            let mut out = Vec::new();
            put_uleb(&mut out, a);
            assert_eq!(out.len(), uleb_len(a));
            put_uleb_padded(&mut out, a, pad);
            assert_eq!(out.len(), uleb_len(a) + uleb_len(a).max(pad));
            put_sleb(&mut out, b);
            let mut r = Reader::new(&out, 0, "test").unwrap();
            assert_eq!((r.uleb(), r.uleb(), r.sleb()), (Ok(a), Ok(a), Ok(b)));
            assert!(r.is_empty());
            Ok(())
        });
    }

    #[test]
    fn bytes_that_a_section_does_not_have_are_an_error_with_both_ends() {
        let bytes = [1, 2, 3, 4];
        let of = |range| part(&bytes, range, ".debug_x").map_err(|error| error.to_string());
        assert_eq!(of(1..3), Ok(&bytes[1..3]));
        assert_eq!(of(4..4), Ok(&[][..]));
        for range in [2..5, 5..5, u64::MAX - 1..u64::MAX] {
            let text = of(range.clone()).unwrap_err();
            assert!(
                text.starts_with(&format!(".debug_x at {:#x}", range.start)),
                "{text}"
            );
            assert!(text.contains(&format!("{:#x}", range.end)), "{text}");
            assert!(text.ends_with("the section ends at 0x4"), "{text}");
        }
        let mut field = [0; 4];
        assert!(put_at(&mut field, 2, &[7, 8]) && !put_at(&mut field, 3, &[9, 9]));
        assert!(!put_at(&mut field, 9, &[1]));
        assert_eq!(field, [0, 0, 7, 8]);
    }

    #[test]
    fn what_does_not_fit_is_an_error_with_its_place() {
        let read = |bytes: &[u8]| Reader::new(bytes, 0, ".debug_x").unwrap().uleb();
        let mut long = vec![0xff; 9];
        long.push(2);
        assert_eq!(
            read(&long).unwrap_err().to_string(),
            ".debug_x at 0x0: a ULEB128 number exceeds 64 bits"
        );
        assert_eq!(
            read(&[0x80]).unwrap_err().to_string(),
            ".debug_x at 0x1: 1 byte is needed, 0 are left"
        );
        assert!(Reader::new(&[], 1, ".debug_x").is_err());
        let mut r = Reader::new(&[8, 0, 0, 0, 1], 0, ".debug_x").unwrap();
        assert_eq!(
            r.unit_length().unwrap_err().to_string(),
            ".debug_x at 0x4: a length of 0x8 bytes, of which 0x1 are there"
        );
    }
}

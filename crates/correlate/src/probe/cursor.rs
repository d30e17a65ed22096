//! Reading a section from front to back. Every read is checked; an error tells the section, the offset and what was there.

use crate::FormatError;

/// A place in a section.
#[derive(Clone, Debug)]
pub struct Cursor<'d> {
    section: &'static str,
    bytes: &'d [u8],
    at: usize,
}

impl<'d> Cursor<'d> {
    /// At an offset; one past the end counts as the end.
    pub fn new(section: &'static str, bytes: &'d [u8], at: usize) -> Cursor<'d> {
        Cursor {
            section,
            bytes,
            at: at.min(bytes.len()),
        }
    }

    /// Offset in the section.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'d [u8] {
        &self.bytes[self.at..]
    }

    /// An error about something that started at `at`.
    #[cold]
    pub fn error(&self, at: usize, what: impl std::fmt::Display) -> FormatError {
        FormatError::new(format!(
            "section {}, offset {at:#x} of {:#x}: {what}",
            self.section,
            self.bytes.len()
        ))
    }

    /// The next bytes.
    pub fn take(&mut self, len: usize, what: &str) -> Result<&'d [u8], FormatError> {
        let rest = &self.bytes[self.at..];
        match rest.get(..len) {
            Some(taken) => {
                self.at += len;
                Ok(taken)
            }
            None => Err(self.error(
                self.at,
                format_args!("{what} needs {len} bytes, {} are left", rest.len()),
            )),
        }
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self, what: &str) -> Result<u8, FormatError> {
        match self.bytes.get(self.at) {
            Some(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            None => Err(self.error(self.at, format_args!("the section ends before {what}"))),
        }
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self, what: &str) -> Result<u64, FormatError> {
        match self.bytes[self.at..].first_chunk() {
            Some(chunk) => {
                self.at += 8;
                Ok(u64::from_le_bytes(*chunk))
            }
            None => Err(self.error(
                self.at,
                format_args!("{what} needs 8 bytes, {} are left", self.left()),
            )),
        }
    }

    /// An unsigned number in groups of seven bits. More than 64 bits are an error.
    #[inline]
    pub fn uleb(&mut self, what: &str) -> Result<u64, FormatError> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_uleb(what),
        }
    }

    fn long_uleb(&mut self, what: &str) -> Result<u64, FormatError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..).step_by(7) {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            if bits != 0 && (shift > 63 || bits << shift >> shift != bits) {
                return Err(self.error(start, format_args!("{what} has more than 64 bits")));
            }
            if shift <= 63 {
                value |= bits << shift;
            }
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    /// A signed number in groups of seven bits. More than 64 bits are an error.
    #[inline]
    pub fn sleb(&mut self, what: &str) -> Result<i64, FormatError> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(i64::from((byte << 1) as i8 >> 1))
            }
            _ => self.long_sleb(what),
        }
    }

    fn long_sleb(&mut self, what: &str) -> Result<i64, FormatError> {
        let start = self.at;
        let mut value = 0i64;
        for shift in (0..).step_by(7) {
            let byte = self.u8(what)?;
            let bits = byte & 0x7f;
            match shift {
                ..63 => value |= i64::from(bits) << shift,
                // What remains must repeat the sign.
                63 if bits == 0 || bits == 0x7f => value |= i64::from(bits) << 63,
                _ if shift > 63 && bits == (value >> 63) as u8 & 0x7f => {}
                _ => return Err(self.error(start, format_args!("{what} has more than 64 bits"))),
            }
            if byte < 0x80 {
                if shift < 57 && byte & 0x40 != 0 {
                    value |= -1i64 << (shift + 7);
                }
                break;
            }
        }
        Ok(value)
    }

    /// A number of things of at least `size` bytes each, which must fit into what is left.
    #[inline]
    pub fn count(&mut self, size: usize, what: &str) -> Result<usize, FormatError> {
        let at = self.at;
        let count = self.uleb(what)?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left() / size => Ok(count),
            _ => Err(self.error(
                at,
                format_args!(
                    "{what} is {count}, but {} bytes are left for them",
                    self.left()
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(bytes: &[u8]) -> Cursor<'_> {
        Cursor::new(".test", bytes, 0)
    }

    fn put_sleb(mut value: i64, out: &mut Vec<u8>) {
        loop {
            let byte = (value & 0x7f) as u8;
            value >>= 7;
            if (value == 0 && byte & 0x40 == 0) || (value == -1 && byte & 0x40 != 0) {
                return out.push(byte);
            }
            out.push(byte | 0x80);
        }
    }

    #[test]
    fn signed_numbers_survive_at_every_width() {
        for shift in 0..64 {
            let power = 1i64 << shift;
            for value in [power, power.wrapping_neg(), power.wrapping_sub(1)] {
                let mut bytes = Vec::new();
                put_sleb(value, &mut bytes);
                assert_eq!(cursor(&bytes).sleb("value"), Ok(value), "{bytes:x?}");
                // Padded with groups that only repeat the sign.
                let last = bytes.len() - 1;
                bytes[last] |= 0x80;
                let sign = if value < 0 { 0x7f } else { 0 };
                bytes.extend([sign | 0x80, sign]);
                assert_eq!(cursor(&bytes).sleb("value"), Ok(value), "{bytes:x?}");
            }
        }
    }

    #[test]
    fn unsigned_numbers_have_at_most_64_bits() {
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(cursor(&most).uleb("value"), Ok(u64::MAX));
        let more = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        let error = cursor(&more).uleb("value").unwrap_err();
        assert_eq!(
            error.what,
            "section .test, offset 0x0 of 0xa: value has more than 64 bits"
        );
        assert!(cursor(&[0x80, 0x80]).uleb("value").is_err());
    }

    #[test]
    fn a_count_is_believed_only_if_the_section_can_hold_it() {
        assert_eq!(
            cursor(&[2, 0, 0, 0, 0, 0, 0]).count(3, "number of probes"),
            Ok(2)
        );
        let error = cursor(&[3, 0, 0]).count(3, "number of probes").unwrap_err();
        assert!(error.what.contains("is 3, but 2 bytes are left"), "{error}");
    }
}

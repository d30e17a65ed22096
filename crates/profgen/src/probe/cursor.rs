//! Reading a section from front to back. Every read is checked; an error tells the section, the offset and
//! what was there.

use postlink_bytes::{Broken, Bytes};

use crate::{ErrorKind, FormatError};

/// A place in a section.
#[derive(Clone, Debug)]
pub struct Cursor<'d> {
    section: &'static str,
    bytes: Bytes<'d>,
}

impl<'d> Cursor<'d> {
    /// At an offset; one past the end counts as the end.
    pub fn new(section: &'static str, bytes: &'d [u8], at: usize) -> Cursor<'d> {
        let mut bytes = Bytes::new(bytes);
        bytes.seek(at);
        Cursor { section, bytes }
    }

    /// Offset in the section.
    pub fn offset(&self) -> usize {
        self.bytes.at()
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.left()
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'d [u8] {
        self.bytes.rest()
    }

    /// An error about something that started at `at`.
    #[cold]
    pub fn error(&self, at: usize, what: impl std::fmt::Display) -> FormatError {
        FormatError::new(format!(
            "section {}, offset {at:#x} of {:#x}: {what}",
            self.section,
            self.bytes.len()
        ))
        .at_offset(at as u64)
    }

    /// The sentence for a read that began at `start`.
    #[cold]
    fn broken(&self, broken: Broken, start: usize, what: &str) -> FormatError {
        match broken {
            Broken::Short { needed, left } => {
                let error = if (needed, left) == (1, 0) {
                    let what = format_args!("the section ends before {what}");
                    self.error(self.offset(), what)
                } else {
                    let what = format_args!("{what} needs {needed} bytes, {left} are left");
                    self.error(self.offset(), what)
                };
                error.of(ErrorKind::Truncated).values(left, needed)
            }
            Broken::Wide => self
                .error(start, format_args!("{what} has more than 64 bits"))
                .of(ErrorKind::TooLarge),
        }
    }

    /// The next bytes.
    pub fn take(&mut self, len: usize, what: &str) -> Result<&'d [u8], FormatError> {
        let start = self.offset();
        let read = self.bytes.take(len as u64);
        read.map_err(|broken| self.broken(broken, start, what))
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self, what: &str) -> Result<u8, FormatError> {
        let start = self.offset();
        let read = self.bytes.u8();
        read.map_err(|broken| self.broken(broken, start, what))
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self, what: &str) -> Result<u64, FormatError> {
        let start = self.offset();
        let read = self.bytes.u64();
        read.map_err(|broken| self.broken(broken, start, what))
    }

    /// An unsigned number in groups of seven bits, padded or not. More than 64 bits are an error.
    #[inline]
    pub fn uleb(&mut self, what: &str) -> Result<u64, FormatError> {
        let start = self.offset();
        let read = self.bytes.unsigned(usize::MAX);
        read.map_err(|broken| self.broken(broken, start, what))
    }

    /// A signed number in groups of seven bits, padded or not. More than 64 bits are an error.
    #[inline]
    pub fn sleb(&mut self, what: &str) -> Result<i64, FormatError> {
        let start = self.offset();
        let read = self.bytes.signed(usize::MAX);
        read.map_err(|broken| self.broken(broken, start, what))
    }

    /// A number of things of at least `size` bytes each, which must fit into what is left.
    #[inline]
    pub fn count(&mut self, size: usize, what: &str) -> Result<usize, FormatError> {
        let at = self.offset();
        let count = self.uleb(what)?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left() / size => Ok(count),
            _ => Err(self
                .error(
                    at,
                    format_args!(
                        "{what} is {count}, but {} bytes are left for them",
                        self.left()
                    ),
                )
                .of(ErrorKind::Truncated)
                .values(self.left(), count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(bytes: &[u8]) -> Cursor<'_> {
        Cursor::new(".test", bytes, 0)
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

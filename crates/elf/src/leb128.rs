//! Tables of numbers in LEB128, read front to back; errors name the table and the offset in it.

use postlink_bytes::leb128::LONGEST;
pub(crate) use postlink_bytes::leb128::{put_signed, put_unsigned};
use postlink_bytes::{Broken, Bytes};

use crate::{ErrorKind, FormatError};

/// A place in a table.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'d> {
    bytes: Bytes<'d>,
    table: &'static str,
}

impl<'d> Reader<'d> {
    pub fn new(data: &'d [u8], table: &'static str) -> Self {
        Reader {
            bytes: Bytes::new(data),
            table,
        }
    }
    /// Offset of the next byte.
    pub fn at(&self) -> usize {
        self.bytes.at()
    }
    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.bytes.left() as u64
    }
    /// The next `len` bytes.
    pub fn bytes(&mut self, len: u64, what: &str) -> Result<&'d [u8], FormatError> {
        let start = self.at();
        let read = self.bytes.take(len);
        read.map_err(|broken| self.error(broken, start, what))
    }
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], FormatError> {
        let start = self.at();
        let read = self.bytes.array();
        read.map_err(|broken| self.error(broken, start, what))
    }
    /// An unsigned number.
    #[inline]
    pub fn unsigned(&mut self, what: &str) -> Result<u64, FormatError> {
        let start = self.at();
        let read = self.bytes.unsigned(LONGEST);
        read.map_err(|broken| self.error(broken, start, what))
    }
    /// A signed number.
    pub fn signed(&mut self, what: &str) -> Result<i64, FormatError> {
        let start = self.at();
        let read = self.bytes.signed(LONGEST);
        read.map_err(|broken| self.error(broken, start, what))
    }
    /// The sentence for a read that began at `start`.
    #[cold]
    fn error(&self, broken: Broken, start: usize, what: &str) -> FormatError {
        match broken {
            Broken::Short { needed, left } => FormatError::new(format!(
                "{} ends inside {what} at offset {:#x}: {needed} bytes are needed, {left} left",
                self.table,
                self.at()
            ))
            .of(ErrorKind::Truncated)
            .at_offset(self.at() as u64)
            .values(left, needed),
            Broken::Wide => FormatError::new(format!(
                "{what} at offset {start:#x} of {} does not fit 64 bits",
                self.table
            ))
            .of(ErrorKind::TooLarge)
            .at_offset(start as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

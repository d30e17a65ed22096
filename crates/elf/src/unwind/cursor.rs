//! A checked reader over bytes that have a link-time address.
//!
//! Every table of this module is read through [`Cursor`]: it knows the address of the byte it is on (for
//! position-relative pointers and for error sentences) and never reads past its end.
//!
//! LEB128 numbers are accepted in any length up to ten bytes, since assemblers pad them to reserve space; a number that
//! does not fit 64 bits is an error.

#![warn(clippy::indexing_slicing)]

pub(crate) use postlink_bytes::leb128::{
    LONGEST as MAX_LEB, put_signed as put_sleb, put_signed_padded as put_sleb_padded,
    put_unsigned as put_uleb, put_unsigned_padded as put_uleb_padded, signed_len as sleb_len,
    unsigned_len as uleb_len,
};
use postlink_bytes::{Broken, Bytes};

use crate::{ErrorKind, FormatError};

/// A position in bytes of a known address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'d> {
    bytes: Bytes<'d>,
    addr: u64,
}

impl<'d> Cursor<'d> {
    /// Starts at the first byte of `data`, which is at `addr`.
    pub(crate) fn new(data: &'d [u8], addr: u64) -> Self {
        Cursor {
            bytes: Bytes::new(data),
            addr,
        }
    }
    /// Link-time address of the next byte.
    pub(crate) fn addr(&self) -> u64 {
        self.addr.wrapping_add(self.bytes.at() as u64)
    }
    /// Bytes read so far.
    pub(crate) fn pos(&self) -> usize {
        self.bytes.at()
    }
    /// Everything from the next byte on.
    pub(crate) fn rest(&self) -> &'d [u8] {
        self.bytes.rest()
    }
    /// Whether all is read.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// The sentence for a read that began at address `start`.
    #[cold]
    fn error(&self, broken: Broken, start: u64, what: &str) -> FormatError {
        match broken {
            Broken::Short { needed, left } => FormatError::new(format!(
                "{what} at {:#x} takes {needed} bytes, but only {left} are left",
                self.addr()
            ))
            .of(ErrorKind::Truncated)
            .at_address(self.addr())
            .values(left, needed),
            Broken::Wide => FormatError::new(format!(
                "{what} at {start:#x} is a number of more than 64 bits"
            ))
            .of(ErrorKind::TooLarge)
            .at_address(start),
        }
    }
    /// The next `len` bytes; `what` names them in the error.
    pub(crate) fn take(&mut self, len: u64, what: &str) -> Result<&'d [u8], FormatError> {
        let read = self.bytes.take(len);
        read.map_err(|broken| self.error(broken, self.addr(), what))
    }
    /// A cursor over the next `len` bytes, which are skipped here.
    pub(crate) fn sub(&mut self, len: u64, what: &str) -> Result<Cursor<'d>, FormatError> {
        let addr = self.addr();
        Ok(Cursor::new(self.take(len, what)?, addr))
    }
    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], FormatError> {
        let read = self.bytes.array();
        read.map_err(|broken| self.error(broken, self.addr(), what))
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
        let end = rest.iter().position(|&b| b == 0);
        let Some(string) = end.and_then(|end| rest.get(..end)) else {
            return Err(
                FormatError::new(format!("{what} at {:#x} has no end", self.addr()))
                    .of(ErrorKind::Truncated)
                    .at_address(self.addr())
                    .values(rest.len(), "a zero byte"),
            );
        };
        self.bytes.seek(self.pos() + string.len() + 1);
        Ok(string)
    }
    /// Unsigned LEB128.
    pub(crate) fn uleb(&mut self, what: &str) -> Result<u64, FormatError> {
        let start = self.addr();
        let read = self.bytes.unsigned(MAX_LEB);
        read.map_err(|broken| self.error(broken, start, what))
    }
    /// Signed LEB128.
    pub(crate) fn sleb(&mut self, what: &str) -> Result<i64, FormatError> {
        let start = self.addr();
        let read = self.bytes.signed(MAX_LEB);
        read.map_err(|broken| self.error(broken, start, what))
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::*;

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

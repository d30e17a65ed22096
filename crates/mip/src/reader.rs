//! A cursor over bytes that come from elsewhere: little endian, every read checked, errors with the offset.

use std::path::Path;

use postlink_bytes::Bytes;
use postlink_profile::{Error, Place};

/// Bytes of a number of 64 bits in LEB128, at most.
const LEB128: usize = 10;

/// Reads from front to back.
pub(crate) struct Reader<'a> {
    path: &'a Path,
    bytes: Bytes<'a>,
}

impl<'a> Reader<'a> {
    /// Begins at an offset, which may be beyond the end.
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8], at: usize) -> Reader<'a> {
        let mut bytes = Bytes::new(bytes);
        bytes.seek(at);
        Reader { path, bytes }
    }

    /// The offset of what is read next.
    pub(crate) fn at(&self) -> usize {
        self.bytes.at()
    }

    /// How much is left.
    pub(crate) fn left(&self) -> usize {
        self.bytes.left()
    }

    /// The error for `len` bytes that are not there.
    fn cut_short(&self, len: u64, what: &str) -> Error {
        Error::CutShort {
            path: self.path.to_owned(),
            what: format!("{what} at offset {:#x}", self.at()),
            expected: (self.at() as u64).saturating_add(len),
            found: self.bytes.len() as u64,
        }
    }

    /// The next bytes; `what` is what they are, for the error.
    pub(crate) fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], Error> {
        let read = self.bytes.take(len);
        read.map_err(|_| self.cut_short(len, what))
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let read = self.bytes.array();
        read.map_err(|_| self.cut_short(N as u64, what))
    }

    pub(crate) fn u8(&mut self, what: &str) -> Result<u8, Error> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A number in LEB128.
    pub(crate) fn unsigned(&mut self, what: &str) -> Result<u64, Error> {
        let at = self.at();
        let read = self.bytes.unsigned(LEB128);
        read.map_err(|_| self.bad(at, format!("{what} is no number of at most {LEB128} bytes")))
    }

    /// The same with a sign.
    pub(crate) fn signed_leb128(&mut self, what: &str) -> Result<i64, Error> {
        let at = self.at();
        let read = self.bytes.signed(LEB128);
        read.map_err(|_| self.bad(at, format!("{what} is no number of at most {LEB128} bytes")))
    }

    /// A signed number of four or eight bytes.
    pub(crate) fn signed(&mut self, wide: bool, what: &str) -> Result<i64, Error> {
        Ok(if wide {
            i64::from_le_bytes(self.array(what)?)
        } else {
            i32::from_le_bytes(self.array(what)?).into()
        })
    }

    /// A count of things of at least `size` bytes each that must follow: so many that they fit into what is left.
    pub(crate) fn count(&mut self, wide: bool, size: u64, what: &str) -> Result<usize, Error> {
        let at = self.at();
        let count = if wide {
            self.u64(what)?
        } else {
            self.u32(what)?.into()
        };
        if count
            .checked_mul(size)
            .is_none_or(|all| all > self.left() as u64)
        {
            return Err(bad(
                self.path,
                at as u64,
                format!(
                    "{what} is {count}, which take at least {size} bytes each; the file has {} more",
                    self.left()
                ),
            ));
        }
        Ok(count as usize) // at most the bytes in memory, or things of no size
    }

    /// An error at an offset.
    pub(crate) fn bad(&self, at: usize, what: impl Into<String>) -> Error {
        bad(self.path, at as u64, what)
    }

    /// Goes to an offset, at most the end.
    pub(crate) fn rewind(&mut self, at: usize) {
        self.bytes.seek(at);
    }

    /// Goes on to the next multiple of `align` from the start of the file, or to the end if that comes first.
    pub(crate) fn align(&mut self, align: usize) {
        self.bytes.seek(self.at().next_multiple_of(align));
    }
}

/// An error at an offset of a file.
pub(crate) fn bad(path: &Path, at: u64, what: impl Into<String>) -> Error {
    Error::Format {
        path: path.to_owned(),
        place: Place::Byte(at),
        what: what.into(),
    }
}

//! Reads little-endian numbers from bytes, never beyond their end.

use postlink_bytes::Bytes;

/// A position in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a>(Bytes<'a>);

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor(Bytes::new(bytes))
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.0.rest()
    }

    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        self.0.take(len as u64).ok()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.0.array().ok()
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.0.u32().ok()
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.0.u64().ok()
    }

    /// A count of things of `size` bytes each that must all be there.
    pub(super) fn count(&mut self, size: usize) -> Option<usize> {
        let count = usize::try_from(self.u64()?).ok()?;
        (count.checked_mul(size)? <= self.rest().len()).then_some(count)
    }
}

/// The size of the record that bytes begin with, header included, as that says it.
pub(super) fn size_of_record(bytes: &[u8]) -> Option<usize> {
    let &[_, _, _, _, _, _, low, high] = bytes.first_chunk()?;
    Some(usize::from(u16::from_le_bytes([low, high])))
}

/// A string up to its NUL, or all bytes if there is none.
pub(super) fn string(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

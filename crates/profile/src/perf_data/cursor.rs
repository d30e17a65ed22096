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

/// A string up to its NUL, or all bytes if there is none.
pub(super) fn string(bytes: &[u8]) -> &[u8] {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    &bytes[..end]
}

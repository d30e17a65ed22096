//! Reads little-endian numbers from bytes, never beyond their end.

/// A position in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.rest().get(..len)?;
        self.at += len;
        Some(taken)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (word, _) = self.rest().split_first_chunk()?;
        self.at += 4;
        Some(u32::from_le_bytes(*word))
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Option<u64> {
        let (word, _) = self.rest().split_first_chunk()?;
        self.at += 8;
        Some(u64::from_le_bytes(*word))
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

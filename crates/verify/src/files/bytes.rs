//! A cursor over untrusted bytes.
//!
//! Every read says `None` past the end; nothing here can panic or loop.

/// Reads little-endian numbers, LEB128 numbers and strings one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'d> {
    data: &'d [u8],
    pos: usize,
}

impl<'d> Reader<'d> {
    pub(crate) fn new(data: &'d [u8]) -> Self {
        Reader { data, pos: 0 }
    }

    /// Bytes read so far.
    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pos >= self.data.len()
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'d [u8]> {
        let end = self.pos.checked_add(len)?;
        let bytes = self.data.get(self.pos..end)?;
        self.pos = end;
        Some(bytes)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.pos)?;
        self.pos += 1;
        Some(byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Unsigned LEB128. Bits beyond the 64th must be zero.
    pub(crate) fn uleb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        let mut shift = 0u32;
        loop {
            let byte = self.u8()?;
            let low = u64::from(byte & 0x7f);
            if shift >= 64 {
                if low != 0 {
                    return None;
                }
            } else {
                if shift > 57 && low >> (64 - shift) != 0 {
                    return None;
                }
                value |= low << shift;
            }
            if byte & 0x80 == 0 {
                return Some(value);
            }
            shift = shift.saturating_add(7);
        }
    }

    /// Signed LEB128; bits beyond the 64th are ignored, as the run-time does.
    pub(crate) fn sleb(&mut self) -> Option<i64> {
        let mut value = 0u64;
        let mut shift = 0u32;
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            shift = shift.saturating_add(7);
            if byte & 0x80 == 0 {
                if byte & 0x40 != 0 && shift < 64 {
                    value |= u64::MAX << shift;
                }
                return Some(value as i64);
            }
        }
    }

    /// Bytes up to a zero, which is consumed and not returned.
    #[cfg(test)]
    pub(crate) fn cstr(&mut self) -> Option<&'d [u8]> {
        let rest = self.data.get(self.pos..)?;
        let len = rest.iter().position(|&b| b == 0)?;
        self.pos += len + 1;
        rest.get(..len)
    }
}

/// A little-endian word inside a slice.
pub(crate) fn u64_in(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}

/// A little-endian half word inside a slice.
pub(crate) fn u32_in(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

/// Whether two instructions of `len` bytes, at the start of what is given, are the same.
#[inline]
pub(crate) fn same_insn(a: &[u8], b: &[u8], len: usize) -> bool {
    if let (Some(a), Some(b), 1..=16) = (a.first_chunk::<16>(), b.first_chunk::<16>(), len) {
        let difference = u128::from_le_bytes(*a) ^ u128::from_le_bytes(*b);
        return difference << (128 - 8 * len) == 0;
    }
    a.get(..len).is_some() && a.get(..len) == b.get(..len)
}

/// Appends signed LEB128.
pub(crate) fn put_sleb(out: &mut Vec<u8>, mut value: i64) {
    loop {
        let low = value as u8 & 0x7f;
        value >>= 7;
        let sign = if low & 0x40 == 0 { 0 } else { -1 };
        if value == sign {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leb128_reads_what_the_dwarf_standard_gives_as_examples() {
        assert_eq!(Reader::new(&[0xb9, 0x64]).uleb(), Some(12857));
        assert_eq!(Reader::new(&[0x7f]).sleb(), Some(-1));
        assert_eq!(Reader::new(&[0x80, 0x7f]).sleb(), Some(-128));
        assert_eq!(Reader::new(&[0x81, 0x7f]).sleb(), Some(-127));
    }

    #[test]
    fn leb128_that_never_ends_or_overflows_is_refused() {
        assert_eq!(Reader::new(&[0x80; 40]).uleb(), None);
        assert_eq!(
            Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).uleb(),
            None
        );
        assert_eq!(
            Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]).uleb(),
            Some(u64::MAX)
        );
    }

    #[test]
    fn reads_past_the_end_say_none() {
        let mut r = Reader::new(b"ab\0c");
        assert_eq!(r.cstr(), Some(&b"ab"[..]));
        assert_eq!(r.u16(), None);
        assert_eq!(r.u8(), Some(b'c'));
        assert_eq!(r.u8(), None);
        assert!(r.is_empty());
        assert_eq!(u64_in(&[0; 8], usize::MAX), None);
    }
}

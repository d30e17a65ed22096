//! Prefixes, numbers and the ends of lines, with as few branches as there can be.

use crate::source;

/// Whether a text has a prefix, 16 bytes at a time.
#[inline]
pub(super) fn strip(text: &[u8], prefix: &[u8]) -> bool {
    let Some(start) = text.get(..prefix.len()) else {
        return false;
    };
    match (start.last_chunk::<16>(), prefix.last_chunk::<16>()) {
        // The last 16 may be some of those before.
        (Some(a), Some(b)) => {
            a == b
                && start
                    .chunks_exact(16)
                    .zip(prefix.chunks_exact(16))
                    .all(|(a, b)| a == b)
        }
        _ => start == prefix,
    }
}

/// Up to seven digits, and how many they are.
#[inline(always)]
pub(super) fn number(word: u64) -> Option<(u64, usize)> {
    // A byte is 0 to 9 where there is a digit. The lowest that is not sets its uppermost bit here; what is
    // above it does not matter.
    let digits = word ^ 0x3030_3030_3030_3030;
    let other = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let bits = other.trailing_zeros() & !7;
    if bits.wrapping_sub(8) >= 56 {
        return None; // none, or eight and more
    }
    let mut value = digits << (64 - bits);
    value = (value.wrapping_mul(10).wrapping_add(value >> 8)) & 0x00ff_00ff_00ff_00ff;
    value = (value.wrapping_mul(100).wrapping_add(value >> 16)) & 0x0000_ffff_0000_ffff;
    value = (value.wrapping_mul(10_000).wrapping_add(value >> 32)) & 0xffff_ffff;
    Some((value, bits as usize / 8))
}

/// A number of any length with a space after it, and its length.
#[inline(never)]
pub(super) fn some_digits(word: u64) -> Option<(u64, usize)> {
    let (value, len) = number(word)?;
    // Of seven digits, the space is the eighth byte.
    (word >> (8 * len) & 0xff == u64::from(b' ')).then_some((value, len))
}

/// The key of a line, with a space after it, and its counts: mispredictions (of a branch), count. `None` if
/// the line does not end as a record does.
pub(super) fn split(line: &[u8], two_counts: bool) -> Option<(&[u8], u64, u64)> {
    let last = |text: &[u8]| -> Option<(usize, u64)> {
        let at = text.iter().rposition(|&byte| byte == b' ')?;
        Some((at, source::decimal(&text[at + 1..])?))
    };
    let key = |upto: usize| &line[..line[..upto].trim_ascii_end().len() + 1];
    let (at, count) = last(line)?;
    if !two_counts {
        return Some((key(at), 0, count));
    }
    let (at, mispredictions) = last(line[..at].trim_ascii_end())?;
    Some((key(at), mispredictions, count))
}

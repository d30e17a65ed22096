//! Entries of branch stacks as text, many bytes at a time.
//!
//! Nearly all of a recording with branch stacks is text of one form:
//!
//! ```text
//! 0xFROM/0xTO/P/-/-/1  0xFROM/0xTO/M/-/-/3  …
//! ```
//!
//! Addresses have 12 digits more often than not. So there are two readers. [`entries`] knows this form alone,
//! works on windows of [`WINDOW`] bytes in which no position has to be checked again, and takes the digits of
//! an address all at once. It stops before what is not like that: an address of 16 digits, a `(dso)`, the end
//! of the text, an error. [`entry`] reads one entry of any form, and knows what is wrong with it.
//!
//! Sixteen characters are compared at once where the processor can (SSE2 is part of x86-64), else eight in an integer.

use crate::samples::BranchEntry;
use crate::source::{self, quote};

/// Bytes that hold an entry of the common form: twice `/0x` and 16 digits, and 16 more up to the blank that ends it.
const WINDOW: usize = 64;

/// Reads entries of the common form from `at` on, where one begins, until something else comes. Returns where
/// that is and where the last entry ended. Lines end entries; the text may have more of them.
#[inline]
pub(super) fn entries(text: &[u8], mut at: usize, out: &mut Vec<BranchEntry>) -> (usize, usize) {
    let mut end = at;
    while let Some((entry, len)) = text.get(at..).and_then(common) {
        out.push(entry);
        at += len;
        end = at;
        while let Some(b' ' | b'\t') = text.get(at) {
            at += 1;
        }
    }
    (at, end)
}

/// An entry of the common form and its length.
#[inline]
fn common(text: &[u8]) -> Option<(BranchEntry, usize)> {
    let window: &[u8; WINDOW] = text.first_chunk()?;
    if &window[..2] != b"0x" {
        return None;
    }
    let (from, digits) = hexadecimal(window, 2)?;
    let slash = 2 + digits;
    if &window[slash..slash + 3] != b"/0x" {
        return None;
    }
    let (to, digits) = hexadecimal(window, slash + 3)?;
    let slash = slash + 3 + digits;
    let mispredicted = match (window[slash], window[slash + 1]) {
        (b'/', b'P' | b'-' | b'N' | b'X') => false,
        (b'/', b'M') => true,
        _ => return None,
    };
    let rest = slash + 2;
    let blank = blank_in(sixteen(window, rest)?);
    let entry = BranchEntry {
        from,
        to,
        mispredicted,
        // What says so is longer than the window has room for.
        wrong_path: false,
    };
    (blank < 16).then_some((entry, rest + blank))
}

#[inline]
fn sixteen(window: &[u8; WINDOW], at: usize) -> Option<&[u8; 16]> {
    window.get(at..)?.first_chunk()
}

/// The digits at `at`, 1 to 15 of them: their value and how many they are.
#[inline]
fn hexadecimal(window: &[u8; WINDOW], at: usize) -> Option<(u64, usize)> {
    let (value, count) = digits(sixteen(window, at)?);
    (1..16).contains(&count).then_some((value, count))
}

/// The lower-case hexadecimal digits that sixteen characters begin with: their value and how many they are.
#[cfg(target_arch = "x86_64")]
#[inline]
fn digits(text: &[u8; 16]) -> (u64, usize) {
    use core::arch::x86_64::*;
    // SAFETY: both are 16 bytes of which every value is valid.
    let text: __m128i = unsafe { core::mem::transmute(*text) };
    // SAFETY: SSE2 is part of x86-64, and nothing here goes to memory.
    let (mask, packed) = unsafe {
        let decimal = _mm_sub_epi8(text, _mm_set1_epi8(b'0' as i8));
        let is_decimal = _mm_cmpeq_epi8(_mm_min_epu8(decimal, _mm_set1_epi8(9)), decimal);
        let letter = _mm_sub_epi8(text, _mm_set1_epi8(b'a' as i8));
        let is_letter = _mm_cmpeq_epi8(_mm_min_epu8(letter, _mm_set1_epi8(5)), letter);
        let nibbles = _mm_or_si128(
            _mm_and_si128(decimal, is_decimal),
            _mm_and_si128(_mm_add_epi8(letter, _mm_set1_epi8(10)), is_letter),
        );
        // Of two neighbours the first is the upper half of a byte.
        let bytes = _mm_or_si128(_mm_slli_epi16::<4>(nibbles), _mm_srli_epi16::<8>(nibbles));
        let bytes = _mm_and_si128(bytes, _mm_set1_epi16(0xff));
        (
            _mm_movemask_epi8(_mm_or_si128(is_decimal, is_letter)) as u32,
            _mm_cvtsi128_si64(_mm_packus_epi16(bytes, bytes)) as u64,
        )
    };
    let count = (!mask).trailing_zeros(); // at most 16: the mask has no more bits
    let value = packed.swap_bytes().unbounded_shr(64 - 4 * count);
    (value, count as usize)
}

/// Position of the first space, tab or line end in sixteen characters, or 16.
#[cfg(target_arch = "x86_64")]
#[inline]
fn blank_in(text: &[u8; 16]) -> usize {
    use core::arch::x86_64::*;
    // SAFETY: both are 16 bytes of which every value is valid.
    let text: __m128i = unsafe { core::mem::transmute(*text) };
    // SAFETY: SSE2 is part of x86-64, and nothing here goes to memory.
    let mask = unsafe {
        let is = |wanted: u8| _mm_cmpeq_epi8(text, _mm_set1_epi8(wanted as i8));
        let any = _mm_or_si128(_mm_or_si128(is(b' '), is(b'\t')), is(b'\n'));
        _mm_movemask_epi8(any) as u32
    };
    (mask | 1 << 16).trailing_zeros() as usize
}

/// The lower-case hexadecimal digits that sixteen characters begin with: their value and how many they are.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn digits(text: &[u8; 16]) -> (u64, usize) {
    words::digits(text)
}

/// Position of the first space, tab or line end in sixteen characters, or 16.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn blank_in(text: &[u8; 16]) -> usize {
    words::blank_in(text)
}

/// The same with eight characters in an integer.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod words {
    /// 1 in every byte.
    const ONES: u64 = 0x0101_0101_0101_0101;
    /// The uppermost bit of every byte.
    const HIGH: u64 = 0x8080_8080_8080_8080;

    fn halves(text: &[u8; 16]) -> [u64; 2] {
        let both = u128::from_le_bytes(*text);
        [both as u64, (both >> 64) as u64]
    }

    pub(super) fn digits(text: &[u8; 16]) -> (u64, usize) {
        let [first, second] = halves(text).map(eight);
        if first.1 < 8 {
            return (first.0, first.1 as usize);
        }
        let value = first.0 << (4 * second.1) | second.0;
        (value, 8 + second.1 as usize)
    }

    pub(super) fn blank_in(text: &[u8; 16]) -> usize {
        let marks = halves(text).map(|word| {
            // The lowest marked byte is one; those above it need not be.
            let is = |wanted: u8| {
                let other = word ^ (u64::from(wanted) * ONES);
                other.wrapping_sub(ONES) & !other & HIGH
            };
            (is(b' ') | is(b'\t') | is(b'\n')).trailing_zeros() as usize / 8
        });
        match marks {
            [8, second] => 8 + second,
            [first, _] => first,
        }
    }

    /// The digits that eight characters begin with.
    fn eight(word: u64) -> (u64, u32) {
        let low = word & !HIGH;
        // In a byte below 0x80 the uppermost bit of the sum says whether it is at least, or above, a character.
        let within = |first: u8, last: u8| {
            let least = low + u64::from(0x80 - first) * ONES;
            let above = low + u64::from(0x7f - last) * ONES;
            least & !above
        };
        let digit = (within(b'0', b'9') | within(b'a', b'f')) & !word & HIGH;
        let count = (digit ^ HIGH).trailing_zeros() / 8;
        if count == 0 {
            return (0, 0);
        }
        let nibbles = (low & (0x0f * ONES)) + 9 * (low >> 6 & ONES);
        // The last digit to the top, zeros below the first; then the first is to be the uppermost.
        let mut value = (nibbles << (64 - 8 * count)).swap_bytes();
        value = (value | value >> 4) & 0x00ff_00ff_00ff_00ff;
        value = (value | value >> 8) & 0x0000_ffff_0000_ffff;
        value = (value | value >> 16) & 0xffff_ffff;
        (value, count)
    }
}

/// `0xFROM/0xTO/P…` at the start of a line's rest, in any of its forms: the entry and the length of the
/// field. `None` if it is something else.
pub(super) fn entry(text: &[u8]) -> Result<Option<(BranchEntry, usize)>, String> {
    let Some((from, mut at)) = address(text, 0) else {
        return Ok(None);
    };
    if text.get(at) != Some(&b'/') {
        return Ok(None);
    }
    let field = || text.split(|&byte| byte == b' ').next().unwrap_or_default();
    let Some((to, next)) = address(text, at + 1) else {
        return Err(format!(
            "branch {} has no address after the slash",
            quote(field())
        ));
    };
    at = next;
    let mispredicted = match (text.get(at), text.get(at + 1)) {
        (Some(b'/'), Some(b'M' | b'P' | b'-' | b'N' | b'X')) => text[at + 1] == b'M',
        (None | Some(b' '), _) => false,
        _ => {
            return Err(format!(
                "branch {} has no M, P or - after its addresses",
                quote(field())
            ));
        }
    };
    let end = text[at..]
        .iter()
        .position(|&byte| matches!(byte, b' ' | b'\t'))
        .map_or(text.len(), |more| at + more);
    let entry = BranchEntry {
        from,
        to,
        mispredicted,
        wrong_path: text[at..end].ends_with(b"/SPEC_WRONG_PATH"),
    };
    Ok(Some((entry, end)))
}

/// `0x…` at `at`, with `(dso)` or without: the number and where it ends.
fn address(text: &[u8], at: usize) -> Option<(u64, usize)> {
    let rest = text.get(at..)?.strip_prefix(b"0x")?;
    let digits = rest
        .iter()
        .take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        .count();
    let value = source::hex(&rest[..digits])?;
    let mut end = at + 2 + digits;
    if text.get(end) == Some(&b'(') {
        end += text[end..].iter().position(|&byte| byte == b')')? + 1;
    }
    Some((value, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_characters_at_once_are_the_same_as_one_by_one() {
        arbtest::arbtest(|u| {
            let mut text = [0; 16];
            for byte in &mut text {
                *byte = *u.choose(b"0123456789abcdef0123456789abcdefgA/ \t\n\xb0\xe1`:@")?;
            }
            let count = text
                .iter()
                .take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
                .count();
            let value = source::hex(&text[..count]).unwrap_or(0);
            assert_eq!(digits(&text), (value, count), "{}", text.escape_ascii());
            assert_eq!(words::digits(&text), (value, count));
            let blank = text
                .iter()
                .position(|byte| matches!(byte, b' ' | b'\t' | b'\n'));
            assert_eq!(blank_in(&text), blank.unwrap_or(16));
            assert_eq!(words::blank_in(&text), blank.unwrap_or(16));
            Ok(())
        });
    }

    #[test]
    fn what_the_quick_reader_takes_is_what_the_other_one_reads() {
        arbtest::arbtest(|u| {
            let mut line = Vec::new();
            for _ in 0..u.int_in_range(0..=4)? {
                let (from, to): (u64, u64) = (u.arbitrary()?, u.arbitrary()?);
                let (cut, kind) = (u.int_in_range(0..=60)?, *u.choose(b"PM-NXQ")? as char);
                let more = u.choose(&["/-/-/1", "", "/-/-/12345678901234567", "/x\ty", "(a b)"])?;
                let text = format!("{:#x}/{:#x}/{kind}{more} ", from >> cut, to);
                line.extend_from_slice(text.as_bytes());
            }
            let whole = line.len();
            line.extend_from_slice(b"\n0x1/0x2/P/-/-/1 ");
            line.resize(line.len() + u.int_in_range(0..=80)?, b' ');
            let mut quick = Vec::new();
            let (at, end) = entries(&line, 0, &mut quick);
            assert!(end <= at && at <= whole);
            let (mut here, mut slow) = (0, Vec::new());
            while slow.len() < quick.len() {
                let (found, len) = entry(&line[here..whole]).unwrap().unwrap();
                slow.push(found);
                here += len;
                while here < whole && matches!(line[here], b' ' | b'\t') {
                    here += 1;
                }
            }
            assert_eq!((quick, at), (slow, here));
            Ok(())
        });
    }
}

//! Numbers as text, for listings with hundreds of millions of them: without the machinery of `core::fmt`, at
//! the end of a string or of bytes.

use postlink_bytes::decimal;

/// What text is appended to.
pub trait Sink {
    /// Appends ASCII characters.
    fn ascii(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn ascii(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Sink for String {
    #[inline]
    fn ascii(&mut self, bytes: &[u8]) {
        // Digits are ASCII; anything else does not come here, and would be left out.
        self.push_str(std::str::from_utf8(bytes).unwrap_or_default());
    }
}

/// Appends a number in decimal.
#[inline]
pub fn put(out: &mut impl Sink, value: u64) {
    out.ascii(decimal(value, &mut [0; 20]));
}

/// Appends a signed number in decimal.
#[inline]
pub fn put_signed(out: &mut impl Sink, value: i64) {
    if value < 0 {
        out.ascii(b"-");
    }
    put(out, value.unsigned_abs());
}

/// Appends a number in hexadecimal, small letters, without leading zeros.
#[inline]
pub fn hex(out: &mut impl Sink, value: u64) {
    let (digits, from) = hex_digits(value);
    out.ascii(&digits[from..]);
}

/// Appends a number in hexadecimal with blanks in front, so that it takes up at least `width` characters (at most 16).
#[inline]
pub fn hex_padded(out: &mut impl Sink, value: u64, width: usize) {
    let (digits, from) = hex_digits(value);
    out.ascii(&digits[from.min(16usize.saturating_sub(width))..]);
}

/// Sixteen characters, blanks and then digits, and where the digits start.
#[inline]
fn hex_digits(mut value: u64) -> ([u8; 16], usize) {
    let mut digits = [b' '; 16];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
        if value == 0 {
            return (digits, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelt_as_the_standard_library_spells_them() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut text = String::new();
                put(&mut text, value);
                text.ascii(b" ");
                put_signed(&mut text, value as i64);
                text.ascii(b" ");
                hex(&mut text, value);
                text.ascii(b" ");
                hex_padded(&mut text, value, 8);
                assert_eq!(
                    text,
                    format!("{value} {} {value:x} {value:8x}", value as i64)
                );
            }
        }
    }
}

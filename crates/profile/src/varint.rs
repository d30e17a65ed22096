//! Numbers in as many bytes as they need: LEB128, seven bits a byte, least significant first, bit 7 set on all but the last.
//!
//! Only the shortest form is valid, so that equal profiles are equal bytes.

/// Longest form of a 64-bit number in bytes.
pub(crate) const MAX_LEN: usize = 10;

/// Appends `value`.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number from the start of `bytes`: the value and its length. `None` if it is cut off, too large for 64 bits, or not in its
/// shortest form.
pub(crate) fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(MAX_LEN).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * i);
        if byte < 0x80 {
            return (byte != 0 || i == 0).then_some((value, i + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_other_forms_are_refused() {
        arbtest::arbtest(|u| {
            let value = u.arbitrary::<u64>()? >> u.int_in_range(0..=63)?;
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(get(&out), Some((value, out.len())));
            assert_eq!(get(&out[..out.len() - 1]), None);
            let any: [u8; 11] = u.arbitrary()?;
            if let Some((value, len)) = get(&any) {
                let mut again = Vec::new();
                put(&mut again, value);
                assert_eq!(again, any[..len]);
            }
            Ok(())
        });
    }
}

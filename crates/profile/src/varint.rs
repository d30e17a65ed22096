//! Numbers in as many bytes as they need: LEB128.
//!
//! Only the shortest form is valid, so that equal profiles are equal bytes.

use postlink_bytes::Bytes;
pub(crate) use postlink_bytes::leb128::{LONGEST as MAX_LEN, put_unsigned as put};

/// Reads a number from the start of `bytes`: the value and its length. `None` if it is cut off, too large for
/// 64 bits, or not in its shortest form.
pub(crate) fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut reader = Bytes::new(bytes);
    let value = reader.unsigned(MAX_LEN).ok()?;
    let len = reader.at();
    // A last byte of zero would only pad.
    (len == 1 || bytes.get(len - 1) != Some(&0)).then_some((value, len))
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

//! The hashes of the format: 64 bits of MD5, and what is made of them.

use md5::{Digest, Md5};

/// The first eight bytes of the MD5 digest, read little endian: the signature of a function is that of its
/// mangled name.
///
/// ```
/// assert_eq!(postlink_mip::hash::md5_64(b"foo"), 0x5CF8_C24C_DB18_BDAC);
/// ```
pub fn md5_64(bytes: &[u8]) -> u64 {
    let digest = Md5::digest(bytes);
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]); // a digest has 16
    u64::from_le_bytes(first)
}

/// The hash of a link unit's name in the header of the proposal's files: the low half of [`md5_64`].
pub fn module_hash(name: &[u8]) -> u32 {
    md5_64(name) as u32
}

/// The group, of `groups`, that a function belongs to when only one group is instrumented at a time.
pub fn function_group(name: &[u8], groups: u32) -> u32 {
    (md5_64(name) % u64::from(groups.max(1))) as u32 // below `groups`
}

/// The signature of a control flow graph, from the numbers of each block's successors in layout order.
///
/// The text `{1;2;}{2;}{}` says that block 0 goes to 1 or 2, block 1 to 2, and block 2 nowhere; the signature
/// is the low half of its hash. A single block has signature 0. Only good for seeing that something changed.
///
/// ```
/// use postlink_mip::hash::cfg_signature;
/// let successors: [&[u32]; 3] = [&[1, 2], &[2], &[]];
/// assert_eq!(cfg_signature(successors), 0x70C9_FA27);
/// ```
pub fn cfg_signature<S: AsRef<[u32]>>(successors: impl IntoIterator<Item = S>) -> u32 {
    use std::fmt::Write;
    let mut text = String::new();
    let mut blocks = 0;
    for block in successors {
        blocks += 1;
        text.push('{');
        for successor in block.as_ref() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{successor};");
        }
        text.push('}');
    }
    if blocks <= 1 {
        return 0;
    }
    md5_64(text.as_bytes()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hash_as_in_the_test_vectors() {
        for (name, hash) in [
            ("foo", 0x5CF8_C24C_DB18_BDAC),
            ("main", 0xDB95_6436_E78D_D5FA),
            ("_Z4multii", 0xFE36_D24A_9F43_DE63),
            ("_Z3fooi", 0x110C_56E2_5952_6FAA),
            ("_Z3foov", 0x7F8D_88FC_C70A_347B),
            ("_Z3barv", 0xF129_1228_01E6_4264),
        ] {
            assert_eq!(md5_64(name.as_bytes()), hash, "{name}");
        }
        for (name, hash) in [
            ("a.out", 0xFF70_EA5D),
            ("my-executable", 0x7523_8201),
            ("", 0xD98C_1DD4),
        ] {
            assert_eq!(module_hash(name.as_bytes()), hash, "{name}");
        }
    }

    #[test]
    fn functions_fall_into_the_groups_of_the_test_vectors() {
        for (name, group) in [
            ("foo", 0),
            ("main", 0),
            ("_Z3barv", 0),
            ("_Z3foov", 1),
            ("_Z4multii", 1),
        ] {
            assert_eq!(function_group(name.as_bytes(), 2), group, "{name}");
        }
        for (name, group) in [("foo", 6), ("main", 8), ("_Z3fooi", 16)] {
            assert_eq!(function_group(name.as_bytes(), 22), group, "{name}");
        }
        assert_eq!(function_group(b"foo", 0), 0, "no groups are one group");
    }

    #[test]
    fn the_order_of_successors_shows_in_the_signature() {
        assert_eq!(cfg_signature([vec![2, 1], vec![2], vec![]]), 0x6E81_DF68);
        assert_eq!(cfg_signature([[0u32; 0]]), 0);
        assert_eq!(cfg_signature::<&[u32]>([]), 0);
    }
}

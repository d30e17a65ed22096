//! Functions by the hash of their name.
//!
//! A probe names its function by 64 bits: the first eight bytes of the MD5 of the linkage name, read as a
//! little-endian number. Sample profiles use the same number where names are left out. It is a key and
//! nothing more: compilers may give an internal function a number that is not the hash of any name in the
//! file.

use md5::{Digest, Md5};

/// The key of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

impl Guid {
    /// The key of the function with this linkage name.
    pub fn of(name: &[u8]) -> Guid {
        let digest = Md5::digest(name);
        Guid(
            digest
                .iter()
                .take(8)
                .rev()
                .fold(0, |key, &byte| key << 8 | u64::from(byte)),
        )
    }
}

impl std::fmt::Display for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_main_is_the_start_of_its_md5() {
        assert_eq!(Guid::of(b"main"), Guid(0xdb95_6436_e78d_d5fa));
        assert_eq!(Guid::of(b""), Guid(0x04b2_008f_d98c_1dd4));
    }
}

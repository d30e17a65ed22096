//! Stand-in.

/// Stand-in.
pub fn print(_: &[u8], _: u64, _: &mut Vec<u8>) -> Option<usize> {
    None
}

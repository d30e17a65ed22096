//! Where stubs are.

use postlink_elf::OutputAddr;

/// Where stubs are: the first so many bytes of them at one address, the rest at another.
#[derive(Clone, Copy, Debug)]
pub struct Stubs {
    /// Address of the first.
    pub first: OutputAddr,
    /// Bytes there, whole stubs.
    pub first_len: u64,
    /// Address of the rest.
    pub rest: OutputAddr,
}

impl Stubs {
    /// The address of a byte of them.
    pub fn at(&self, offset: u64) -> OutputAddr {
        match offset.checked_sub(self.first_len) {
            Some(behind) => self.rest + behind,
            None => self.first + offset,
        }
    }
}

//! x86-64.

/// The instruction set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct X86_64;

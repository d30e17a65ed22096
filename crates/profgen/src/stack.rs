//! A sample, as readers hand it to [`crate::tally`]: branch stack and call chain, in addresses of the file.
//!
//! What is no instruction of the file is [`crate::program::EXTERNAL`].

/// A branch, in addresses of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Branch {
    /// Where from.
    pub from: u64,
    /// Where to.
    pub to: u64,
}

/// A sample, in addresses of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Call chain: the instruction, then the calls around it. Empty if none was recorded.
    pub chain: Vec<u64>,
    /// Branches, newest first.
    pub branches: Vec<Branch>,
    /// The instruction, if nothing else was recorded.
    pub ip: u64,
}

//! Language-specific data areas as GCC and LLVM write them (`.gcc_except_table`): call sites, landing pads, actions, types.

use crate::FormatError;
use crate::elf::Elf;

/// A range of instructions that may unwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// First address.
    pub start: u64,
    /// Length.
    pub len: u64,
    /// Address of the landing pad; `None`: unwinding goes on without stopping.
    pub landing_pad: Option<u64>,
    /// 0: cleanup or nothing; else 1 + offset into the action table.
    pub action: u64,
}

/// A parsed LSDA. Instructions of the function that no call site covers must not unwind (the program is terminated).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lsda<'d> {
    /// Address.
    pub addr: u64,
    /// In ascending order.
    pub call_sites: Vec<CallSite>,
    /// The action table: exactly the bytes that call sites reach.
    pub actions: &'d [u8],
    /// Encoding of type table entries; 0xff: no type table.
    pub type_encoding: u8,
    /// Type table in index order (1-based in actions): link-time addresses (of the slot if indirect), 0 for catch-all.
    pub types: Vec<u64>,
    /// Exception specification lists behind the type table, verbatim.
    pub specs: &'d [u8],
}

impl<'d> Lsda<'d> {
    /// Parses the LSDA at `addr` of a function that starts at `function`.
    pub fn parse(_elf: &Elf<'d>, _addr: u64, _function: u64) -> Result<Self, FormatError> {
        todo!()
    }
    /// Encodes it at `at` for the code range that starts at `function`, with `call_sites` in place of its own (output addresses).
    /// Landing pads may lie anywhere within 2 GiB: the landing pad base is written explicitly, below the lowest landing pad.
    pub fn encode(&self, _call_sites: &[CallSite], _function: u64, _at: u64) -> Result<Vec<u8>, FormatError> {
        todo!()
    }
}

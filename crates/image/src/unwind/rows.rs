//! Unwind rows: where the caller's registers are, at each instruction.

use smallvec::SmallVec;

use super::eh_frame::{Cie, Fde};
use crate::FormatError;

/// How the canonical frame address is found. Expressions are byte ranges of the input's section, copied verbatim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CfaRule<'d> {
    /// Register plus byte offset.
    Offset { register: u16, offset: i64 },
    /// DWARF expression.
    Expression(&'d [u8]),
}

/// How a register of the caller is found. Byte offsets (already multiplied by the data alignment factor).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegRule<'d> {
    /// `DW_CFA_undefined`
    Undefined,
    /// `DW_CFA_same_value`
    SameValue,
    /// Saved at CFA + offset.
    Offset(i64),
    /// Is CFA + offset.
    ValOffset(i64),
    /// In another register.
    Register(u16),
    /// Saved at the address that the expression gives.
    Expression(&'d [u8]),
    /// Is the value that the expression gives.
    ValExpression(&'d [u8]),
}

/// The state at one place. Registers without a rule are not listed; the list is sorted by register.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row<'d> {
    /// Canonical frame address.
    pub cfa: CfaRule<'d>,
    /// Rules by DWARF register number.
    pub registers: SmallVec<[(u16, RegRule<'d>); 8]>,
    /// `DW_CFA_GNU_args_size`
    pub args_size: u64,
    /// AArch64: return address signed (`DW_CFA_AARCH64_negate_ra_state` seen an odd number of times).
    pub ra_signed: bool,
}

/// Runs a CIE's initial instructions.
pub fn initial_row<'d>(_cie: &Cie<'d>) -> Result<Row<'d>, FormatError> {
    todo!()
}

/// All rows of an FDE: (offset from its start, row), ascending, the first at 0; equal neighbours merged.
/// Refuses what it does not know, naming the opcode and its offset.
pub fn rows<'d>(_cie: &Cie<'d>, _fde: &Fde<'d>) -> Result<Vec<(u64, Row<'d>)>, FormatError> {
    todo!()
}

/// Encodes rows as call frame instructions after `initial`: the shortest plain instructions (advance, define, restore,
/// remember/restore where it saves bytes). `rows` as [`rows`] gives them.
pub fn encode<'d>(_cie: &Cie<'d>, _initial: &Row<'d>, _rows: &[(u64, &Row<'d>)]) -> Vec<u8> {
    todo!()
}

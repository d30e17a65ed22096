//! Call frame instructions, one at a time: bytes to meaning.
//!
//! | opcode | instruction | operands |
//! |---|---|---|
//! | 0x40–0x7f | `advance_loc` | low 6 bits × code alignment |
//! | 0x80–0xbf | `offset` | register in the low 6 bits, ULEB × data alignment |
//! | 0xc0–0xff | `restore` | register in the low 6 bits |
//! | 0x00 | `nop` | |
//! | 0x01 | `set_loc` | pointer in the encoding of the CIE's `R` |
//! | 0x02, 0x03, 0x04, 0x1d | `advance_loc1`, `2`, `4`, `MIPS_advance_loc8` | 1, 2, 4, 8 bytes × code alignment |
//! | 0x05, 0x11, 0x2f | `offset_extended`, `_sf`, `GNU_negative_offset_extended` | register, ULEB / SLEB / −ULEB × data alignment |
//! | 0x06 | `restore_extended` | register |
//! | 0x07, 0x08 | `undefined`, `same_value` | register |
//! | 0x09 | `register` | register, register |
//! | 0x0a, 0x0b | `remember_state`, `restore_state` | |
//! | 0x0c, 0x12 | `def_cfa`, `_sf` | register, ULEB / SLEB × data alignment |
//! | 0x0d | `def_cfa_register` | register |
//! | 0x0e, 0x13 | `def_cfa_offset`, `_sf` | ULEB / SLEB × data alignment |
//! | 0x0f | `def_cfa_expression` | block |
//! | 0x10, 0x16 | `expression`, `val_expression` | register, block |
//! | 0x14, 0x15 | `val_offset`, `_sf` | register, ULEB / SLEB × data alignment |
//! | 0x2d | `AARCH64_negate_ra_state` | |
//! | 0x2e | `GNU_args_size` | ULEB |
//!
//! From DWARF 5, section 6.4.2 and 7.24, the LSB core specification, and the AArch64 DWARF ABI. Alignment factors are
//! applied here, so what comes out is in bytes. A product or number that does not fit is an error: no compiler means
//! it.
//!
//! `set_loc` is the only instruction that depends on where it is itself.

use super::cursor::Cursor;
use super::eh_frame::Cie;
use super::pointer::{self, Bases};
use super::rows::RegRule;
use crate::{ErrorKind, FormatError};

/// `DW_CFA_*` opcodes.
pub(super) mod op {
    pub const ADVANCE_LOC: u8 = 0x40;
    pub const OFFSET: u8 = 0x80;
    pub const RESTORE: u8 = 0xc0;
    pub const NOP: u8 = 0x00;
    pub const SET_LOC: u8 = 0x01;
    pub const ADVANCE_LOC1: u8 = 0x02;
    pub const ADVANCE_LOC2: u8 = 0x03;
    pub const ADVANCE_LOC4: u8 = 0x04;
    pub const OFFSET_EXTENDED: u8 = 0x05;
    pub const RESTORE_EXTENDED: u8 = 0x06;
    pub const UNDEFINED: u8 = 0x07;
    pub const SAME_VALUE: u8 = 0x08;
    pub const REGISTER: u8 = 0x09;
    pub const REMEMBER_STATE: u8 = 0x0a;
    pub const RESTORE_STATE: u8 = 0x0b;
    pub const DEF_CFA: u8 = 0x0c;
    pub const DEF_CFA_REGISTER: u8 = 0x0d;
    pub const DEF_CFA_OFFSET: u8 = 0x0e;
    pub const DEF_CFA_EXPRESSION: u8 = 0x0f;
    pub const EXPRESSION: u8 = 0x10;
    pub const OFFSET_EXTENDED_SF: u8 = 0x11;
    pub const DEF_CFA_SF: u8 = 0x12;
    pub const DEF_CFA_OFFSET_SF: u8 = 0x13;
    pub const VAL_OFFSET: u8 = 0x14;
    pub const VAL_OFFSET_SF: u8 = 0x15;
    pub const VAL_EXPRESSION: u8 = 0x16;
    pub const MIPS_ADVANCE_LOC8: u8 = 0x1d;
    pub const AARCH64_NEGATE_RA_STATE: u8 = 0x2d;
    pub const GNU_ARGS_SIZE: u8 = 0x2e;
    pub const GNU_NEGATIVE_OFFSET_EXTENDED: u8 = 0x2f;
}

/// One instruction, alignment factors applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction<'d> {
    Nop,
    /// The next row begins at this address.
    SetLoc(u64),
    /// The next row begins this many bytes on.
    Advance(u64),
    DefCfa(u16, i64),
    DefCfaRegister(u16),
    DefCfaOffset(i64),
    DefCfaExpression(&'d [u8]),
    Rule(u16, RegRule<'d>),
    Restore(u16),
    RememberState,
    RestoreState,
    ArgsSize(u64),
    NegateRaState,
}

/// The instructions of a CIE or FDE in order.
#[derive(Clone, Debug)]
pub(super) struct Instructions<'a, 'd> {
    pub cursor: Cursor<'d>,
    cie: &'a Cie<'d>,
    bases: Bases,
}

impl<'a, 'd> Instructions<'a, 'd> {
    /// Of `bytes` at address `addr`, which belong to `cie` or to an FDE of it.
    pub fn new(cie: &'a Cie<'d>, bytes: &'d [u8], addr: u64) -> Self {
        // The CIE's encodings were checked when it was parsed, so an absolute or data-relative one was allowed there.
        // `set_loc` with a data-relative pointer is the one thing that needs more; it is refused below.
        Instructions {
            cursor: Cursor::new(bytes, addr),
            cie,
            bases: Bases::default(),
        }
    }

    fn register(&mut self) -> Result<u16, FormatError> {
        let addr = self.cursor.addr();
        let register = self.cursor.uleb("a register number")?;
        u16::try_from(register).map_err(|_| {
            FormatError::new(format!(
                "register number {register} at {addr:#x} is above 65535"
            ))
            .of(ErrorKind::TooLarge)
            .at_address(addr)
            .values(register, u16::MAX)
        })
    }
    fn scaled(&self, factor: i64) -> Result<i64, FormatError> {
        factor.checked_mul(self.cie.data_align).ok_or_else(|| {
            FormatError::new(format!(
                "offset {factor} before {:#x} times data alignment {} does not fit 64 bits",
                self.cursor.addr(),
                self.cie.data_align
            ))
            .of(ErrorKind::TooLarge)
            .at_address(self.cursor.addr())
            .values(factor, self.cie.data_align)
        })
    }
    fn unsigned_offset(&mut self) -> Result<i64, FormatError> {
        let addr = self.cursor.addr();
        let value = self.cursor.uleb("an offset")?;
        i64::try_from(value).map_err(|_| {
            FormatError::new(format!(
                "offset {value:#x} at {addr:#x} does not fit 63 bits"
            ))
            .of(ErrorKind::TooLarge)
            .at_address(addr)
            .values(value, i64::MAX)
        })
    }
    fn uleb_scaled(&mut self) -> Result<i64, FormatError> {
        let factor = self.unsigned_offset()?;
        self.scaled(factor)
    }
    fn sleb_scaled(&mut self) -> Result<i64, FormatError> {
        let factor = self.cursor.sleb("an offset")?;
        self.scaled(factor)
    }
    fn advance(&self, factor: u64) -> Result<Instruction<'d>, FormatError> {
        factor
            .checked_mul(self.cie.code_align)
            .map(Instruction::Advance)
            .ok_or_else(|| {
                FormatError::new(format!(
                "advance by {factor:#x} before {:#x} times code alignment {} does not fit 64 bits",
                self.cursor.addr(),
                self.cie.code_align
            ))
            .of(ErrorKind::TooLarge)
            .at_address(self.cursor.addr())
            .values(factor, self.cie.code_align)
            })
    }
    fn block(&mut self) -> Result<&'d [u8], FormatError> {
        let len = self.cursor.uleb("the length of an expression")?;
        self.cursor.take(len, "an expression")
    }

    /// The next instruction; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Instruction<'d>>, FormatError> {
        if self.cursor.is_empty() {
            return Ok(None);
        }
        let addr = self.cursor.addr();
        let opcode = self.cursor.u8("an opcode")?;
        let low = opcode & 0x3f;
        Ok(Some(match opcode & 0xc0 {
            op::ADVANCE_LOC => self.advance(low.into())?,
            op::OFFSET => Instruction::Rule(low.into(), RegRule::Offset(self.uleb_scaled()?)),
            op::RESTORE => Instruction::Restore(low.into()),
            _ => match opcode {
                op::NOP => Instruction::Nop,
                op::SET_LOC => Instruction::SetLoc(pointer::read(
                    self.cie.fde_encoding,
                    &mut self.cursor,
                    &self.bases,
                    "the address of DW_CFA_set_loc",
                )?),
                op::ADVANCE_LOC1 => {
                    let factor = self.cursor.u8("an advance")?.into();
                    self.advance(factor)?
                }
                op::ADVANCE_LOC2 => {
                    let factor = self.cursor.u16("an advance")?.into();
                    self.advance(factor)?
                }
                op::ADVANCE_LOC4 => {
                    let factor = self.cursor.u32("an advance")?.into();
                    self.advance(factor)?
                }
                op::MIPS_ADVANCE_LOC8 => {
                    let factor = self.cursor.u64("an advance")?;
                    self.advance(factor)?
                }
                op::OFFSET_EXTENDED => {
                    Instruction::Rule(self.register()?, RegRule::Offset(self.uleb_scaled()?))
                }
                op::OFFSET_EXTENDED_SF => {
                    Instruction::Rule(self.register()?, RegRule::Offset(self.sleb_scaled()?))
                }
                op::GNU_NEGATIVE_OFFSET_EXTENDED => {
                    let register = self.register()?;
                    // At least -i64::MAX, so its negation fits.
                    let factor = -self.unsigned_offset()?;
                    Instruction::Rule(register, RegRule::Offset(self.scaled(factor)?))
                }
                op::VAL_OFFSET => {
                    Instruction::Rule(self.register()?, RegRule::ValOffset(self.uleb_scaled()?))
                }
                op::VAL_OFFSET_SF => {
                    Instruction::Rule(self.register()?, RegRule::ValOffset(self.sleb_scaled()?))
                }
                op::RESTORE_EXTENDED => Instruction::Restore(self.register()?),
                op::UNDEFINED => Instruction::Rule(self.register()?, RegRule::Undefined),
                op::SAME_VALUE => Instruction::Rule(self.register()?, RegRule::SameValue),
                op::REGISTER => {
                    Instruction::Rule(self.register()?, RegRule::Register(self.register()?))
                }
                op::REMEMBER_STATE => Instruction::RememberState,
                op::RESTORE_STATE => Instruction::RestoreState,
                op::DEF_CFA => Instruction::DefCfa(self.register()?, self.unsigned_offset()?),
                op::DEF_CFA_SF => Instruction::DefCfa(self.register()?, self.sleb_scaled()?),
                op::DEF_CFA_REGISTER => Instruction::DefCfaRegister(self.register()?),
                op::DEF_CFA_OFFSET => Instruction::DefCfaOffset(self.unsigned_offset()?),
                op::DEF_CFA_OFFSET_SF => Instruction::DefCfaOffset(self.sleb_scaled()?),
                op::DEF_CFA_EXPRESSION => Instruction::DefCfaExpression(self.block()?),
                op::EXPRESSION => {
                    Instruction::Rule(self.register()?, RegRule::Expression(self.block()?))
                }
                op::VAL_EXPRESSION => {
                    Instruction::Rule(self.register()?, RegRule::ValExpression(self.block()?))
                }
                op::GNU_ARGS_SIZE => Instruction::ArgsSize(self.cursor.uleb("an argument size")?),
                op::AARCH64_NEGATE_RA_STATE => Instruction::NegateRaState,
                _ => {
                    return Err(FormatError::new(format!(
                        "call frame instruction {opcode:#04x} at {addr:#x} is unknown"
                    ))
                    .of(ErrorKind::Unsupported)
                    .at_address(addr)
                    .values(opcode, "a known call frame instruction"));
                }
            },
        }))
    }
}

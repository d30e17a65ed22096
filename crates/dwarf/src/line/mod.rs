//! Line programs (`.debug_line`, DWARF 2 to 5): rows for new code.
//!
//! # Problem
//!
//! A line program is code for a small machine whose output is a table of rows: address, file, line, column
//! and some flags. A row holds up to the address of the next row of its sequence. When code moves, each
//! address has to be found a new place, and where a block begins in the middle of what one row described, a
//! row must be put there.
//!
//! # Idea
//!
//! File and directory tables stay as they are, so file numbers stay true. Sequences that describe no moved
//! code are copied as bytes: each starts from the initial registers. The others are run, cut by the runs of
//! the [address map](crate::map), and encoded again ([`write`]).
//!
//! 1. What stays of such a sequence: its rows outside old bodies.
//! 2. New code, by new address. At the start of each run are all rows that start at its old address, with all
//!    flags; if there is none, a *synthetic* row for what covered that address, unless the row in effect says
//!    the same already.
//! 3. Entry jumps: one row each, so that a debugger that steps into one sees code with lines, and goes on.
//!
//! A synthetic row is not a statement and has no flags: no breakpoint could be put there before; but one may say that
//! a prologue ends ([`prologue`]). Rows whose
//! instruction is gone vanish. Bytes after a run that stand for nothing old are covered by the run's last
//! row.
//!
//! # Invariants
//!
//! * Every row of the result comes from one old row: same file, line, column, instruction set and discriminator.
//! * Sequences ascend; those that touch are one.
//! * Unknown standard opcodes are dropped with their arguments. An unknown extended opcode, more than one operation per
//!   instruction, and rows of moved code that descend or have a number of more than 32 bits are errors: the program is
//!   then kept as it was.

mod prologue;
mod rows;
mod table;
mod update;
mod write;

pub(crate) use update::{Program, update};

use crate::Error;
use crate::read::Reader;

/// Name of the section, for messages.
pub(crate) const SECTION: &str = ".debug_line";

/// Number of an extended opcode.
mod extended {
    pub const END_SEQUENCE: u8 = 1;
    pub const SET_ADDRESS: u8 = 2;
    pub const DEFINE_FILE: u8 = 3;
    pub const SET_DISCRIMINATOR: u8 = 4;
}

/// Number of a standard opcode.
mod standard {
    pub const COPY: u8 = 1;
    pub const ADVANCE_PC: u8 = 2;
    pub const ADVANCE_LINE: u8 = 3;
    pub const SET_FILE: u8 = 4;
    pub const SET_COLUMN: u8 = 5;
    pub const NEGATE_STMT: u8 = 6;
    pub const SET_BASIC_BLOCK: u8 = 7;
    pub const CONST_ADD_PC: u8 = 8;
    pub const FIXED_ADVANCE_PC: u8 = 9;
    pub const SET_PROLOGUE_END: u8 = 10;
    pub const SET_EPILOGUE_BEGIN: u8 = 11;
    pub const SET_ISA: u8 = 12;
}

/// What the header of a line program says about its code.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    /// Where the program's unit begins in the section.
    pub start: usize,
    /// 4 or 8.
    pub offset_size: u8,
    /// Where the code begins.
    pub code: usize,
    /// Where it ends.
    pub end: usize,
    /// Unit of address advances.
    pub min_inst_len: u8,
    /// Initial value of the register.
    pub default_is_stmt: bool,
    /// Least line advance of a special opcode.
    pub line_base: i8,
    /// Number of line advances.
    pub line_range: u8,
    /// First special opcode.
    pub opcode_base: u8,
    /// Numbers of arguments of standard opcodes 1, 2 ….
    pub lengths: Vec<u8>,
    /// Which standard opcodes have the arguments that the standard gives them: a bit for each number.
    known: u16,
}

/// Numbers of arguments that the standard gives to opcodes 1, 2 ….
const ARGUMENTS: [u8; 12] = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];

impl Header {
    /// Reads the header of the program at an offset.
    pub fn read(data: &[u8], at: u64) -> Result<Self, Error> {
        let mut r = Reader::new(data, at, SECTION)?;
        let start = r.at;
        let offset_size = r.unit_length()?;
        let version = r.u16()?;
        if !(2..=5).contains(&version) {
            return Err(r.error(format!(
                "a line program of version {version}; 2 to 5 are known"
            )));
        }
        if version >= 5 {
            let (address_size, segment_size) = (r.u8()?, r.u8()?);
            if address_size != 8 || segment_size != 0 {
                return Err(r.error(format!(
                    "addresses of {address_size} bytes and segments of {segment_size}; 8 and 0 are possible"
                )));
            }
        }
        let header_len = r.number(offset_size)?;
        let code = (r.at as u64)
            .checked_add(header_len)
            .filter(|c| *c <= r.end as u64);
        let Some(code) = code else {
            return Err(r.error(format!(
                "a header of {header_len:#x} bytes in a unit that ends at {:#x}",
                r.end
            )));
        };
        let min_inst_len = r.u8()?;
        if version >= 4 {
            let operations = r.u8()?;
            if operations > 1 {
                return Err(r.error(format!(
                    "{operations} operations per instruction; 1 is possible"
                )));
            }
        }
        let default_is_stmt = r.u8()? != 0;
        let line_base = r.u8()? as i8;
        let (line_range, opcode_base) = (r.u8()?, r.u8()?);
        if line_range == 0 || opcode_base == 0 || min_inst_len == 0 {
            return Err(r.error(format!(
                "line range {line_range}, opcode base {opcode_base}, instruction length {min_inst_len}: none may be 0"
            )));
        }
        let lengths = r.bytes(u64::from(opcode_base) - 1)?.to_vec();
        let both = (1..).zip(lengths.iter().zip(&ARGUMENTS));
        let known = both.fold(0, |known, (opcode, (is, should))| {
            known | u16::from(is == should) << opcode
        });
        Ok(Header {
            start,
            offset_size,
            code: code as usize,
            end: r.end,
            min_inst_len,
            default_is_stmt,
            line_base,
            line_range,
            opcode_base,
            lengths,
            known,
        })
    }

    /// Whether a standard opcode is there, with the arguments that the standard gives it: else it is another one.
    pub fn knows(&self, opcode: u8) -> bool {
        opcode < 16 && self.known >> opcode & 1 == 1
    }

    /// Units by which `DW_LNS_const_add_pc` advances the address: as the highest special opcode does.
    pub fn constant_advance(&self) -> u64 {
        u64::from((255 - self.opcode_base) / self.line_range)
    }
}

/// Flags of a row, as bits.
mod flag {
    pub const IS_STMT: u8 = 1;
    pub const BASIC_BLOCK: u8 = 2;
    pub const PROLOGUE_END: u8 = 4;
    pub const EPILOGUE_BEGIN: u8 = 8;
}

/// A row, without what it covers: that follows from the next. No compiler has numbers of more than 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub address: u64,
    pub file: u32,
    pub line: u32,
    pub column: u32,
    pub isa: u32,
    pub discriminator: u32,
    pub is_stmt: bool,
    pub basic_block: bool,
    pub prologue_end: bool,
    pub epilogue_begin: bool,
}

impl Row {
    /// The same place in the source at another address, where no statement begins.
    pub fn synthetic(self, address: u64) -> Self {
        Row {
            address,
            is_stmt: false,
            basic_block: false,
            prologue_end: false,
            epilogue_begin: false,
            ..self
        }
    }

    /// Whether both name the same place in the source.
    pub fn same_place(&self, other: &Row) -> bool {
        (
            self.file,
            self.line,
            self.column,
            self.isa,
            self.discriminator,
        ) == (
            other.file,
            other.line,
            other.column,
            other.isa,
            other.discriminator,
        )
    }
}

/// For tests: a row that begins a statement and says nothing else.
#[cfg(test)]
fn row(address: u64, line: u32) -> Row {
    Row {
        address,
        file: 1,
        line,
        column: 0,
        isa: 0,
        discriminator: 0,
        is_stmt: true,
        basic_block: false,
        prologue_end: false,
        epilogue_begin: false,
    }
}

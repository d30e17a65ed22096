//! Running a line program: its sequences, one after another.

use std::ops::Range;

use super::table::{Rows, Table};
use super::{Header, Row, SECTION, extended, flag, standard};
use crate::Error;
use crate::read::{Reader, number, part};

/// One sequence of rows.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Where its code is in the section.
    pub code: Range<usize>,
    /// Which of [`Runner::rows`] are its rows, in order, without the one that ends it.
    pub rows: Range<usize>,
    /// What it covers; empty if it has no rows.
    pub covers: Range<u64>,
    /// Where the code is behind its first row with a number of more than 32 bits.
    wide: Option<usize>,
}

impl Sequence {
    /// Checks that its rows can be written again: that addresses do not descend, and that numbers are what they were.
    pub fn check(&self, rows: Rows<'_>) -> Result<(), Error> {
        let error = |at: usize, what: &str| Err(Error::new(SECTION, at as u64, what));
        if let Some(at) = self.wide {
            return error(at, "a row with a number of more than 32 bits");
        }
        if !rows.ascend_to(self.covers.end) {
            return error(self.code.start, "the addresses of a sequence descend");
        }
        Ok(())
    }
}

/// The registers of the machine.
pub(super) struct Registers {
    pub address: u64,
    pub file: u64,
    pub line: u64,
    pub column: u64,
    pub isa: u64,
    pub discriminator: u64,
    /// See [`flag`].
    pub flags: u8,
}

impl Registers {
    /// Those at the start of a sequence.
    fn initial(header: &Header) -> Self {
        Registers {
            address: 0,
            file: 1,
            line: 1,
            column: 0,
            isa: 0,
            discriminator: 0,
            flags: if header.default_is_stmt {
                flag::IS_STMT
            } else {
                0
            },
        }
    }

    /// Whether a number does not fit a row.
    fn is_wide(&self) -> bool {
        (self.file | self.line | self.column | self.isa | self.discriminator) >> 32 != 0
    }

    /// A row with these numbers, as far as they fit.
    fn row(&self) -> Row {
        Row {
            address: self.address,
            file: self.file as u32,
            line: self.line as u32,
            column: self.column as u32,
            isa: self.isa as u32,
            discriminator: self.discriminator as u32,
            is_stmt: self.flags & flag::IS_STMT != 0,
            basic_block: self.flags & flag::BASIC_BLOCK != 0,
            prologue_end: self.flags & flag::PROLOGUE_END != 0,
            epilogue_begin: self.flags & flag::EPILOGUE_BEGIN != 0,
        }
    }
}

/// Runs programs sequence by sequence.
pub(crate) struct Runner<'a> {
    header: &'a Header,
    reader: Reader<'a>,
    /// Rows of the sequences that were not [dropped](Runner::drop_rows).
    pub rows: Table,
    /// Of the sequence in hand.
    wide: Option<usize>,
    /// Operations that add entries to the file table, as they was.
    pub defined_files: Vec<u8>,
    /// Whether any row says that a prologue ends.
    pub says_prologues: bool,
}

impl<'a> Runner<'a> {
    pub fn new(data: &'a [u8], header: &'a Header) -> Self {
        let reader = Reader {
            data,
            at: header.code,
            end: header.end,
            section: SECTION,
        };
        Runner {
            header,
            reader,
            rows: Table::default(),
            wide: None,
            defined_files: Vec::new(),
            says_prologues: false,
        }
    }

    /// Forgets the rows of the last sequence.
    pub fn drop_rows(&mut self, sequence: &Sequence) {
        self.rows.truncate(sequence.rows.start);
    }

    /// The next sequence; `None` at the end. Code after the last end of a sequence that makes no row is passed over.
    pub fn next(&mut self) -> Result<Option<Sequence>, Error> {
        let (h, start) = (self.header, self.reader.at);
        let first = self.rows.len();
        let mut registers = Registers::initial(h);
        self.wide = None;
        // Reading stays in front of the end.
        let code = self.reader.data.get(..self.reader.end).unwrap_or_default();
        while let Some(&opcode) = code.get(self.reader.at) {
            self.reader.at += 1;
            if opcode >= h.opcode_base {
                let adjusted = opcode - h.opcode_base;
                let units = adjusted / h.line_range;
                self.advance(&mut registers, u64::from(units));
                let lines = i64::from(h.line_base) + i64::from(adjusted - units * h.line_range);
                registers.line = registers.line.wrapping_add_signed(lines);
                self.emit(&mut registers);
            } else if opcode == 0 {
                if self.extended(&mut registers)? {
                    let all = self.rows.part(first..self.rows.len());
                    let covers = all.get(0).map_or(registers.address, |r| r.address);
                    return Ok(Some(Sequence {
                        code: start..self.reader.at,
                        rows: first..self.rows.len(),
                        covers: covers..registers.address,
                        wide: self.wide,
                    }));
                }
            } else {
                self.standard(opcode, &mut registers)?;
            }
        }
        if self.rows.len() == first {
            Ok(None)
        } else {
            Err(self.reader.error("a sequence without an end"))
        }
    }

    /// Appends a row.
    #[inline]
    fn emit(&mut self, registers: &mut Registers) {
        self.says_prologues |= registers.flags & flag::PROLOGUE_END != 0;
        if !self.rows.push_small(registers) {
            self.emit_large(registers);
        }
        registers.discriminator = 0;
        registers.flags &= flag::IS_STMT;
    }

    /// Appends a row with a large number.
    #[cold]
    fn emit_large(&mut self, registers: &Registers) {
        if registers.is_wide() {
            self.wide = self.wide.or(Some(self.reader.at));
        }
        self.rows.push(registers.row());
    }

    fn advance(&self, registers: &mut Registers, units: u64) {
        let bytes = units.wrapping_mul(u64::from(self.header.min_inst_len));
        registers.address = registers.address.wrapping_add(bytes);
    }

    fn standard(&mut self, opcode: u8, registers: &mut Registers) -> Result<(), Error> {
        let h = self.header;
        match opcode {
            // A header may give a known opcode another number of arguments: then it is another opcode.
            _ if !h.knows(opcode) => {
                let Some(&arguments) = h.lengths.get(usize::from(opcode).wrapping_sub(1)) else {
                    let what =
                        format!("the opcode {opcode:#x}, which the header does not describe");
                    return Err(self.reader.error(what));
                };
                for _ in 0..arguments {
                    self.reader.uleb()?;
                }
            }
            standard::COPY => self.emit(registers),
            standard::ADVANCE_PC => {
                let units = self.reader.uleb()?;
                self.advance(registers, units);
            }
            standard::ADVANCE_LINE => {
                registers.line = registers.line.wrapping_add_signed(self.reader.sleb()?);
            }
            standard::SET_FILE => registers.file = self.reader.uleb()?,
            standard::SET_COLUMN => registers.column = self.reader.uleb()?,
            standard::NEGATE_STMT => registers.flags ^= flag::IS_STMT,
            standard::SET_BASIC_BLOCK => registers.flags |= flag::BASIC_BLOCK,
            standard::CONST_ADD_PC => {
                self.advance(registers, h.constant_advance());
            }
            standard::FIXED_ADVANCE_PC => {
                let bytes = u64::from(self.reader.u16()?);
                registers.address = registers.address.wrapping_add(bytes);
            }
            standard::SET_PROLOGUE_END => registers.flags |= flag::PROLOGUE_END,
            standard::SET_EPILOGUE_BEGIN => registers.flags |= flag::EPILOGUE_BEGIN,
            _ => registers.isa = self.reader.uleb()?, // SET_ISA: all others are unknown
        }
        Ok(())
    }

    /// Whether the sequence ends.
    fn extended(&mut self, registers: &mut Registers) -> Result<bool, Error> {
        let start = self.reader.at - 1;
        let len = self.reader.uleb()?;
        let body = self.reader.bytes(len)?;
        let Some((opcode, arguments)) = body.split_first() else {
            return Err(self.reader.error("an extended opcode of no bytes"));
        };
        match *opcode {
            extended::END_SEQUENCE => return Ok(true),
            extended::SET_ADDRESS if arguments.len() == 8 => {
                registers.address = number(arguments);
            }
            extended::SET_ADDRESS => {
                return Err(self.reader.error(format!(
                    "an address of {} bytes; 8 are possible",
                    arguments.len()
                )));
            }
            extended::DEFINE_FILE => {
                let whole = start as u64..self.reader.at as u64;
                let whole = part(self.reader.data, whole, SECTION)?;
                self.defined_files.extend_from_slice(whole);
            }
            extended::SET_DISCRIMINATOR => {
                let mut r = Reader::new(arguments, 0, SECTION)?;
                registers.discriminator = r.uleb()?;
            }
            other => {
                return Err(self
                    .reader
                    .error(format!("the unknown extended opcode {other:#x}")));
            }
        }
        Ok(false)
    }
}

// SET_ISA is the last standard opcode that is known.
const _: () = assert!(standard::SET_ISA == 12);
